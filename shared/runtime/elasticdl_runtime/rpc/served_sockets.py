"""The server's side of streams over sockets of this machine; ``served_stream`` has the rules, which are the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.rpc.beside import listen_beside, path_beside
from elasticdl_runtime.rpc.framing import Frame, decode_frame, pieces_of
from elasticdl_runtime.rpc.message_socket import MessageSocket
from elasticdl_runtime.rpc.served_stream import (
    Behaviour,
    OutgoingFrame,
    awaited_answer,
    begin_answer,
    refusal,
    stopping,
)

_log = structlog.get_logger(__name__)
_MOST_UNSENT = 64 << 20
"""Of answers that somebody has asked for and does not take."""
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
_GREETING_BYTES = 64 << 10
_GREETING_S = 10.0
"""So much, and for so long, is taken of somebody of whom nothing is known yet."""


class ServedSockets:
    """The sockets of calls of one server.

    Args:
        methods: what answers the messages, by the RPC's name.
        authenticate: turns a token into the caller, or raises.
        most_bytes: the longest message that is taken.
    """

    def __init__(self, methods: Mapping[str, Behaviour], authenticate: Callable[[str], Any], most_bytes: int) -> None:
        self._methods, self._authenticate, self._most_bytes = methods, authenticate, most_bytes
        self._listeners: list[tuple[socket.socket, Path]] = []
        self._open: set[_ServedSocket] = set()
        self._ended = False

    def listen(self, address: str) -> None:
        """Takes connections beside an address, if it is one of this machine's files and there are such methods."""
        try:
            listener = listen_beside(address) if self._methods else None
        except OSError as error:
            _log.warning("streams go over gRPC alone", address=address, reason=str(error))
            return
        if listener is not None:
            self._listeners.append((listener, Path(str(path_beside(address)))))
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def end(self) -> None:
        """Ends all streams, at once where no call is under way, and those that are opened from now on."""
        self._ended = True
        for one in self._open:
            one.end()

    async def close(self, grace: float | None) -> None:
        """Takes no further calls, and waits for those under way; see ``service.Server.stop``."""
        self.end()
        for listener, path in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        self._listeners.clear()
        present = list(self._open)
        gone = [asyncio.ensure_future(one.gone.wait()) for one in present]
        if gone:
            await asyncio.wait(gone, timeout=grace or 0)
        for one in present:
            one.cut()
        await asyncio.gather(*gone)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _NOTHING_LEFT:
                self._pause(listener, error)
            return  # who came has gone, or there are too many files: gRPC is there as well
        made = _ServedSocket(connection, self._methods, self._authenticate, self._most_bytes, self._open)
        self._open.add(made)
        if self._ended:
            made.end()

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Takes nobody for a while: whoever waits would be refused again in each turn of the event loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(_PAUSE_S, self._resume, listener)
        _log.warning("nobody can be taken", reason=str(error), fix="raise the limit of open files (ulimit -n)")

    def _resume(self, listener: socket.socket) -> None:
        if any(one is listener for one, _ in self._listeners):
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)


class _ServedSocket:
    """One connection.

    Attributes:
        gone: set when it is closed.
    """

    def __init__(
        self,
        connection: socket.socket,
        methods: Mapping[str, Behaviour],
        authenticate: Callable[[str], Any],
        most_bytes: int,
        among: set[_ServedSocket],
    ) -> None:
        self.gone = asyncio.Event()
        self._methods, self._authenticate, self._among = methods, authenticate, among
        self._method, self._token = "", ""
        self._behaviour: Behaviour | None = None
        self._later: set[asyncio.Task[None]] = set()
        self._ended = False
        self._most_bytes = most_bytes
        self._messages = MessageSocket(connection, self._take, self._has_gone, _GREETING_BYTES, _MOST_UNSENT)
        self._patience = asyncio.get_running_loop().call_later(_GREETING_S, self._lose_patience)

    def end(self) -> None:
        """Takes no further calls, and ends when those under way have been answered."""
        self._ended = True
        self._messages.take_no_more()
        if self._behaviour is None:
            self._refuse(stopping())
        elif not self._later:
            self._messages.finish()

    def cut(self) -> None:
        """Ends at once."""
        self._messages.close()

    def _take(self, message: memoryview) -> None:
        if self._behaviour is None:
            self._greet(message)
            return
        try:
            caller = self._authenticate(self._token)
        except Exception:
            # The next stream is told why.
            self.cut()
            return
        # What is read is not to be written to: kernels are compiled for one of the two.
        status, number, answer = begin_answer(self._method, self._behaviour, message.toreadonly(), caller)
        if isinstance(answer, Frame | bytes):
            self._messages.send(pieces_of(answer, status, number))
            return
        task = asyncio.ensure_future(self._answer_later(number, answer))
        self._later.add(task)
        task.add_done_callback(self._has_answered)

    def _greet(self, message: memoryview) -> None:
        try:
            said = json.loads(decode_frame(message)[0])
            method, self._token = str(said["method"]), str(said["token"])
        except (InvalidInputError, ValueError, KeyError, TypeError):
            self._refuse(InvalidInputError("the first message is no greeting", fix="send what ps.proto describes"))
            return
        try:
            self._authenticate(self._token)
            if method not in self._methods:
                raise InvalidInputError(f"there are no calls of {method!r}", fix="send what ps.proto describes")
        except Exception as error:
            self._method = method
            self._refuse(error)
            return
        self._method, self._behaviour = method, self._methods[method]
        self._messages.most_bytes = self._most_bytes
        self._patience.cancel()
        self._messages.send(Frame(b"").pieces())

    def _lose_patience(self) -> None:
        self._refuse(InvalidInputError("no greeting came in time", fix="send what ps.proto describes"))

    def _refuse(self, error: Exception) -> None:
        status, details = refusal(self._method, error)
        self._messages.send(details.pieces(status))
        self._messages.finish()

    async def _answer_later(self, number: int, awaited: Awaitable[OutgoingFrame]) -> None:
        status, answer = await awaited_answer(self._method, awaited)
        self._messages.send(pieces_of(answer, status, number))

    def _has_answered(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        if self._ended and not self._later:
            self._messages.finish()

    def _has_gone(self) -> None:
        self._patience.cancel()
        for task in self._later:
            task.cancel()
        self._among.discard(self)
        self.gone.set()
