"""Representations for a GET: entity tags, 304, gzip.

The tag of a body is a strong hash of it, unless the route gave one; compressed it is another one (``-gzip``). Streams
and files are passed on as they come. Answers are compressed only where they are read, so that nothing that a caller
sends stands beside a secret (BREACH): a token is shown once, in the answer to a POST.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COMPRESSED_FROM = 1024
"""Bytes below which compressing is not worth it."""
BESIDE_LOOP_FROM = 64 << 10
"""Bytes from which compressing goes to a thread."""
_LEVEL = 4
_COMPRESSIBLE = ("application/json", "text/", "application/problem+json")
_SUFFIX = "-gzip"
_QVALUE = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
"""RFC 9110, section 12.4.2."""
_NOT_IN_304 = ("content-length", "content-type", "content-encoding")


def entity_tag(body: bytes) -> str:
    """A strong entity tag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def plain_tags(header: str) -> list[str]:
    """The tags that a header lists, as those of what is not compressed; comparison is weak."""
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return [tag.removesuffix(f'{_SUFFIX}"') + '"' if tag.endswith(f'{_SUFFIX}"') else tag for tag in tags if tag]


def accepts_gzip(header: str) -> bool:
    """Whether a client takes gzip."""
    return bool(_weight(header, "gzip", "*"))


def wants_events(header: str) -> bool:
    """Whether a client asks for server-sent events in its ``Accept``, by name and rather than for JSON (RFC 9110)."""
    events = _weight(header, "text/event-stream")
    return bool(events) and events >= _weight(header, "application/json")


def _weight(header: str, *names: str) -> float:
    """The weight that a header gives to what has one of some names, the first of them that it has; 0 for none."""
    weights: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        given = next((part[2:].strip() for part in parameters if part.startswith("q=")), "1")
        weights.setdefault(name, float(given) if _QVALUE.fullmatch(given) else 1.0)
    return next((weights[name] for name in names if name in weights), 0.0)


class RepresentationMiddleware:
    """ASGI middleware that tags the answers to GET, compresses them, and leaves out those that the caller has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and scope["method"] == "GET":
            await self._app(scope, receive, _Answer(Headers(scope=scope), send).take)
        else:
            await self._app(scope, receive, send)


class _Answer:
    """One answer, held back until it is known whether it is sent as a whole."""

    def __init__(self, request: Headers, send: Send) -> None:
        self._request = request
        self._send = send
        self._start: Message | None = None

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is None or start["status"] != 200:
            await self._pass_on(start, message)
            return
        headers = MutableHeaders(scope=start)
        whole = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        if whole and "etag" not in headers and "no-store" not in headers.get("cache-control", ""):
            headers["ETag"] = entity_tag(body)
        if "etag" in headers:
            headers.setdefault("Cache-Control", "private, no-cache")
        zips = whole and _is_compressible(headers, body)
        if zips:
            headers.add_vary_header("Accept-Encoding")
            zips = accepts_gzip(self._request.get("accept-encoding", ""))
        if zips and "etag" in headers:
            headers["ETag"] = headers["etag"].removesuffix('"') + f'{_SUFFIX}"'
        if self._is_known(headers.get("etag", "")):
            # A route that goes on to send its body is not listened to.
            self._send, send = _ignore, self._send
            for name in _NOT_IN_304:
                del headers[name]
            await send({**start, "status": 304})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if zips:
            message = {**message, "body": await _compress(headers, body)}
        await self._pass_on(start, message)

    def _is_known(self, tag: str) -> bool:
        wanted = self._request.get("if-none-match")
        if wanted is None or not tag:
            return False
        return wanted.strip() == "*" or _plain(tag) in plain_tags(wanted)

    async def _pass_on(self, *messages: Message | None) -> None:
        for message in messages:
            if message is not None:
                await self._send(message)


def _plain(tag: str) -> str:
    return plain_tags(tag)[0]


def _is_compressible(headers: MutableHeaders, body: bytes) -> bool:
    kind = headers.get("content-type", "")
    return len(body) >= COMPRESSED_FROM and kind.startswith(_COMPRESSIBLE) and "content-encoding" not in headers


async def _compress(headers: MutableHeaders, body: bytes) -> bytes:
    if len(body) < BESIDE_LOOP_FROM:
        zipped = gzip.compress(body, _LEVEL, mtime=0)
    else:
        zipped = await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(zipped))
    return zipped


async def _ignore(_message: Message) -> None:
    return None
