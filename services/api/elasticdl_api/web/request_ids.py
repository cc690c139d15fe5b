"""The id of a request: in its answer, in its problem details, in the log of changes and in every line of the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9][-A-Za-z0-9._:+/=]{0,127}")
_current: ContextVar[str] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """The id of the request that is being handled; empty beyond requests."""
    return _current.get()


class RequestIdMiddleware:
    """ASGI middleware that names each request: as the caller does, or anew.

    A name that is not 1 to 128 plain characters is replaced: it goes into logs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        name = given.decode() if _WELL_FORMED.fullmatch(given) else secrets.token_hex(16)
        # Both live as long as the task that handles the request: its context is its own.
        _current.set(name)
        structlog.contextvars.bind_contextvars(request_id=name)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        await self._app(scope, receive, answer)
