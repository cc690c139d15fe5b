"""Limits on the rate of requests: token buckets, one for each token, one for each address whose tokens are not valid.

The headers are those of the IETF's draft (``draft-ietf-httpapi-ratelimit-headers``): ``RateLimit-Limit`` is what may
be asked at once, ``RateLimit-Remaining`` what is left, ``RateLimit-Reset`` the seconds until all is there again.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticdl_api.web.auth import Identity, credential_of, token_digest
from elasticdl_api.web.problems import TooManyRequestsError, problem_response

MOST_BUCKETS = 10_000
"""Callers that are remembered; the one who was not seen for longest is forgotten, and may ask as anew."""
KNOWN_TOKENS = 10_000
"""Tokens and sessions, valid when they were shown last, that are looked at even if their address failed too often."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A rate of requests.

    Attributes:
        per_s: requests a second, in the long run.
        at_once: requests in a burst.
    """

    per_s: float
    at_once: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """The requests that a caller may still make.

    Attributes:
        granted: whether this request is within the rate.
        limit: requests in a burst.
        remaining: those that are left.
        reset_s: seconds until all of them are there again.
        retry_after_s: seconds until the next one is; 0 if one is there.
    """

    granted: bool
    limit: int
    remaining: int
    reset_s: int
    retry_after_s: int


class TokenBuckets:
    """Counts requests by caller.

    Args:
        clock: seconds that only grow.
        most: callers that are remembered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, rate: RequestRate) -> Allowance:
        """Counts a request, if it is within the rate."""
        level = self._level(caller, rate)
        granted = level >= 1.0
        if granted:
            level -= 1.0
            self._levels[caller] = (level, self._clock())
            self._levels.move_to_end(caller)
            if len(self._levels) > self._most:
                self._levels.popitem(last=False)
        return _allowance(granted, level, rate)

    def look(self, caller: str, rate: RequestRate) -> Allowance:
        """Whether a request would be within the rate."""
        level = self._level(caller, rate)
        return _allowance(level >= 1.0, level, rate)

    def _level(self, caller: str, rate: RequestRate) -> float:
        level, at = self._levels.get(caller, (float(rate.at_once), 0.0))
        return min(level + (self._clock() - at) * rate.per_s, float(rate.at_once))


def _allowance(granted: bool, level: float, rate: RequestRate) -> Allowance:
    return Allowance(
        granted=granted,
        limit=rate.at_once,
        remaining=int(level),
        reset_s=math.ceil((rate.at_once - level) / rate.per_s),
        retry_after_s=0 if level >= 1.0 else max(math.ceil((1.0 - level) / rate.per_s), 1),
    )


class RequestRateMiddleware:
    """ASGI middleware behind the authentication: limits how often a token of a namespace may ask.

    Tokens of the whole cluster are not limited: its administrator is not to be locked out by a busy script.

    Args:
        app: handles the request.
        rate_of: the rate of a namespace's tokens.
    """

    def __init__(self, app: ASGIApp, rate_of: Callable[[str], Awaitable[RequestRate]]) -> None:
        self._app = app
        self._rate_of = rate_of
        self._buckets = TokenBuckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        identity = scope.get("state", {}).get("identity") if scope["type"] == "http" else None
        if not isinstance(identity, Identity) or identity.namespace is None:
            await self._app(scope, receive, send)
            return
        rate = await self._rate_of(identity.namespace)
        allowance = self._buckets.take(identity.token_id, rate)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Limit"] = str(allowance.limit)
                headers["RateLimit-Remaining"] = str(allowance.remaining)
                headers["RateLimit-Reset"] = str(allowance.reset_s)
            await send(message)

        if allowance.granted:
            await self._app(scope, receive, answer)
            return
        error = TooManyRequestsError(
            f"this token may ask {rate.per_s:g} times a second, and {rate.at_once} times at once",
            fix=f"wait {allowance.retry_after_s} s; follow changes on a stream (GET /v1/events) instead of asking",
            retry_after_s=allowance.retry_after_s,
        )
        await problem_response(error)(scope, receive, answer)


class FailedTokensMiddleware:
    """ASGI middleware in front of the authentication: an address that keeps sending bad tokens has to wait.

    So it is with sessions that are over or never were. What was valid when it was shown last is let through all the
    same, so that nobody is locked out by what others send from the same address; so are masters, whose tokens cost no
    look at the database.

    Args:
        app: the authentication: answers 401 to a bad token.
        rate: requests with a bad token that an address may send.
        admin_token: is let through from the beginning.
    """

    def __init__(self, app: ASGIApp, rate: RequestRate, admin_token: str) -> None:
        self._app = app
        self._rate = rate
        self._buckets = TokenBuckets()
        self._known: OrderedDict[str, None] = OrderedDict({token_digest(admin_token): None})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        credential = credential_of(scope) if scope["type"] == "http" else ""
        if not credential or scope["path"].startswith("/internal/"):
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("", 0))[0]
        digest = token_digest(credential)
        allowance = self._buckets.look(address, self._rate)
        if not allowance.granted and digest not in self._known:
            error = TooManyRequestsError(
                "too many requests without a valid token came from this address",
                fix=f"wait {allowance.retry_after_s} s, and send a valid token",
                retry_after_s=allowance.retry_after_s,
            )
            await problem_response(error)(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401:
                    self._buckets.take(address, self._rate)
                    self._known.pop(digest, None)
                elif "identity" in scope.get("state", {}):
                    self._remember(digest)
            await send(message)

        await self._app(scope, receive, answer)

    def _remember(self, digest: str) -> None:
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > KNOWN_TOKENS:
            self._known.popitem(last=False)
