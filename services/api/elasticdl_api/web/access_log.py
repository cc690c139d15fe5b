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
import threading
import time
from collections import deque
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticdl_api.web.auth import Identity
from elasticdl_api.web.request_ids import current_request_id
from elasticdl_api.web.wire import PUSHED
from elasticdl_runtime.tokens import Claims

FILE_BYTES = 32 << 20
FILES = 4
_WAITING = 20_000
_PATH_CHARACTERS = 500
_CLOSED_BY_CLIENT = 499
_LAST_S = 10.0
_GATHERED_S = 0.1


class AccessLog:
    """Lines into a file that is rotated, written by a thread of its own: no request waits for the disk.

    When the disk is so slow that very many lines wait, further ones are left out; the next line says how many.

    Args:
        path: the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._handler = _PrivateFile(path, maxBytes=FILE_BYTES, backupCount=FILES - 1)
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._lines: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._there = threading.Event()
        self._closed = threading.Event()
        self._writer = threading.Thread(target=self._write, name="access log", daemon=True)
        self._writer.start()

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line."""
        if len(self._lines) >= _WAITING:
            self._left_out += 1
            return
        if self._left_out:
            line["left_out_before"] = self._left_out
            self._left_out = 0
        self._lines.append(line)
        if not self._there.is_set():
            self._there.set()

    def close(self) -> None:
        """Writes what waits, and closes the file; a second time does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self._there.set()
            self._writer.join(_LAST_S)
            self._handler.close()

    def _write(self) -> None:
        """Writes what has gathered, some times a second: a thread that is woken for each line costs every request."""
        while True:
            self._there.wait()
            ending = self._closed.wait(_GATHERED_S)
            self._there.clear()
            while self._lines:
                self._handler.handle(logging.makeLogRecord({"msg": self._next_lines()}))
            if ending:
                return

    def _next_lines(self) -> str:
        """Some of the lines that wait, as much as is written at once."""
        found, size = [], 0
        while self._lines and size < FILE_BYTES // 64:
            found.append(json.dumps(self._lines.popleft(), separators=(",", ":")))
            size += len(found[-1])
        return "\n".join(found)


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
                    "bytes": size + state.get(PUSHED, 0),
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
