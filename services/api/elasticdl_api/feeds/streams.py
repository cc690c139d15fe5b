"""A stream of server-sent events as a response, and how many of them there may be.

A stream costs one task that waits for its end, and its queue. What is told goes straight to the connection (`Push`);
a server that is not ours, and a test without one, have a task that takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from elasticdl_api.feeds.feed import Follower
from elasticdl_api.feeds.push import ALIVE, HEARTBEAT_S, Push
from elasticdl_api.web.credential_watch import watched
from elasticdl_api.web.problems import TooManyRequestsError, problem_response
from elasticdl_api.web.wire import CONNECTION, PUSHED, Wire
from elasticdl_core.errors import ElasticDLError, UnavailableError

RETRY_MS = 2000
"""Milliseconds after which a client comes again when its stream was cut."""
_TOO_SLOW = b": too slow; come again with the last id\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class StreamSlots:
    """Open streams: of one token, and in this process.

    Args:
        most: of all tokens together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """The number of streams that are open now."""
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
                    with watched(scope, follower.end):
                        await self._stream(follower, scope, receive, send)
        except ElasticDLError as error:
            if begun:
                raise
            await problem_response(error)(scope, receive, send)

    async def _stream(self, follower: Follower, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_piece(send, b"retry: %d\n\n" % RETRY_MS)
        connection = scope.get("state", {}).get(CONNECTION)
        push = Push(follower, connection) if isinstance(connection, Wire) else None
        if push is not None and push.begin():
            whole = await push.end()
            scope["state"][PUSHED] = push.pushed
        else:
            whole = await _take_all(follower, receive, send)
        if whole:
            await _send_piece(send, _TOO_SLOW if follower.overrun else b"", last=True)


async def _take_all(follower: Follower, receive: Receive, send: Send) -> bool:
    """Sends what comes until it ends; returns False when the client has left before."""
    gone = asyncio.create_task(_until_gone(receive))
    gone.add_done_callback(lambda _: follower.end())
    try:
        while (piece := await follower.take(HEARTBEAT_S * random.uniform(0.8, 1.2))) is not None:
            if gone.done():
                return False
            await _send_piece(send, piece or ALIVE)
        return not gone.done()
    finally:
        gone.cancel()


async def _send_piece(send: Send, piece: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": not last})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
