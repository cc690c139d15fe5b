"""The server's side of streams that carry calls: many of one caller, without what a call costs by itself.

``Steps`` in ``ps.proto`` describes the messages. The servicer's method is called for each with what the message is,
its frame, and the caller. It returns the answer's frame or, where that takes longer, something to await it from.
Those answers are sent when they are ready: no short call waits for a long one. These streams are gRPC's;
``served_sockets`` has those over sockets of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.rpc.errors import answer_to
from elasticdl_runtime.rpc.framing import Frame, FrameBytes, as_message, frame_mark

ACCEPTED = "stream-accepted"
"""What the server's initial metadata has if it serves the stream."""
OutgoingFrame = Frame | bytes
Behaviour = Callable[[int, FrameBytes, Any], OutgoingFrame | Awaitable[OutgoingFrame]]


def begin_answer(
    method: str, behaviour: Behaviour, message: FrameBytes, caller: Any
) -> tuple[int, int, OutgoingFrame | Awaitable[OutgoingFrame]]:
    """Has a message answered: the status, its number, and the answer or what to await it from."""
    number = 0
    try:
        what, number = frame_mark(message)
        return 0, number, behaviour(what, message, caller)
    except Exception as error:
        status, details = refusal(method, error)
        return status, number, details


async def awaited_answer(method: str, awaited: Awaitable[OutgoingFrame]) -> tuple[int, OutgoingFrame]:
    """The status and the answer that takes longer."""
    try:
        return 0, await awaited
    except Exception as error:
        return refusal(method, error)


def refusal(method: str, error: Exception) -> tuple[int, Frame]:
    """The status and the answer that say what was raised."""
    status, details = answer_to(error, method)
    return int(status.value[0]), Frame(details.encode())


def stopping() -> UnavailableError:
    """The error that ends streams when their server stops."""
    return UnavailableError("the server is stopping", fix="it is tried again")


class ServedStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        self._open: set[_ServedStream] = set()
        self._ended = False

    async def serve(
        self, context: grpc.aio.ServicerContext, method: str, behaviour: Behaviour, authenticate: Callable[[], Any]
    ) -> None:
        """Serves one stream until its caller, its token or the server ends it.

        Args:
            context: of the call that is the stream.
            method: the RPC's name.
            behaviour: answers one message.
            authenticate: returns the caller, or raises if the stream's token is not, or no longer, good.

        Raises:
            UnauthenticatedError: the token is not good, or has expired.
            UnavailableError: the server stops.
        """
        stream = _ServedStream(context, method, behaviour, authenticate)
        self._open.add(stream)
        if self._ended:
            stream.end()
        try:
            await stream.serve()
        finally:
            self._open.discard(stream)

    def end(self) -> None:
        """Ends all streams, at once where no call is under way, and those that are opened from now on."""
        self._ended = True
        for stream in self._open:
            stream.end()


class _ServedStream:
    """One stream."""

    def __init__(
        self, context: grpc.aio.ServicerContext, method: str, behaviour: Behaviour, authenticate: Callable[[], Any]
    ) -> None:
        self._context, self._method = context, method
        self._behaviour, self._authenticate = behaviour, authenticate
        self._writing = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[Any] | None = None
        self._ended = False

    def end(self) -> None:
        """Takes no further calls."""
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()

    async def serve(self) -> None:
        """Serves it to its end; see ``ServedStreams.serve``."""
        self._authenticate()
        if not self._ended:
            await self._context.send_initial_metadata(((ACCEPTED, "1"),))
        try:
            while (message := await self._next()) is not grpc.aio.EOF:
                await self._take(message, self._authenticate())
            if self._later:
                await asyncio.wait(self._later)
        finally:
            for task in self._later:
                task.cancel()
        if self._ended:
            raise stopping()

    async def _next(self) -> Any:
        """The next message, or none."""
        if self._ended:
            return grpc.aio.EOF
        self._reading = asyncio.current_task()
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if self._reading is None or not self._ended or self._reading.uncancel():
                raise
            return grpc.aio.EOF
        finally:
            self._reading = None

    async def _take(self, message: bytes, caller: Any) -> None:
        status, number, answer = begin_answer(self._method, self._behaviour, message, caller)
        if isinstance(answer, Frame | bytes):
            await self._answer(status, number, answer)
            return
        task = asyncio.ensure_future(self._answer_later(number, answer))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _answer_later(self, number: int, awaited: Awaitable[OutgoingFrame]) -> None:
        status, answer = await awaited_answer(self._method, awaited)
        await self._answer(status, number, answer)

    async def _answer(self, status: int, number: int, frame: OutgoingFrame) -> None:
        message = as_message(frame, status, number)
        try:
            # gRPC takes one message at a time.
            async with self._writing:
                await self._context.write(message)
        except grpc.aio.BaseError:
            return  # the caller is gone; reading tells so as well
