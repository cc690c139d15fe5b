"""The connection to one parameter server: calls that outlast its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.retry import Attempts
from elasticdl_runtime.rpc.call_stream import StreamedCall
from elasticdl_runtime.rpc.client import PendingCall, RpcClient
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.rpc.deadlines import deadline_for
from elasticdl_runtime.rpc.framing import Frame, FrameBytes
from elasticdl_runtime.rpc.service import CHUNK_BYTES
from elasticdl_runtime.telemetry.spans import span
from elasticdl_worker.parameters import codec
from elasticdl_worker.parameters.codec import ClosedRound
from elasticdl_worker.parameters.types import ServedModel
from elasticdl_worker.parameters.waiting import together

T = TypeVar("T")
_DEADLINE_S = 5.0
_LARGE_DEADLINE_S = 30.0
_LARGE_BYTES = 4 << 20
_BACKOFF = Backoff(0.05, 2.0)


class ServerConnection:
    """Calls one PS, again and again while it cannot be reached.

    Args:
        index: the number of the PS.
        address: ``unix:/path`` or ``host:port``.
        token: returns the present job token.
        patience_s: for how long an unreachable PS is tried again.
        credentials: what to show under TLS; those of this process by default.

    Attributes:
        generation: of the PS, as last seen in a pull; empty at first.
        dense_version: the version up to which dense parameters were received; -1 at first.
        dense_bytes: size of the dense parameters there.
    """

    def __init__(
        self,
        index: int,
        address: str,
        token: Callable[[], str],
        patience_s: float,
        credentials: RpcCredentials | None = None,
    ) -> None:
        self.index = index
        self._words = {True: f"pull from PS {index}", False: f"push to PS {index}"}
        self.generation = ""
        self.dense_version = -1
        self.dense_bytes = 0
        self._token = token
        self._patience_s = patience_s
        self._credentials = credentials
        self._client = RpcClient(address, codec.SERVICE, token, credentials)

    @property
    def streams_dense(self) -> bool:
        """Whether the dense parameters there are too large for one message."""
        return self.dense_bytes > CHUNK_BYTES

    @property
    def address(self) -> str:
        """The address where the PS listens."""
        return self._client.address

    async def move(self, address: str) -> None:
        """Goes on at another address, or at the same one anew; what was received from the old PS is forgotten."""
        old, self._client = self._client, RpcClient(address, codec.SERVICE, self._token, self._credentials)
        self.generation, self.dense_version = "", -1
        await old.close()

    async def close(self) -> None:
        """Closes the channel."""
        await self._client.close()

    async def call(self, method: str, frame: Frame, *, answer_bytes: int = 0) -> FrameBytes:
        """Makes a call that takes a frame and answers with one.

        Args:
            method: the RPC.
            frame: the request.
            answer_bytes: expected size of the response, which with the request's decides on the deadline.

        Raises:
            UnavailableError: the PS could not be reached for the whole of the patience.
            ElasticDLError: what the PS answered.
        """

        async def once() -> FrameBytes:
            answer: FrameBytes = await self._begin(method, frame, answer_bytes)
            return answer

        with self.waiting_for(method):
            return await self._retry(once)

    def begin(self, method: str, frame: Frame, *, answer_bytes: int = 0) -> Attempt:
        """Begins what ``call`` does, so that calls of several PS are under way without a task for each."""
        return Attempt(self, method, frame, answer_bytes, self._begin(method, frame, answer_bytes))

    def _begin(self, method: str, frame: Frame, answer_bytes: int) -> PendingCall | StreamedCall:
        size = frame.nbytes + answer_bytes
        large = size >= _LARGE_BYTES
        step = codec.STEPS.get(method)
        if large or step is None:
            deadline_s = deadline_for(_LARGE_DEADLINE_S, size) if large else _DEADLINE_S
            return self._client.begin(method, frame, deadline_s=deadline_s)
        # Short calls go over one stream: that takes a third off their cost there, a tenth here.
        return self._client.begin_in_stream("Steps", step, frame, deadline_s=_DEADLINE_S)

    def waiting_for(self, method: str) -> span:
        """Says what is waited for while a call is under way."""
        return span(self._words["Push" not in method], "rpc", alone=False)

    async def is_initialised(self) -> bool:
        """Whether the PS has a model."""
        return codec.read_initialised(await self._exchange("Status", codec.status_request()))

    async def model_part(self) -> ServedModel | None:
        """The part of a model that the PS holds, if there is one."""
        return codec.read_model_part(await self._exchange("Status", codec.status_request(model=True)))

    async def count_rows(self) -> dict[str, int]:
        """The number of each table's rows that are there."""
        return codec.read_row_counts(await self._exchange("Status", codec.status_request()))

    async def closed_rounds(self, since: int) -> list[ClosedRound]:
        """The rounds that the first PS has closed since a version.

        Raises:
            ConflictError: they are no longer known.
        """
        return codec.read_closed_rounds(await self._exchange("ClosedRounds", codec.closed_rounds_request(since)))

    async def apply_round(self, closed: ClosedRound) -> None:
        """Has the PS apply a round that the first PS has closed.

        Raises:
            ConflictError: an earlier round is missing, or a member's gradient is.
        """
        await self._exchange("ApplyRound", codec.apply_round_request(closed), self.dense_bytes)

    async def push_pieces(self, method: str, frame: bytes) -> bytes:
        """Sends a frame of any size, in pieces, to a method that takes a stream of them; returns its answer."""
        deadline_s = deadline_for(_LARGE_DEADLINE_S, len(frame))

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(frame), CHUNK_BYTES):
                yield frame[at : at + CHUNK_BYTES]

        async def once() -> bytes:
            answer: bytes = await self._client.call(method, pieces(), deadline_s=deadline_s)
            return answer

        return await self._retry(once)

    async def push_model(self, frame: Frame) -> bool:
        """Sends a model; returns whether that initialised the PS."""
        return codec.read_model_reply(await self.push_pieces("PushModel", frame.encode()))

    async def pull_dense(self, frame: Frame) -> list[bytes]:
        """Receives dense parameters as a stream of frames."""
        deadline_s = deadline_for(_LARGE_DEADLINE_S, self.dense_bytes)

        async def once() -> list[bytes]:
            stream = self._client.stream("PullDenseParameters", frame, deadline_s=deadline_s)
            return [piece async for piece in stream]

        return await self._retry(once)

    async def _exchange(self, method: str, request: object, work_bytes: int = 0) -> Any:
        """Sends a message, on which the PS works on so many bytes, and returns the one that answers it."""

        async def once() -> Any:
            return await self._client.call(method, request, deadline_s=deadline_for(_DEADLINE_S, work_bytes))

        return await self._retry(once)

    async def _retry(self, once: Callable[[], Awaitable[T]]) -> T:
        async for _ in Attempts(_BACKOFF, self._patience_s):
            try:
                return await once()
            except UnavailableError as error:
                last = error
        raise UnavailableError(
            f"PS {self.index} at {self.address} did not answer for {self._patience_s:.0f} s: {last.message}",
            fix="see the job's events for what became of it",
        ) from None

    @staticmethod
    async def pause(seconds: float) -> None:
        """Waits between half and the whole of a time, so that workers do not come back all at once."""
        await asyncio.sleep(Backoff(seconds, seconds).pause_s(1))


class Attempt:
    """A call to a PS that is under way, and can be made again."""

    __slots__ = ("_answer_bytes", "_first", "_frame", "_method", "_server")

    def __init__(
        self,
        server: ServerConnection,
        method: str,
        frame: Frame,
        answer_bytes: int,
        first: PendingCall | StreamedCall,
    ) -> None:
        self._server = server
        self._method = method
        self._frame = frame
        self._answer_bytes = answer_bytes
        self._first = first

    async def answer(self) -> FrameBytes:
        """The response, after as many further calls as it takes; see ``ServerConnection.call``."""
        try:
            with self._server.waiting_for(self._method):
                first: FrameBytes = await self._first
            return first
        except UnavailableError:
            await self._server.pause(_BACKOFF.first_s)
        return await self._server.call(self._method, self._frame, answer_bytes=self._answer_bytes)

    async def first_answer(self) -> FrameBytes:
        """The response to the first call."""
        with self._server.waiting_for(self._method):
            answer: FrameBytes = await self._first
        return answer

    def cancel(self) -> None:
        """Gives the first call up."""
        self._first.cancel()


async def answers_of(attempts: Sequence[Attempt]) -> list[FrameBytes]:
    """The responses of all; none runs on when one fails for good.

    While all PS can be reached this makes no tasks: each costs turns of the event loop.
    """
    try:
        return [await attempt.first_answer() for attempt in attempts]
    except UnavailableError:
        return list(await together([attempt.answer() for attempt in attempts]))
    except BaseException:
        for attempt in attempts:
            attempt.cancel()
        raise
