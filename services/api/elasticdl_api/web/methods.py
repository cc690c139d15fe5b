"""HEAD for every GET, and the methods that a path takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """ASGI middleware that answers HEAD as GET, without the body.

    Args:
        app: handles the request as a GET. It is cancelled as soon as its body begins: some bodies have no end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not begun.is_set():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                begun.set()

        handling = asyncio.ensure_future(self._handle({**scope, "method": "GET"}, receive, answer))
        waiting = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({handling, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                handling.result()
        finally:
            waiting.cancel()
            if not handling.done():
                handling.cancel()
                await asyncio.wait({handling})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def allowed_methods(request: Request) -> str:
    """The methods that the path of a request takes, for the header ``Allow``; empty when there is no such path."""
    routers: Iterable[APIRouter] = request.app.state.routers
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    found: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted({*found, "OPTIONS"})) if found else ""
