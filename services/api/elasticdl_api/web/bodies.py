"""Bodies of requests, looked at before any route reads them: how large, how late, how deep and how many values.

What is too large is refused by its header, before a byte of it is read, and counted while it is read if it has none.
A refusal that leaves a body unread closes the connection, or the server would read the rest to throw it away.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticdl_api.web.json_bodies import BODY_LIMIT, JsonBounds, check_shape
from elasticdl_api.web.problems import MalformedError, TooLargeError, TooSlowError, problem_response
from elasticdl_core.errors import ElasticDLError
from elasticdl_runtime.bundles import MAX_ZIP_BYTES

MASTER_BODY_LIMIT = 64 << 20
"""Most bytes that a master sends at once: the done-marks of a large job."""
BODY_S = 30.0
"""Seconds in which a body that is held in memory must be there."""
PIECE_S = 30.0
"""Seconds in which the next piece of an upload must be there."""
UPLOAD_S = 600.0
"""Seconds in which the whole of an upload must be there."""
_PUBLIC = JsonBounds(depth=32, values=20_000)
_MASTERS = JsonBounds(depth=64, values=5_000_000)
_UPLOADS = "/bundles/"
_INTERNAL = "/internal/"


class BodyLimits:
    """ASGI middleware that refuses bodies which are too large, too slow or too deep.

    Args:
        app: is given the bodies that are not; those of uploads piece by piece, all others whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        upload = scope["method"] == "PUT" and path.startswith(_UPLOADS)
        limit = MAX_ZIP_BYTES if upload else MASTER_BODY_LIMIT if path.startswith(_INTERNAL) else BODY_LIMIT
        try:
            _check_length(scope, limit)
            if upload:
                receive = _in_time(receive)
            else:
                receive = await _whole(scope, receive, limit, _MASTERS if path.startswith(_INTERNAL) else _PUBLIC)
        except ElasticDLError as error:
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class UnreadBodies:
    """ASGI middleware that closes connections on which a body was left unread."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        unread = True

        async def watch() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and unread:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, watch, answer)


def has_body(scope: Scope) -> bool:
    """Whether something comes after the head of a request."""
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _check_length(scope: Scope, limit: int) -> None:
    length = Headers(scope=scope).get("content-length")
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise MalformedError(f"the Content-Length {length[:40]!r} is no number", fix="send a well-formed request")
    if len(length) > 18 or int(length) > limit:
        raise _too_large(limit)


async def _whole(scope: Scope, receive: Receive, limit: int, bounds: JsonBounds) -> Receive:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return _replay(message, receive)  # the client is gone
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise _too_slow(BODY_S) from None
    if "json" in Headers(scope=scope).get("content-type", "").lower():
        check_shape(body, bounds)
    return _replay({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _replay(message: Message, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return message

    return replayed


def _in_time(receive: Receive) -> Receive:
    latest = asyncio.get_running_loop().time() + UPLOAD_S

    async def in_time() -> Message:
        left = latest - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(PIECE_S, left)):
                return await receive()
        except TimeoutError:
            raise _too_slow(PIECE_S if left > PIECE_S else UPLOAD_S) from None

    ended = False

    async def guarded() -> Message:
        nonlocal ended
        if ended:
            return await receive()  # waits for the client to leave, however long that is
        message = await in_time()
        ended = not message.get("more_body", False)
        return message

    return guarded


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is larger than {limit} bytes", fix="send less; keep data out of specifications and model zoos"
    )


def _too_slow(seconds: float) -> TooSlowError:
    return TooSlowError(f"the body did not come within {seconds:g} s", fix="send it at once")
