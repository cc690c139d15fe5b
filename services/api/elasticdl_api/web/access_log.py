"""The log of requests: one JSON line each, in files of their own that are rotated.

It says who asked for what, and how that ended. The query is left out, and so are headers and bodies: a token or what
somebody searches for must not come to lie in a log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import queue
import time
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticdl_api.web.auth import Identity
from elasticdl_api.web.request_ids import current_request_id
from elasticdl_runtime.tokens import Claims

FILE_BYTES = 32 << 20
FILES = 4
_WAITING = 20_000
_PATH_CHARACTERS = 500
_CLOSED_BY_CLIENT = 499
_LAST_S = 10.0


class AccessLog:
    """Lines into a file that is rotated, written by a thread of its own: no request waits for the disk.

    When the disk is so slow that very many lines wait, further ones are left out; the next line says how many.

    Args:
        path: the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = _PrivateFile(path, maxBytes=FILE_BYTES, backupCount=FILES - 1)
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._lines: queue.Queue[Any] = queue.Queue(_WAITING)
        self._listener = _PatientListener(self._lines, handler)
        self._handler = handler
        self._left_out = 0
        self._closed = False
        self._listener.start()

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line."""
        if self._left_out:
            line["left_out_before"] = self._left_out
        text = json.dumps(line, separators=(",", ":"))
        record = logging.LogRecord("access", logging.INFO, "", 0, text, None, None)
        try:
            self._lines.put_nowait(record)
            self._left_out = 0
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Writes what waits, and closes the file; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self._listener.stop()
            self._handler.close()


class _PatientListener(logging.handlers.QueueListener):
    """Its end waits for room in the queue."""

    def enqueue_sentinel(self) -> None:
        """Says that nothing follows."""
        self.queue.put(None, timeout=_LAST_S)  # type: ignore[attr-defined]


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Its files are for their owner alone: they say who did what."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")


class AccessLogMiddleware:
    """ASGI middleware that logs each request when it has ended.

    Args:
        app: handles the request.
        log: takes the lines; None for no log.
    """

    def __init__(self, app: ASGIApp, log: AccessLog | None) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or self._log is None:
            await self._app(scope, receive, send)
            return
        # Layers below may handle a copy of the scope; its state is the same object.
        state = scope.setdefault("state", {})
        began, status, size = time.monotonic(), 0, 0

        async def observe(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, observe)
        except asyncio.CancelledError:
            status = status or _CLOSED_BY_CLIENT
            raise
        except BaseException:
            status = status or 500
            raise
        finally:
            client = scope.get("client")
            self._log.write(
                {
                    "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "method": scope["method"][:20],
                    "path": f"{state.get('version', '')}{scope['path']}"[:_PATH_CHARACTERS],
                    "route": state.get("route", ""),
                    "status": status,
                    "ms": round((time.monotonic() - began) * 1000, 1),
                    "bytes": size,
                    **_who(state.get("identity")),
                    "client": client[0] if client else "",
                    "request_id": current_request_id(),
                }
            )


def _who(identity: object) -> dict[str, str | None]:
    if isinstance(identity, Identity):
        return {"user": identity.user, "namespace": identity.namespace, "token": identity.token_id}
    if isinstance(identity, Claims):
        return {"user": identity.owner, "namespace": None, "token": f"job:{identity.job_id}"}
    return {"user": "", "namespace": None, "token": ""}
