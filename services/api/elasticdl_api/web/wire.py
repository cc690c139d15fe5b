"""Connections as the api takes them: how large and how slow the head of a request may be, and from whom how many.

Uvicorn's own protocols, with httptools as with h11, wait for ever for a head that comes byte by byte, and for a
client that takes nothing of its answer. Bodies of requests are bounded in ``bodies``.
"""

from __future__ import annotations

import functools
import json
from asyncio import AbstractEventLoop, BaseTransport, TimerHandle, WriteTransport
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from elasticdl_api.web.heartbeat_timer import HeartbeatTimer
from elasticdl_api.web.problems import MEDIA_TYPE, problem_content

HEAD_BYTES = 64 << 10
"""Bytes that a request has before its body, at most."""
CONNECTION = "connection"
"""What the connection of a request is called in the state of its scope."""
PUSHED = "pushed_bytes"
"""Where that state says how many bytes of the answer went straight to the connection."""
JOINED_BYTES = 64 << 10
"""Bytes of a body that go out in one piece with its head, at most: joining copies them."""
STALL_S = 30.0
"""Seconds in which a client takes something of what waits for it, or its connection is cut."""


@dataclass
class WireLimits:
    """Limits on connections, and on the number of strangers.

    Attributes:
        head_s: seconds in which the head of a request must be there, from its first byte or the connection's begin.
        strangers: connections from one address that have not shown a valid token yet.
        present: how many of these there are, by address.
        beats: calls those who push from time to time.
    """

    head_s: float
    strangers: int
    present: Counter[str] = field(default_factory=Counter)
    heartbeat_timer: HeartbeatTimer = field(default_factory=HeartbeatTimer)


class Pushing(Protocol):
    """A writer of the body of a response straight to its connection."""

    def writable(self) -> None:
        """The connection takes bytes again."""

    def gone(self) -> None:
        """The client has left."""


class JoinedWrites:
    """A connection as an answer sees it: what is written without waiting in between goes out in one piece.

    Uvicorn writes the head of an answer and then its body. Each is a call of the system and wakes the client: of an
    ordinary answer, a fifth of what it costs.

    Args:
        transport: the connection.
        loop: has the next turn, in which what is held goes out at the latest.
    """

    def __init__(self, transport: WriteTransport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        """Sends something; what is the first waits for the next, or for the next turn of the loop."""
        if not self._begun:
            self._begun, self._head = True, data
            self._loop.call_soon(self.flush)
        elif self._head is not None and len(data) <= JOINED_BYTES:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Sends what waits, now."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        """Closes the connection when all is sent."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()


class Wire(HttpToolsProtocol):
    """A connection.

    The body of a long response may be pushed: written as it comes to be, without a task that is woken for it and
    without the layers around the routes, which have seen its beginning and will see its end.

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
        self._answering: RequestResponseCycle | None = None
        self._joined: JoinedWrites | None = None
        self._pushing: Pushing | None = None
        self._stall_timer: TimerHandle | None = None

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
        self._stop_stall_timer()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            # Uvicorn tells the last request that came, which may be one that waits behind this one.
            self._answering.disconnected = True
            self._answering.message_event.set()
        pushing, self._pushing = self._pushing, None
        if pushing is not None:
            pushing.gone()

    def pause_writing(self) -> None:
        """Has not taken what was written, so far."""
        super().pause_writing()
        self._watch_taking(-1)

    def resume_writing(self) -> None:
        """Has taken most of what was written."""
        super().resume_writing()
        self._stop_stall_timer()
        if self._pushing is not None:
            self._pushing.writable()

    @property
    def heartbeat_timer(self) -> HeartbeatTimer:
        """A timer that calls all who push on any connection."""
        return self._limits.heartbeat_timer

    def begin_push(self, pushing: Pushing) -> bool:
        """Lets the body of the response that is under way be pushed; returns whether that can be.

        It cannot where the response has not begun, has a known length, or is to have no body at all.
        """
        answer = self._answering
        if answer is None or answer.disconnected or not answer.response_started or answer.response_complete:
            return False
        if not answer.chunked_encoding or answer.scope["method"] != "GET":
            return False
        if self._joined is not None:
            self._joined.flush()
        self._pushing = pushing
        return True

    def push(self, data: bytes) -> bool:
        """Writes a piece of the body; returns False, and does nothing, while enough waits to be taken."""
        if self.flow.write_paused:
            return False
        self.transport.write(_chunk(data))
        return True

    def end_push(self) -> None:
        """The rest of the body comes as that of other responses."""
        self._pushing = None

    def _watch_taking(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting == before:
            self.transport.abort()  # to close it would wait until everything is taken
        else:
            self._stall_timer = self.loop.call_later(STALL_S, self._watch_taking, waiting)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.transport = self._joined = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Expects the next request, once all of this answer is on its way."""
        if self._joined is not None:
            self._joined.flush()
        super().on_response_complete()

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


@functools.lru_cache(maxsize=2)
def _chunk(data: bytes) -> bytes:
    """A piece of a body as it travels; made once for all who are sent the same one after the other."""
    return b"%x\r\n%b\r\n" % (len(data), data)
