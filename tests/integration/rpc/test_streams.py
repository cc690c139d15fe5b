"""Streams that carry calls, over gRPC and beside it: answers, errors, tokens, deadlines, and how they end."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from elasticdl_core.errors import (
    ElasticDLError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc import client as client_module
from elasticdl_runtime.rpc import served_sockets
from elasticdl_runtime.rpc.beside import connect_beside, path_beside
from elasticdl_runtime.rpc.call_stream import GrpcCallStream, SocketCallStream, StreamedCall
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.framing import Frame, decode_frame, encode_frame, frame_mark, mark_frame
from elasticdl_runtime.rpc.service import Server, listen, make_server
from tests.fakes.plain_calls import Plain, greeting
from tests.integration.rpc.conftest import Kinds

pytestmark = pytest.mark.integration
PS = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
AT_ONCE, LATER, RAISE, RAISE_LATER = 1, 2, 3, 4
LONG_S = 3600.0
"""Whoever waits for so long is ended by the test's own limit."""


class Calls:
    """A servicer whose streams carry calls that are answered at once, when told to, or never; and its clients."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.good = {"good"}
        self.error: Exception = NotFoundError("nothing")
        self.callers: list[str] = []
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.server: Server | None = None
        self.clients: list[RpcClient] = []

    def __getattr__(self, name: str) -> Any:
        if name in PS.methods_by_name:
            return self.Steps
        raise AttributeError(name)

    def Steps(self, what: int, frame: bytes, caller: str) -> bytes | Awaitable[bytes]:
        self.callers.append(caller)
        header, buffers = decode_frame(frame)
        answer = encode_frame(header, [np.frombuffer(buffer, np.uint8) for buffer in buffers])
        if what == AT_ONCE:
            return answer
        if what == RAISE:
            raise self.error
        return self._later(answer, fails=what == RAISE_LATER)

    async def _later(self, answer: bytes, *, fails: bool) -> bytes:
        self.began.set()
        await self.release.wait()
        if fails:
            raise self.error
        return answer

    def authenticate(self, token: str) -> str:
        if token == "forbidden":
            raise PermissionDeniedError("not you")
        if token not in self.good:
            raise UnauthenticatedError("who are you", fix="log in")
        return token

    async def start(self) -> None:
        self.server = make_server(PS, self, self.authenticate)
        listen(self.server, self.address)
        await self.server.start()

    async def stop(self, grace: float | None = None) -> None:
        assert self.server is not None
        await self.server.stop(grace)

    def end_streams(self) -> None:
        assert self.server is not None
        self.server._streams.end()
        self.server._sockets.end()

    def client(self, token: Any = "good") -> RpcClient:
        client = RpcClient(self.address, PS, token)
        self.clients.append(client)
        return client


@pytest.fixture(params=[GrpcCallStream, SocketCallStream], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What streams are: those beside gRPC are there unless the client does without."""
    if request.param is GrpcCallStream:
        monkeypatch.setattr(client_module, "connect_beside", lambda _: None)
    return request.param


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rpc-") as directory:
        yield f"unix:{directory}/s.sock"


@pytest.fixture
async def calls(address: str) -> AsyncIterator[Calls]:
    calls = Calls(address)
    await calls.start()
    yield calls
    for client in calls.clients:
        await client.close()
    calls.release.set()
    await calls.stop()


def begin(
    client: RpcClient, what: int, header: bytes = b"", deadline_s: float = LONG_S, size: int = 0
) -> StreamedCall:
    frame = encode_frame(header, [np.arange(size, dtype=np.uint8)])
    return client.begin_in_stream("Steps", what, frame, deadline_s=deadline_s)


async def header_of(call: StreamedCall) -> bytes:
    return decode_frame(await call)[0]


async def test_each_call_gets_its_own_answer_whichever_comes_first(calls: Calls, kind: Any) -> None:
    client = calls.client()
    slow = begin(client, LATER, b"slow", size=200)
    quick = [begin(client, AT_ONCE, b"%d" % number, size=100_000) for number in range(20)]
    assert [await header_of(call) for call in quick] == [b"%d" % number for number in range(20)]
    calls.release.set()
    assert await header_of(slow) == await header_of(slow) == b"slow"
    header, (buffer,) = decode_frame(await begin(client, AT_ONCE, b"more", size=250))
    assert (header, bytes(buffer)) == (b"more", bytes(range(250)))
    assert [type(stream) for stream in client._opened] == [kind]


async def test_answers_that_are_ready_together_take_turns(calls: Calls) -> None:
    client = calls.client()
    waiting = [begin(client, LATER, b"%d" % number, size=1 << 20) for number in range(12)]
    await within(calls.began.wait(), 60)
    calls.release.set()
    for number, call in enumerate(waiting):
        header, (buffer,) = decode_frame(await call)
        assert (header, len(buffer)) == (b"%d" % number, 1 << 20)


async def test_an_error_answers_its_call_and_leaves_the_stream_usable(calls: Calls, crossing: Kinds) -> None:
    raised, expected = crossing
    client, calls.error = calls.client(), raised("ü", fix="f")
    slow = begin(client, LATER, b"slow")
    calls.release.set()
    for what in (RAISE, RAISE_LATER):
        with pytest.raises(expected) as caught:
            await begin(client, what)
        assert (type(caught.value), caught.value.message, caught.value.fix) == (expected, "ü", "f")
    assert await header_of(slow) == b"slow"
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    assert len(client._opened) == 1


async def test_what_nobody_expects_is_an_internal_error_of_one_call(calls: Calls) -> None:
    client, calls.error = calls.client(), ZeroDivisionError("oops")
    calls.release.set()
    for what in (RAISE, RAISE_LATER):
        with pytest.raises(ElasticDLError, match="Steps: ZeroDivisionError: oops"):
            await begin(client, what)
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    assert len(client._opened) == 1


async def test_what_is_no_frame_is_answered_as_an_error(calls: Calls) -> None:
    good = mark_frame(encode_frame(b"good"), AT_ONCE, 77)
    async with grpc.aio.insecure_channel(calls.address) as channel:
        stream = channel.stream_stream(f"/{PS.full_name}/Steps")(
            metadata=(("authorization", "Bearer good"),), timeout=60
        )
        for noise in (b"", b"noise", b"x" * 1000):
            await stream.write(noise)
            answer = await stream.read()
            assert frame_mark(answer) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], 0)
            assert b"not a frame" in decode_frame(answer)[0]
        await stream.write(good)
        answer = await stream.read()
        assert (frame_mark(answer), decode_frame(answer)[0]) == ((0, 77), b"good")
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
    with pytest.raises(InvalidInputError, match="not a frame"):
        calls.client().begin_in_stream("Steps", AT_ONCE, b"noise" * 10, deadline_s=20)


@pytest.mark.parametrize(("token", "expected"), [("bad", UnauthenticatedError), ("forbidden", PermissionDeniedError)])
async def test_a_bad_token_opens_no_stream(calls: Calls, token: str, expected: type[Exception]) -> None:
    client = calls.client(token)
    for _ in range(2):
        with pytest.raises(expected):
            await begin(client, AT_ONCE)
    assert calls.callers == []


async def test_a_stream_without_a_token_is_refused(calls: Calls) -> None:
    async with grpc.aio.insecure_channel(calls.address) as channel:
        stream = channel.stream_stream(f"/{PS.full_name}/Steps")(timeout=60)
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_refreshed_token_goes_over_a_new_stream_and_the_old_one_ends_when_it_is_answered(
    calls: Calls,
) -> None:
    tokens = ["good"]
    client, calls.good = calls.client(lambda: tokens[0]), {"good", "fresh"}
    slow = begin(client, LATER, b"slow")
    await within(calls.began.wait(), 60)
    tokens[0] = "fresh"
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    assert calls.callers == ["good", "fresh"]
    calls.release.set()
    assert await header_of(slow) == b"slow"
    old, new = client._opened
    await within(old.wait_until_gone(), 60)
    assert (old.gone, new.gone) == (True, False)
    tokens[0] = "good"
    assert await header_of(begin(client, AT_ONCE, b"y")) == b"y"
    await within(new.wait_until_gone(), 60)


async def test_a_stream_does_not_outlive_its_token(calls: Calls) -> None:
    tokens = ["good"]
    client = calls.client(lambda: tokens[0])
    slow = begin(client, LATER)
    await within(calls.began.wait(), 60)
    calls.good = {"fresh"}
    late = begin(client, AT_ONCE)
    for call in (late, slow):
        with pytest.raises(UnavailableError):
            await call
    for _ in range(2):
        with pytest.raises(UnauthenticatedError, match="who are you"):
            await begin(client, AT_ONCE)
    assert calls.callers == ["good"]
    tokens[0] = "fresh"
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"


async def test_a_call_that_is_overtaken_by_the_refresh_of_its_token_is_to_be_tried_again(calls: Calls) -> None:
    tokens = ["good"]
    client = calls.client(lambda: tokens[0])
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    calls.good = {"fresh"}
    late = begin(client, AT_ONCE)
    tokens[0] = "fresh"
    with pytest.raises(UnavailableError):
        await late
    assert await header_of(begin(client, AT_ONCE, b"y")) == b"y"


async def test_a_missed_deadline_ends_the_stream_and_the_next_call_opens_another(calls: Calls) -> None:
    client = calls.client()
    assert await header_of(begin(client, AT_ONCE, deadline_s=30)) == b""
    patient = begin(client, LATER)
    hasty = begin(client, LATER, deadline_s=0.1)
    for call in (hasty, patient):
        with pytest.raises(UnavailableError, match="deadline"):
            await call
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    assert len([stream for stream in client._opened if not stream.ended]) == 1


async def test_a_call_that_is_given_up_leaves_the_others_alone(calls: Calls) -> None:
    client = calls.client()
    given_up, kept = begin(client, LATER, b"a"), begin(client, LATER, b"b")
    given_up.cancel()
    calls.release.set()
    assert await header_of(kept) == b"b"
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert len(client._opened) == 1


async def test_nobody_there_is_unavailable(address: str) -> None:
    client = RpcClient(address, PS, "good")
    try:
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await begin(client, AT_ONCE)
    finally:
        await client.close()


async def test_a_server_that_goes_away_fails_its_calls_and_is_found_again(calls: Calls) -> None:
    client = calls.client()
    lost = [begin(client, LATER) for _ in range(3)]
    await within(calls.began.wait(), 60)
    await calls.stop(None)
    for call in lost:
        with pytest.raises(UnavailableError):
            await call
    await calls.start()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
                break
            except UnavailableError:
                continue


async def test_a_server_stops_at_once_though_a_stream_is_open(calls: Calls) -> None:
    client = calls.client()
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    await calls.stop(LONG_S)
    with pytest.raises(UnavailableError):
        await begin(client, AT_ONCE)
    await calls.start()


async def test_a_server_that_stops_answers_what_is_under_way(calls: Calls) -> None:
    client, other = calls.client(), calls.client()
    assert await header_of(begin(other, AT_ONCE, b"x")) == b"x"
    slow = begin(client, LATER, b"slow")
    await within(calls.began.wait(), 60)
    stopping = asyncio.ensure_future(calls.stop(LONG_S))
    await within(other._opened[0].wait_until_gone(), 60)
    assert not stopping.done()
    calls.release.set()
    assert await header_of(slow) == b"slow"
    await stopping
    await calls.start()


@pytest.mark.parametrize("grace", [None, LONG_S])
async def test_a_stop_that_is_cancelled_leaves_nothing_running(address: str, grace: float | None) -> None:
    before = asyncio.all_tasks()
    calls = Calls(address)
    await calls.start()
    client = calls.client()
    slow = begin(client, LATER)
    await within(calls.began.wait(), 60)
    stopping = asyncio.ensure_future(calls.stop(grace))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(asyncio.shield(stopping), 60)
    with pytest.raises(UnavailableError):
        await slow
    await client.close()
    assert asyncio.all_tasks() - before == set()
    assert not Path(address.removeprefix("unix:")).exists()
    await calls.start()  # in its place
    await calls.stop()


async def test_a_server_that_is_about_to_stop_takes_no_further_stream(calls: Calls) -> None:
    client = calls.client()
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    calls.end_streams()
    with pytest.raises(UnavailableError):
        await begin(client, AT_ONCE)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="is stopping"):
            await begin(client, AT_ONCE)


async def test_closing_ends_the_calls_and_leaves_no_task(address: str) -> None:
    before = asyncio.all_tasks()
    calls = Calls(address)
    await calls.start()
    client = calls.client()
    pending = [begin(client, LATER), begin(client, LATER, size=1 << 20)]
    unsent = begin(client, LATER)
    await within(calls.began.wait(), 60)
    await client.close()
    for call in (*pending, unsent):
        with pytest.raises(UnavailableError, match="was closed"):
            await call
    calls.release.set()
    await calls.stop(LONG_S)
    assert asyncio.all_tasks() - before == set()


@pytest.fixture
async def plain(calls: Calls) -> AsyncIterator[Plain]:
    made = Plain(calls.address)
    yield made
    made.close()


async def refusal_of(plain: Plain) -> tuple[grpc.StatusCode, str]:
    answer = await plain.receive()
    code = next(code for code in grpc.StatusCode if code.value[0] == frame_mark(answer)[0])
    assert await plain.receive() == b""
    return code, json.loads(decode_frame(answer)[0])["message"]


async def test_a_connection_beside_begins_with_a_greeting(calls: Calls, plain: Plain) -> None:
    await plain.send(greeting(), Frame(b"x").encode(AT_ONCE, 5))
    assert frame_mark(await plain.receive()) == (0, 0)
    answer = await plain.receive()
    assert (frame_mark(answer), decode_frame(answer)[0]) == ((0, 5), b"x")
    await plain.send(b"noise")
    answer = await plain.receive()
    assert frame_mark(answer) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], 0)
    await plain.send(Frame(b"y").encode(AT_ONCE, 6))
    assert decode_frame(await plain.receive())[0] == b"y"


@pytest.mark.parametrize(
    ("first", "code", "message"),
    [
        (b"", grpc.StatusCode.INVALID_ARGUMENT, "no greeting"),
        (b"noise" * 10, grpc.StatusCode.INVALID_ARGUMENT, "no greeting"),
        (Frame(b"{}").encode(), grpc.StatusCode.INVALID_ARGUMENT, "no greeting"),
        (greeting("Pull"), grpc.StatusCode.INVALID_ARGUMENT, "no calls of 'Pull'"),
        (greeting(token="bad"), grpc.StatusCode.UNAUTHENTICATED, "who are you"),
        (greeting(token="forbidden"), grpc.StatusCode.PERMISSION_DENIED, "not you"),
    ],
)
async def test_who_does_not_greet_is_told_and_left(
    calls: Calls, plain: Plain, first: bytes, code: grpc.StatusCode, message: str
) -> None:
    await plain.send(first)
    found = await refusal_of(plain)
    assert found[0] is code
    assert message in found[1]
    assert calls.callers == []


async def test_of_a_stranger_little_is_taken_and_not_for_long(
    calls: Calls, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plain.loop.sock_sendall(plain.connection, (1 << 20).to_bytes(8, "little"))
    assert await plain.receive() == b""
    monkeypatch.setattr(served_sockets, "_GREETING_S", 0.05)
    silent = Plain(calls.address)
    status, message = await refusal_of(silent)
    assert (status, message) == (grpc.StatusCode.INVALID_ARGUMENT, "no greeting came in time")
    silent.close()


async def test_a_server_without_free_descriptors_waits_for_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tried again in each turn of its event loop, with a whole processor."""
    tried: list[object] = []
    accept = served_sockets.ServedSockets._accept

    def counted(self: served_sockets.ServedSockets, listener: socket.socket) -> None:
        tried.append(listener)
        accept(self, listener)

    monkeypatch.setattr(served_sockets.ServedSockets, "_accept", counted)
    monkeypatch.setattr(served_sockets, "_PAUSE_S", LONG_S)
    address = f"unix:{tmp_path}/s"
    served = served_sockets.ServedSockets({"Steps": Calls(address).Steps}, str, 1 << 20)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    connection = None
    try:
        served.listen(address)
        connection = connect_beside(address)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        for _ in range(100):
            await asyncio.sleep(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(tried) == 1
        served._resume(served._listeners[0][0])
        for _ in range(3000):
            if served._open:
                break
            await asyncio.sleep(0.01)
        assert len(served._open) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await served.close(None)
        if connection is not None:
            connection.close()


async def test_a_message_that_is_too_long_ends_the_connection(calls: Calls, plain: Plain) -> None:
    await plain.send(greeting())
    await plain.receive()
    await plain.loop.sock_sendall(plain.connection, (1 << 62).to_bytes(8, "little"))
    assert await plain.receive() == b""


async def test_who_takes_no_answers_is_asked_for_no_more(calls: Calls, plain: Plain) -> None:
    await plain.send(greeting())
    await plain.receive()
    large = Frame(b"", [np.zeros(16 << 20, np.uint8)]).encode(AT_ONCE, 1)
    sending = asyncio.ensure_future(plain.send(*[large] * 12))
    other = calls.client()
    for number in range(200):
        assert await header_of(begin(other, AT_ONCE, b"%d" % number)) == b"%d" % number
    assert not sending.done()
    for _ in range(12):
        assert len(await plain.receive()) == len(large)
    await sending


async def test_more_is_asked_and_answered_at_once_than_fits_anywhere(calls: Calls) -> None:
    client, values = calls.client(), np.ones(3 << 20, np.uint8)
    begun = [
        client.begin_in_stream("Steps", AT_ONCE, Frame(b"%d" % number, [values]), deadline_s=LONG_S)
        for number in range(60)
    ]
    for number, call in enumerate(begun):
        header, (buffer,) = decode_frame(await call)
        assert (header, len(buffer)) == (b"%d" % number, len(values))


async def test_arrays_that_change_after_a_call_has_begun_are_sent_as_they_were(calls: Calls) -> None:
    client = calls.client()
    for _ in range(3):
        values = np.ones(2 << 20, np.uint8)
        call = client.begin_in_stream("Steps", AT_ONCE, Frame(b"", [values]), deadline_s=LONG_S)
        values[:] = 2
        _, (buffer,) = decode_frame(await call)
        assert (np.frombuffer(buffer, np.uint8) == 1).all()


async def test_a_server_leaves_no_socket_behind_and_takes_the_place_of_one_that_was_killed(address: str) -> None:
    path = path_beside(address)
    assert path is not None
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    assert connect_beside(address) is None
    calls = Calls(address)
    await calls.start()
    client = calls.client()
    assert await header_of(begin(client, AT_ONCE, b"x")) == b"x"
    await client.close()
    await calls.stop()
    with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as late:
        late.connect(path)


def test_servers_elsewhere_and_in_deep_folders_have_no_socket_of_calls() -> None:
    assert path_beside("127.0.0.1:5000") is None
    assert path_beside("unix:/run/ps.sock") == "/run/ps.sock.calls"
    assert path_beside("unix:/" + "x" * 101) is None
