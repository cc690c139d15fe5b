"""The client's side of a stream that carries calls; ``served_stream`` is the other side.

A stream is gRPC's, or a socket of its own on this machine (see ``beside``). What goes wrong with the stream goes
wrong with all calls under way on it, and the next call is to go over another.
"""

from __future__ import annotations

import abc
import asyncio
import json
import socket
from collections import deque
from collections.abc import Generator
from typing import Any

import grpc

from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_runtime.rpc.errors import from_number, from_status
from elasticdl_runtime.rpc.framing import NUMBERS, Frame, FrameBytes, as_message, decode_frame, frame_mark, pieces_of
from elasticdl_runtime.rpc.message_socket import MessageSocket
from elasticdl_runtime.rpc.served_stream import ACCEPTED


class StreamedCall:
    """A call under way. Awaiting it, any number of times, gives its response.

    Raises:
        ElasticDLError: when awaited: what the server raised, or UnavailableError.
    """

    __slots__ = ("_answer", "deadline")

    def __init__(self, deadline: float, answer: asyncio.Future[FrameBytes]) -> None:
        self.deadline = deadline
        self._answer = answer

    def __await__(self) -> Generator[Any, None, FrameBytes]:
        return self._answer.__await__()

    def cancel(self) -> None:
        """Gives the call up: its answer is dropped when it comes."""
        self._answer.cancel()

    def succeed(self, answer: FrameBytes) -> None:
        """Ends the call with its answer."""
        if not self._answer.done():
            self._answer.set_result(answer)

    def fail(self, error: ElasticDLError) -> None:
        """Ends the call without one."""
        if not self._answer.done():
            self._answer.set_exception(error)
            # Looked at, because whoever began several calls may have given up after the first.
            self._answer.exception()


class CallStream(abc.ABC):
    """One stream.

    Args:
        method: the RPC's name.
        token: that the stream was opened with.

    Attributes:
        token: as given.
        ended: whether calls can no longer be made on it.
    """

    def __init__(self, method: str, token: str) -> None:
        self.token = token
        self.ended = False
        self._method = method
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._calls: dict[int, StreamedCall] = {}
        self._accepted = self._retired = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    @abc.abstractmethod
    def gone(self) -> bool:
        """Whether nothing of it is left."""

    @abc.abstractmethod
    async def wait_until_gone(self) -> None:
        """Waits until nothing of it is left."""

    @abc.abstractmethod
    def _send(self, frame: Frame | bytes, what: int, number: int) -> None:
        """Sends a request as soon as the server has accepted the stream, or raises InvalidInputError."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Ends the stream from this side: all calls have been answered, and there will be no more."""

    @abc.abstractmethod
    def _cut(self) -> None:
        """Ends the stream at once."""

    def begin(self, what: int, frame: Frame | bytes, deadline_s: float) -> StreamedCall:
        """Begins a call.

        Args:
            what: tells the server which one it is.
            frame: the request.
            deadline_s: seconds until this call, and with it the stream, fails with UnavailableError.

        Raises:
            InvalidInputError: the request is no frame.
        """
        self._number = self._number % (NUMBERS - 1) + 1
        self._send(frame, what, self._number)
        call = StreamedCall(self._loop.time() + deadline_s, self._loop.create_future())
        self._calls[self._number] = call
        if self._timer is None or self._timer.when() > call.deadline:
            self._watch(call.deadline)
        return call

    def retire(self) -> None:
        """Ends the stream once the calls under way have been answered."""
        self._retired = True
        if not self._calls:
            self._finish()

    async def close(self, error: ElasticDLError) -> None:
        """Ends the stream, and what is under way on it with the error."""
        self._end(error)
        await self.wait_until_gone()

    def _take(self, message: FrameBytes) -> None:
        status, number = frame_mark(message)
        call = self._calls.pop(number, None)
        if call is None:
            return
        if status == 0:
            call.succeed(message)
        else:
            call.fail(self._refusal(status, message))
        if self._retired and not self._calls:
            self._finish()

    def _refusal(self, status: int, message: FrameBytes) -> ElasticDLError:
        details = decode_frame(message)[0].decode(errors="replace")
        return from_number(status, details, self._method)

    def _watch(self, deadline: float) -> None:
        """Has one timer go off at the first deadline, not one for each call: most calls are long over by then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        first = min((call.deadline for call in self._calls.values()), default=None)
        if first is None:
            return
        if first > self._loop.time():
            self._watch(first)
        else:
            self._end(UnavailableError(f"{self._method}: a deadline passed", fix="it is tried again"))

    def _end(self, error: ElasticDLError) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in self._calls.values():
            call.fail(error)
        self._calls.clear()
        self._cut()

    def _was_ended(self) -> UnavailableError:
        return UnavailableError(f"{self._method}: the stream was ended", fix="it is tried again")


class GrpcCallStream(CallStream):
    """A stream of gRPC: one task reads the answers, and one writes while there is something to write.

    Args:
        call: gRPC's, which was just begun.
        method: the RPC's name.
        token: that the stream was opened with.
    """

    def __init__(self, call: Any, method: str, token: str) -> None:
        super().__init__(method, token)
        self._call = call
        self._unsent: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._reader = self._loop.create_task(self._read(), name=f"answers to {method}")

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._reader.done()

    async def wait_until_gone(self) -> None:
        """Waits until nothing of it is left."""
        # Not cancelled: the end of the call ends them, when gRPC has let go of what they wait for.
        await asyncio.wait([task for task in (self._reader, self._writer) if task is not None])

    def _send(self, frame: Frame | bytes, what: int, number: int) -> None:
        self._unsent.append(as_message(frame, what, number))
        self._ensure_writer()

    def _finish(self) -> None:
        self._ensure_writer()

    def _cut(self) -> None:
        self._unsent.clear()
        self._call.cancel()

    def _ensure_writer(self) -> None:
        if self._writer is None:
            self._writer = self._loop.create_task(self._write(), name=f"requests of {self._method}")

    async def _write(self) -> None:
        try:
            if not self._accepted:
                if ACCEPTED not in await self._call.initial_metadata():
                    return  # nothing is sent, so that the reader is told why
                self._accepted = True
            while self._unsent:
                await self._call.write(self._unsent.popleft())
            if self._retired and not self._calls:
                await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return  # the stream is over, and its reader is told so
        finally:
            self._writer = None

    async def _read(self) -> None:
        error: ElasticDLError = self._was_ended()
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._take(message)
        except grpc.aio.AioRpcError as failure:
            error = self._reason(failure)
        except ElasticDLError as nonsense:
            error = nonsense
        finally:
            self._end(error)

    def _reason(self, failure: grpc.aio.AioRpcError) -> ElasticDLError:
        """The error of a stream's calls: what the server says if it refused it, otherwise passing.

        That is so although the server may have had its reasons, say an expired token: it has them again when the next
        stream is opened. Here they may not arrive, as gRPC puts an error of its own in their place if it is sending.
        """
        error = from_status(failure, self._method)
        return UnavailableError(error.message, fix="it is tried again") if self._accepted else error


class SocketCallStream(CallStream):
    """A stream over a socket of this machine: what is sent and received takes no task.

    The first message says who calls what, and its answer whether the server serves the stream.

    Args:
        connection: to the server's socket of calls.
        method: the RPC's name.
        token: that the stream is opened with.
        most_bytes: the longest answer that is taken.
    """

    def __init__(self, connection: socket.socket, method: str, token: str, most_bytes: int) -> None:
        super().__init__(method, token)
        self._gone = asyncio.Event()
        self._unsent: list[list[bytes | memoryview]] = []
        self._error: ElasticDLError | None = None
        self._messages = MessageSocket(connection, self._take_any, self._has_ended, most_bytes)
        self._messages.send(Frame(json.dumps({"method": method, "token": token}).encode()).pieces())

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._gone.is_set()

    async def wait_until_gone(self) -> None:
        """Waits until nothing of it is left."""
        await self._gone.wait()

    def _send(self, frame: Frame | bytes, what: int, number: int) -> None:
        pieces = pieces_of(frame, what, number)
        if self._accepted:
            self._messages.send(pieces)
        else:
            self._unsent.append([b"".join(pieces)])  # by then what the pieces are of may have changed

    def _finish(self) -> None:
        self._messages.finish()

    def _cut(self) -> None:
        self._unsent.clear()
        self._messages.close()

    def _take_any(self, message: memoryview) -> None:
        if self._accepted:
            self._take(message)
            return
        status, _ = frame_mark(message)
        if status:
            self._error = self._refusal(status, message)
            self._messages.close()
            return
        self._accepted = True
        for pieces in self._unsent:
            self._messages.send(pieces)
        self._unsent.clear()

    def _has_ended(self) -> None:
        self._end(self._error or self._was_ended())
        self._gone.set()
