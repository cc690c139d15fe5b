"""Messages that no client of ours would send, drawn from the descriptors of a protocol, and a client that sends them.

What is drawn are bytes: noise, messages with odd values in any field, good messages with some fields changed, and
any of these cut short or with a byte changed. Where the protocol has frames, these are headers of frames with odd
buffers, or of what is no frame.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.rpc.framing import encode_frame, frame_mark, mark_frame
from elasticdl_runtime.rpc.service import is_frame
from tests.fakes import bad_inputs

Draw = Callable[[st.SearchStrategy[Any]], Any]
DOCUMENTED = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.ABORTED,
    }
)
"""What a call with a good token may be answered with: it is done, or it says what is wrong with it."""
FEW = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=1500, derandomize=False)
_DEADLINE_S = 20.0
_KIND = FieldDescriptor
_INTEGERS = {
    _KIND.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    _KIND.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    _KIND.TYPE_UINT32: (0, (1 << 32) - 1),
    _KIND.TYPE_UINT64: (0, (1 << 64) - 1),
    _KIND.TYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
# No "/" but in the words of a test: servers that write files run with the rights of whoever runs the tests.
_TEXT = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), max_size=12)
_DTYPES = ("<f4", "<i8", "<u2", "<f8", "<u1")


@dataclass(frozen=True)
class Door:
    """One RPC, and what is sent to it.

    Attributes:
        method: the RPC.
        header: the message in the header of its frames; None where it has none.
        good: messages that it would take, to be changed.
        words: texts that mean something to the server.
    """

    method: MethodDescriptor
    header: Descriptor | None = None
    good: Sequence[Message] = ()
    words: Sequence[str] = ()

    @property
    def framed(self) -> bool:
        """Whether it takes frames."""
        return is_frame(self.method.input_type)


@st.composite
def messages(draw: Draw, door: Door) -> bytes:
    """One message for an RPC."""
    descriptor = door.header or door.method.input_type
    kind = draw(st.sampled_from(["noise", "odd", "changed", "changed", "cut"]))
    if kind == "noise":
        data = draw(st.binary(max_size=60))
    else:
        message = GetMessageClass(descriptor)()
        if kind != "odd" and door.good:
            message.CopyFrom(draw(st.sampled_from(list(door.good))))
        _change(draw, message, door.words, depth=0)
        data = message.SerializeToString()
    if kind == "cut":
        data = _damaged(draw, data)
    return _framed(draw, data) if door.framed else data


def _change(draw: Draw, message: Message, words: Sequence[str], depth: int) -> None:
    """Gives some fields of a message odd values."""
    if not message.DESCRIPTOR.fields:
        return
    for one in draw(
        st.lists(st.sampled_from(list(message.DESCRIPTOR.fields)), max_size=3, unique_by=lambda f: f.name)
    ):
        if one.is_repeated:
            _change_repeated(draw, message, one, words, depth)
        elif one.type == _KIND.TYPE_MESSAGE:
            if depth < 3:
                getattr(message, one.name).SetInParent()
                _change(draw, getattr(message, one.name), words, depth + 1)
        else:
            setattr(message, one.name, draw(_values(one, words)))


def _change_repeated(draw: Draw, message: Message, one: FieldDescriptor, words: Sequence[str], depth: int) -> None:
    held = getattr(message, one.name)
    inner = one.message_type
    if draw(st.booleans()):
        message.ClearField(one.name)
    count = draw(st.integers(0, 3))
    if inner is None:
        held.extend(draw(_values(one, words)) for _ in range(count))
    elif inner.GetOptions().map_entry:
        key, value = inner.fields
        if value.type != _KIND.TYPE_MESSAGE:
            for _ in range(count):
                held[draw(_values(key, words))] = draw(_values(value, words))
    elif depth < 3:
        for _ in range(count):
            _change(draw, held.add(), words, depth + 1)
        if held and draw(st.booleans()):
            held.add().CopyFrom(held[0])


def _values(one: FieldDescriptor, words: Sequence[str]) -> st.SearchStrategy[Any]:
    """Values that a field can carry, odd ones first."""
    if one.type in _INTEGERS:
        low, high = _INTEGERS[one.type]
        near = [number for number in (-1, 0, 1, 2, 3, 7, 1000, low, low + 1, high - 1, high) if low <= number <= high]
        return st.one_of(st.sampled_from(near), st.integers(low, high))
    if one.type in (_KIND.TYPE_DOUBLE, _KIND.TYPE_FLOAT):
        return st.one_of(st.sampled_from(_FLOATS), st.floats())
    if one.type == _KIND.TYPE_BOOL:
        return st.booleans()
    if one.type == _KIND.TYPE_STRING:
        return st.one_of(st.sampled_from([*words, "", "\0", "x" * 5000, "'\"{}[]%s", "-1", "NaN"]), _TEXT)
    return st.one_of(st.binary(max_size=60), st.sampled_from([word.encode() for word in words] or [b""]))


def _damaged(draw: Draw, data: bytes) -> bytes:
    """Cuts bytes short, appends some, or changes one."""
    at = draw(st.integers(0, max(0, len(data) - 1)))
    how = draw(st.sampled_from(["cut", "append", "change"]))
    if how == "cut":
        return data[:at]
    if how == "append":
        return data + draw(st.binary(min_size=1, max_size=8))
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _framed(draw: Draw, header: bytes) -> bytes:
    """A frame with that header and odd buffers, or what is left of one."""
    buffers = [
        np.array(draw(st.lists(st.sampled_from(_numbers(dtype)), max_size=8)), dtype)
        for dtype in draw(st.lists(st.sampled_from(_DTYPES), max_size=4))
    ]
    frame = encode_frame(header, buffers)
    how = draw(st.sampled_from(["whole", "whole", "whole", "damaged", "lengths", "bare"]))
    if how == "damaged":
        return _damaged(draw, frame)
    if how == "bare":
        return header
    if how == "lengths":
        at = draw(st.sampled_from([4, 8, 16]))
        lie = struct.pack("<I", draw(st.sampled_from([0, 1, 3, 64, 1 << 20, (1 << 32) - 1])))
        return frame[:at] + lie + frame[at + 4 :]
    return frame


def _numbers(dtype: str) -> list[Any]:
    if dtype in ("<f4", "<f8"):
        return [0.0, 1.0, -1.0, 3e38, float("nan"), float("inf")]
    if dtype == "<i8":
        return [0, 1, 2, -1, 9, 10, 1 << 40, (1 << 63) - 1, -(1 << 63)]
    return [0, 1, 2, 255]


@dataclass
class OddClient:
    """Sends bytes as they are.

    Attributes:
        address: of the server.
        service: its service.
        token: the caller's.
        seen: how often each status was answered, by method.
    """

    address: str
    service: ServiceDescriptor
    token: str
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    async def send(
        self, method: str, pieces: Sequence[bytes], *, endless: bool = False, read: int = 1000
    ) -> set[grpc.StatusCode]:
        """Makes a call of any kind; returns its status, and those of the answers within a stream of calls.

        Args:
            method: the RPC.
            pieces: its messages.
            endless: whether answers come for as long as the caller listens: it then hears the first, if there is one
                soon.
            read: how many answers to read at most.
        """
        call = self._channel.stream_stream(f"/{self.service.full_name}/{method}")(
            iter(pieces),
            timeout=0.2 if endless else _DEADLINE_S,
            metadata=grpc.aio.Metadata(("authorization", f"Bearer {self.token}")),
        )
        both = self.service.methods_by_name[method]
        found: set[grpc.StatusCode] = set()
        began = time.monotonic()
        try:
            async for answer in call:
                if both.client_streaming and both.server_streaming:
                    found.add(STATUS[frame_mark(answer)[0]])
                read -= 1
                if read <= 0 or endless:
                    call.cancel()
                    found.add(grpc.StatusCode.OK)
                    break
            else:
                found.add(await call.code())
        except grpc.aio.AioRpcError as error:
            code = error.code()
            found.add(grpc.StatusCode.OK if endless and code is grpc.StatusCode.DEADLINE_EXCEEDED else code)
        for status in found:
            self.seen[method, status.name] += 1
        seconds = 0.0 if endless else time.monotonic() - began
        failed = not found <= DOCUMENTED
        bad_inputs.count(f"RPCs of the {self.service.name}", server_errors=failed, seconds=seconds)
        return found

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()


STATUS: Mapping[int, grpc.StatusCode] = {status.value[0]: status for status in grpc.StatusCode}
"""By the number that frames carry."""


def numbered(frames: Sequence[bytes], steps: Sequence[int]) -> list[bytes]:
    """Frames marked as messages of a stream of calls; what is no frame stays as it is."""
    marked = []
    for number, (frame, step) in enumerate(zip(frames, steps, strict=False), 1):
        try:
            marked.append(mark_frame(frame, step, number))
        except InvalidInputError:
            marked.append(frame)
    return marked
