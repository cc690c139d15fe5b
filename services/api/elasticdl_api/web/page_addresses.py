"""Addresses that a person opens in a browser: a job's is that of its page, where a program has its data."""

from __future__ import annotations

import re

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from elasticdl_api.dashboard.files import PAGE

_SHOWN = re.compile(r"/jobs(?:/[a-z0-9-]{1,80})?")


class PageAddresses:
    """ASGI middleware that sends a browser from ``/jobs`` and ``/jobs/ID`` to what the page shows of them.

    Only the page knows who looks at it, so this comes before any token is asked for, and says nothing of jobs.

    Args:
        app: answers all other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or scope["method"] != "GET" or not _SHOWN.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
        if b"text/html" not in accepted.lower():
            await self._app(scope, receive, send)
            return
        headers = {"Vary": "Accept", "Cache-Control": "no-store"}
        await RedirectResponse(f"{PAGE}#{scope['path']}", 303, headers)(scope, receive, send)
