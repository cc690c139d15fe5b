"""Bodies that are sent piece by piece. What they come from is opened in the response, and closed with it.

Between a route and the sending of what it returns a request can break off, and so it can before the first piece is
asked for: a generator that was never begun closes nothing. So a route opens nothing that must be closed; it says how.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from elasticdl_api.web.credential_watch import watched
from elasticdl_runtime.lifecycle import end_all, in_thread


@dataclass(frozen=True)
class Body:
    """The body to send.

    Args:
        pieces: the content.
        media_type: its type.
        headers: of the answer, beside its type.
    """

    pieces: AsyncIterator[bytes]
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


Opening = Callable[[], AbstractAsyncContextManager[Body]]
"""Opens a body as long as a block lasts; what it raises is the answer."""


class StreamedResponse(Response):
    """Sends a body until its end, until the client goes, or until the process stops; then it is closed, always.

    Args:
        opening: opens the body and closes it.
        until: ends the body early where it is set; so does, then, a credential that is not valid any more.
        status_code: of the answer.
    """

    def __init__(self, opening: Opening, *, until: asyncio.Event | None = None, status_code: int = 200) -> None:
        self._opening = opening
        self._until = until
        self.status_code = status_code
        self.background = None
        self.init_headers({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams."""
        refused = asyncio.Event()
        async with self._opening() as body:
            self.media_type = body.media_type
            self.init_headers(body.headers)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.create_task(_send_pieces(body.pieces, send))
            waiting: list[asyncio.Task[Any]] = [asyncio.create_task(_until_gone(receive))]
            if self._until is not None:
                waiting += [asyncio.create_task(self._until.wait()), asyncio.create_task(refused.wait())]
            try:
                with watched(scope, refused.set) if self._until is not None else contextlib.nullcontext():
                    await asyncio.wait([sending, *waiting], return_when=asyncio.FIRST_COMPLETED)
                gone = waiting[0].done()
                whole = sending.done()
            finally:
                # Before the body is closed: they may read it.
                await end_all(sending, *waiting)
            if whole:
                sending.result()
        if not gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@contextlib.asynccontextmanager
async def opened_file(opening: Callable[[], int]) -> AsyncGenerator[int]:
    """An open file as long as the block lasts.

    Args:
        opening: opens it, in a thread; returns its descriptor.
    """
    descriptor = await in_thread(opening, abandon=os.close)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def read_in_threads(pieces: Generator[bytes]) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Yields a generator's items, computed in threads; it is closed at the end of the block.

    Args:
        pieces: blocks where it reads.
    """

    async def all_pieces() -> AsyncGenerator[bytes]:
        while (piece := await in_thread(lambda: next(pieces, None))) is not None:
            yield piece

    try:
        async with contextlib.aclosing(all_pieces()) as read:
            yield read
    finally:
        await in_thread(pieces.close)


async def _send_pieces(pieces: AsyncIterator[bytes], send: Send) -> None:
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
