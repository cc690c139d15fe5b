"""Connections as the api takes them: how large and how slow the head of a request may be, and from whom how many.

Uvicorn's own protocols, with httptools as with h11, wait for ever for a head that comes byte by byte. Bodies are
bounded in ``bodies``.
"""

from __future__ import annotations

import json
from asyncio import BaseTransport, TimerHandle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from elasticdl_api.web.problems import MEDIA_TYPE, problem_content

HEAD_BYTES = 64 << 10
"""Bytes that a request has before its body, at most."""
CONNECTION = "connection"
"""What the connection of a request is called in the state of its scope."""


@dataclass
class WireLimits:
    """What connections may do, and how many strangers there are.

    Attributes:
        head_s: seconds in which the head of a request must be there, from its first byte or the connection's begin.
        strangers: connections from one address that have not shown a valid token yet.
        present: how many of these there are, by address.
    """

    head_s: float
    strangers: int
    present: Counter[str] = field(default_factory=Counter)


class Wire(HttpToolsProtocol):
    """A connection.

    Args:
        limits: of all connections together.
        **options: what uvicorn gives.
    """

    def __init__(self, limits: WireLimits, **options: Any) -> None:
        super().__init__(**options)
        self.app_state = {**self.app_state, CONNECTION: self}
        self._limits = limits
        self._stranger = ""
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begins; refuses one stranger too many."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._stranger = self.client[0] if self.client else "?"
        self._limits.present[self._stranger] += 1
        if self._limits.present[self._stranger] > self._limits.strangers:
            self._refuse(503, "too_many_requests", "too many connections without a token", "try again later")
            return
        self._head_timer = self.loop.call_later(self._limits.head_s, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        self.prove()
        self._stop_timer()
        super().connection_lost(exc)

    def prove(self) -> None:
        """Takes note that whoever is at the other end has shown a valid token, or has left."""
        if self._stranger:
            self._limits.present[self._stranger] -= 1
            if not self._limits.present[self._stranger]:
                del self._limits.present[self._stranger]
            self._stranger = ""

    def data_received(self, data: bytes) -> None:
        """Takes some bytes."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head()
        elif self._head_bytes and self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_s, self._too_late)

    def on_headers_complete(self) -> None:
        """Handles the request, if its head is a good one."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_timer()
        if self.transport.is_closing():
            return
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
            self._refuse_head()
        elif sum(name == b"host" for name, _ in self.headers) != 1 and self.parser.get_http_version() == "1.1":
            self.send_400_response("the request has no Host header, or several")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body, unless its request was refused."""
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Expects the next head."""
        self._in_head = True
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP."""
        self._refuse(400, "malformed", msg, "send a well-formed request")

    def _too_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            detail = f"the head of the request did not come within {self._limits.head_s:g} s"
            self._refuse(408, "too_slow", detail, "send it at once")
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        self._refuse(431, "too_large", f"the head of the request is larger than {HEAD_BYTES} bytes", "send less")

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, code: str, detail: str, fix: str) -> None:
        """Answers, and closes the connection; where an answer is on its way, nothing may come in between."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps(problem_content(status, code, detail, fix)).encode()
            head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()
