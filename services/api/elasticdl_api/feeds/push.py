"""Writes SSE frames to the connections of followers: no task is woken for it."""

from __future__ import annotations

import asyncio
import random

from elasticdl_api.feeds.feed import Follower
from elasticdl_api.web.wire import Wire

HEARTBEAT_S = 12.0
"""Seconds without a message after which a comment is sent, so that both sides know that the other lives. Clients of
ours take 30 s of silence for a broken connection."""
ALIVE = b": alive\n\n"


class Push:
    """Writes the messages of a follower to a connection until they end or the client leaves.

    Who takes nothing has left, too: the connection is cut then (`web.wire`).

    Args:
        follower: whose messages they are.
        connection: on which the response has begun.

    Attributes:
        pushed: bytes of the body that were written.
    """

    def __init__(self, follower: Follower, connection: Wire) -> None:
        self.pushed = 0
        self._follower = follower
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._whole: asyncio.Future[bool] = self._loop.create_future()
        self._patience_s = HEARTBEAT_S * random.uniform(0.8, 1.2)
        self._last = self._loop.time()

    def begin(self) -> bool:
        """Begins with what waits; returns False where the connection cannot be written to."""
        if not self._connection.begin_push(self):
            return False
        self._connection.heartbeat_timer.add(self, self._patience_s)
        self._follower.attach(self)
        return True

    async def end(self) -> bool:
        """Waits for the end; returns whether there is somebody to be told of it."""
        try:
            return await self._whole
        finally:
            self._connection.end_push()
            self._follower.detach()
            self._connection.heartbeat_timer.remove(self)

    def offer(self, data: bytes) -> bool:
        """Writes some messages, unless the client has to take others first."""
        if not self._connection.push(data):
            return False
        self.pushed += len(data)
        self._last = self._loop.time()
        return True

    def beat(self) -> float:
        """Sends a sign of life after some silence; returns the seconds after which it may be time again."""
        left_s = self._last + self._patience_s - self._loop.time()
        if left_s <= 0:
            self.offer(ALIVE)
            left_s = self._patience_s
        return left_s

    def finish(self) -> None:
        """Nothing comes any more."""
        self._conclude(True)

    def writable(self) -> None:
        """The client has taken most of it."""
        self._follower.drain()

    def gone(self) -> None:
        """The client has left."""
        self._conclude(False)

    def _conclude(self, whole: bool) -> None:
        if not self._whole.done():
            self._whole.set_result(whole)
