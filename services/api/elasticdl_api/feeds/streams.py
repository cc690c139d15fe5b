"""A stream of server-sent events as a response, and how many of them there may be.

A stream costs one task that waits, one that notices that the client went, and its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from elasticdl_api.feeds.feed import Follower
from elasticdl_api.web.problems import TooManyRequestsError, problem_response
from elasticdl_core.errors import ElasticDLError, UnavailableError

HEARTBEAT_S = 12.0
"""Seconds without a message after which a comment is sent, so that both sides know that the other lives. Clients of
ours take 30 s of silence for a broken connection."""
RETRY_MS = 2000
"""Milliseconds after which a client comes again when its stream was cut."""
STALL_S = 30.0
"""Seconds that a client may leave what it was sent lying, before its stream is cut."""
_ALIVE = b": alive\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class StreamSlots:
    """How many streams are open: of one token, and in this process.

    Args:
        most: of all tokens together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many streams are open now."""
        return self._open.total()

    @contextlib.contextmanager
    def taken(self, holder: str, most: int | None) -> Iterator[None]:
        """A slot, as long as the block lasts.

        Args:
            holder: names the token.
            most: of that token; None for no limit but that of the process.

        Raises:
            TooManyRequestsError: the token has as many as it may.
            UnavailableError: the process has.
        """
        if most is not None and self._open[holder] >= most:
            raise TooManyRequestsError(
                f"this token has {most} streams open, as many as it may",
                fix="close one, or follow all jobs on one stream: GET /v1/events",
                retry_after_s=RETRY_MS // 1000,
            )
        if self.open >= self._most:
            raise UnavailableError(
                f"{self._most} streams are open, as many as this process serves", fix="try again in a moment"
            )
        self._open[holder] += 1
        try:
            yield
        finally:
            self._open[holder] -= 1
            if not self._open[holder]:
                del self._open[holder]


Slot = Callable[[], AbstractContextManager[None]]
"""Takes a slot as long as a block lasts, or raises."""


class EventStreamResponse(Response):
    """Sends what a follower gets, until its feed ends or the client goes.

    Args:
        follow: begins to follow; what it raises is sent as a problem.
        slot: taken as long as the stream is open.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        follow: Callable[[], AbstractAsyncContextManager[Follower]],
        slot: Slot,
    ) -> None:
        self._follow = follow
        self._slot = slot
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams."""
        begun = False
        try:
            with self._slot():
                async with self._follow() as follower:
                    begun = True
                    await self._stream(follower, receive, send)
        except ElasticDLError as error:
            if begun:
                raise
            await problem_response(error)(scope, receive, send)

    async def _stream(self, follower: Follower, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        gone.add_done_callback(lambda _: follower.end())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for piece in _pieces(follower):
                if gone.done():
                    return
                async with asyncio.timeout(STALL_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # the server closes a connection whose response is not complete
        finally:
            gone.cancel()


async def _pieces(follower: Follower) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    while (piece := await follower.take(HEARTBEAT_S * random.uniform(0.8, 1.2))) is not None:
        yield piece or _ALIVE
    if follower.overrun:
        yield b": too slow; come again with the last id\n\n"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
