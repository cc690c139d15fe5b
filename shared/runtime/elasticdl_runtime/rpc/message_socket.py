"""Messages over a socket of this machine, each behind its length: no task, and no copy beside the kernel's."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from elasticdl_core.errors import InvalidInputError

Pieces = Sequence[bytes | memoryview]
"""A message in pieces that are sent one after the other."""
_LENGTH_BYTES = 8
_BUFFER_BYTES = 4 << 20
_MOST_PIECES = 512
"""Of one call of the system, which takes 1,024."""


class MessageSocket:
    """Sends and receives messages, on the event loop that it is made on.

    Args:
        connection: a connected socket; this takes it over.
        take: called with each message, whose memory is its own.
        ended: called once, when no further message comes.
        most_bytes: the longest message that is taken.
        most_unsent: while more bytes wait to be sent nothing is read: whoever takes no answers may ask for no more of
            them. None for who asks: if both sides ceased to read, neither would ever go on.

    Attributes:
        most_bytes: the same; it may be changed between messages.
    """

    def __init__(
        self,
        connection: socket.socket,
        take: Callable[[memoryview], None],
        ended: Callable[[], None],
        most_bytes: int,
        most_unsent: int | None = None,
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._connection = connection
        self._take, self._ended, self.most_bytes = take, ended, most_bytes
        self._most_unsent = most_unsent
        self._loop = asyncio.get_running_loop()
        self._length = memoryview(bytearray(_LENGTH_BYTES))
        self._message: memoryview | None = None
        self._received = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._waits_to_send = self._finishing = self._closed = self._reads = self._deaf = False
        self._read(wanted=True)

    def send(self, message: Pieces) -> None:
        """Sends a message after those before it. Its pieces may change once this has returned.

        Nothing is sent, and nothing said, when the other side is gone: ``ended`` tells so.
        """
        if self._closed or self._finishing:
            return
        pieces = [memoryview(piece).cast("B") for piece in message if len(piece)]
        length = sum(map(len, pieces))
        whole = [memoryview(length.to_bytes(_LENGTH_BYTES, "little")), *pieces]
        rest = whole if self._unsent else self._sent_now(whole)
        if not rest:
            return
        # A copy: what the caller gave may change while it waits here.
        kept = memoryview(b"".join(rest))
        self._unsent.append(kept)
        self._unsent_bytes += len(kept)
        self._wait_to_send()

    def take_no_more(self) -> None:
        """Leaves what comes from now on alone."""
        self._deaf = True
        self._read(wanted=False)

    def finish(self) -> None:
        """Closes the socket once what waits has been sent; takes nothing more."""
        self._finishing = True
        self.take_no_more()
        if not self._unsent:
            self.close()

    def close(self) -> None:
        """Closes the socket at once."""
        if self._closed:
            return
        self._closed = True
        self.take_no_more()
        if self._waits_to_send:
            self._loop.remove_writer(self._connection)
        self._connection.close()
        self._unsent.clear()
        self._loop.call_soon(self._ended)

    def _sent_now(self, pieces: list[memoryview]) -> list[memoryview]:
        """Sends what the system takes at once; returns the rest."""
        while pieces:
            try:
                sent = self._connection.sendmsg(pieces[:_MOST_PIECES])
            except (BlockingIOError, InterruptedError):
                return pieces
            except OSError:
                self.close()
                return []
            at = 0
            while at < len(pieces) and sent >= len(pieces[at]):
                sent -= len(pieces[at])
                at += 1
            pieces = pieces[at:]
            if sent:
                pieces[0] = pieces[0][sent:]
        return pieces

    def _wait_to_send(self) -> None:
        if not self._waits_to_send:
            self._waits_to_send = True
            self._loop.add_writer(self._connection, self._send_more)
        if self._most_unsent is not None and self._unsent_bytes > self._most_unsent:
            self._read(wanted=False)

    def _send_more(self) -> None:
        rest = self._sent_now(list(self._unsent))
        if self._closed:
            return
        self._unsent = deque(rest)
        self._unsent_bytes = sum(map(len, rest))
        if rest:
            return
        self._waits_to_send = False
        self._loop.remove_writer(self._connection)
        if self._finishing:
            self.close()
        else:
            self._read(wanted=True)

    def _read(self, *, wanted: bool) -> None:
        """Begins or ceases to look for messages."""
        wanted = wanted and not self._deaf
        if wanted and not self._reads:
            self._loop.add_reader(self._connection, self._receive)
        elif not wanted and self._reads:
            self._loop.remove_reader(self._connection)
        self._reads = wanted

    def _receive(self) -> None:
        """Receives what has come, up to the end of a message: others on this loop have their turn then."""
        try:
            while not self._closed:
                if self._message is None:
                    self._receive_into(self._length)
                    if self._received < _LENGTH_BYTES:
                        continue
                    self._message, self._received = self._space(int.from_bytes(self._length, "little")), 0
                if self._received < len(self._message):
                    self._receive_into(self._message)
                if self._received == len(self._message):
                    message, self._message, self._received = self._message, None, 0
                    self._take(message)
                    return
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, EOFError, InvalidInputError):
            self.close()

    def _receive_into(self, space: memoryview) -> None:
        count = self._connection.recv_into(space[self._received :])
        if not count:
            raise EOFError
        self._received += count

    def _space(self, length: int) -> memoryview:
        if length > self.most_bytes:
            raise InvalidInputError(f"a message of {length} bytes is too long", fix="send what ps.proto describes")
        # Unlike a bytearray's, this memory is not set to zeros first.
        return np.empty(length, np.uint8).data
