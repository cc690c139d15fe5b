"""A connection to another member: messages with a tag, written and read without blocking and without copies."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from enum import IntEnum

_HEAD = struct.Struct("<B3xIIIIQ")
_TURN_BYTES = 8 << 20
"""So much is read from one link before the others have their turn."""
_BUFFER_BYTES = 4 << 20
_LONGEST = 1 << 38
_PIECES_AT_ONCE = 8
_TLS_BYTES = 64 << 10


class Kind(IntEnum):
    """Kinds of messages."""

    BEAT = 0
    ABORT = 1
    LEAVE = 2
    READY = 3
    DONE = 4
    PARTIAL_SUM = 5
    CHUNK = 6
    GATHER = 7
    BROADCAST = 8
    GRANT = 9
    NOTE = 10
    PIECE = 11
    RECEIPT = 12
    STORE = 13


Tag = tuple[Kind, int, int, int]
"""The kind of a message, and three numbers whose meaning is its kind's: operation, bucket and partial sum mostly."""
Place = Callable[[Tag, int], memoryview]
"""Gives the memory for a message of a length."""
Arrived = Callable[[Tag, int, memoryview], None]
"""Takes a message: its tag, its check number and its payload."""


class LinkEndedError(Exception):
    """The other side is gone, or what it sends is no message."""


class _Outgoing:
    """A message that is to be written, or was in part."""

    __slots__ = ("begun", "pieces", "sent")

    def __init__(self, pieces: list[memoryview], sent: Callable[[], None] | None) -> None:
        self.pieces = pieces
        self.sent = sent
        self.begun = False


class Link:
    """One side of a connection. Only one thread may use it.

    Attributes:
        heard: when anything last came, by ``time.monotonic``.
        wrote: when anything was last written.
        left: whether the other side said that it leaves.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._tls = isinstance(connection, ssl.SSLSocket)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = connection
        self._unsent: deque[_Outgoing] = deque()
        self._head = memoryview(bytearray(_HEAD.size))
        self._wanted, self._got = self._head, 0
        self._message: tuple[Tag, int] | None = None
        self.heard = self.wrote = time.monotonic()
        self.left = False
        _open_links.add(self)

    def fileno(self) -> int:
        """The socket's descriptor; -1 once closed."""
        return self._socket.fileno()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._unsent

    @property
    def has_more(self) -> bool:
        """Whether decrypted bytes wait that the descriptor does not tell of."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def queue(
        self, tag: Tag, payload: memoryview | bytes = b"", check: int = 0, sent: Callable[[], None] | None = None
    ) -> None:
        """Has a message written by ``flush``.

        Args:
            tag: what it is.
            payload: must not change until it was sent.
            check: a number that goes along.
            sent: called when all was given to the kernel.
        """
        head = _HEAD.pack(tag[0], tag[1], tag[2], tag[3], check, len(payload))
        pieces = [memoryview(head), memoryview(payload)] if len(payload) else [memoryview(head)]
        self._unsent.append(_Outgoing(pieces, sent))

    def drop_unsent(self) -> None:
        """Forgets the messages of which nothing was written."""
        while self._unsent and not self._unsent[-1].begun:
            self._unsent.pop()

    def flush(self) -> bool:
        """Writes what the kernel takes; returns whether that was all.

        Raises:
            LinkEndedError: the other side is gone.
        """
        while self._unsent:
            try:
                count = self._write()
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            except (OSError, ValueError) as error:
                raise LinkEndedError(str(error)) from error
            self.wrote = time.monotonic()
            for sent in self._advance(count):
                sent()
        return True

    def read(self, place: Place, arrived: Arrived) -> None:
        """Reads what is there, up to a limit.

        Raises:
            LinkEndedError: the other side is gone, or sent nonsense.
        """
        budget = _TURN_BYTES
        while budget > 0:
            try:
                count = self._socket.recv_into(self._wanted[self._got :])
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (OSError, ValueError) as error:
                raise LinkEndedError(str(error)) from error
            if count == 0:
                raise LinkEndedError("the connection was closed")
            self.heard = time.monotonic()
            budget -= count
            self._got += count
            if self._got == len(self._wanted):
                self._take(place, arrived)

    def end_writing(self) -> None:
        """Tells the other side that nothing more comes."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        """Closes the socket."""
        _open_links.discard(self)
        self._unsent.clear()
        self._socket.close()

    def _write(self) -> int:
        if self._tls:
            # OpenSSL wants to be given again what it could not write, so that this can no longer be dropped.
            self._unsent[0].begun = True
            return self._socket.send(self._unsent[0].pieces[0][:_TLS_BYTES])
        pieces: list[memoryview] = []
        for message in self._unsent:
            pieces += message.pieces
            if len(pieces) >= _PIECES_AT_ONCE:
                break
        return self._socket.sendmsg(pieces)

    def _advance(self, count: int) -> list[Callable[[], None]]:
        """Takes what was written off the messages; returns what is to be told of those that are whole."""
        told: list[Callable[[], None]] = []
        while count > 0:
            message = self._unsent[0]
            message.begun = True
            piece = message.pieces[0]
            if count < len(piece):
                message.pieces[0] = piece[count:]
                break
            count -= len(piece)
            message.pieces.pop(0)
            if not message.pieces:
                self._unsent.popleft()
                if message.sent is not None:
                    told.append(message.sent)
        return told

    def _take(self, place: Place, arrived: Arrived) -> None:
        if self._message is None:
            kind, a, b, c, check, length = _HEAD.unpack(self._head)
            if kind > Kind.STORE or length > _LONGEST:
                raise LinkEndedError("what came is no message")
            self._message = ((Kind(kind), a, b, c), check)
            if length:
                self._wanted, self._got = place(self._message[0], length), 0
                return
            payload = memoryview(b"")
        else:
            payload = self._wanted
        (tag, check), self._message = self._message, None
        self._wanted, self._got = self._head, 0
        arrived(tag, check, payload)

    def forget(self) -> None:
        """Closes a forked child's copy: while that was open, the parent's death would not end the connection."""
        self._socket.close()


_open_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _forget_in_child() -> None:
    for link in list(_open_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_in_child)
