"""The cookie of a browser's session, and the token that proves that a page of ours sent a request.

The cookie goes along with every request to this address by itself, whoever caused it; a browser's own rule
(``SameSite=Strict``) is the first answer to that. The second: what changes something also carries the session's CSRF
token, which follows from the session's secret, and which only a page of ours can have read.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from elasticdl_core.errors import PermissionDeniedError

COOKIE = "elasticdl_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""Its name under TLS: browsers take it from this very host only, and send it over TLS only."""
CSRF_HEADER = "X-CSRF-Token"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


def csrf_token(secret: str) -> str:
    """The CSRF token of a session."""
    return hmac.new(secret.encode("utf-8", "surrogatepass"), b"csrf", hashlib.sha256).hexdigest()


def session_of(scope: Scope) -> str | None:
    """The session's secret in a request, if it is the session that says who sends it: a token goes before it."""
    request = HTTPConnection(scope)
    if "authorization" in request.headers:
        return None
    return request.cookies.get(SECURE_COOKIE if scope.get("scheme") == "https" else COOKIE) or None


def check_csrf(scope: Scope, secret: str) -> None:
    """Refuses a request that may change something and does not prove that a page of ours sent it.

    Raises:
        PermissionDeniedError: the CSRF token is missing or wrong.
    """
    if scope["method"] in _READING:
        return
    header = CSRF_HEADER.lower().encode()
    given = next((value for name, value in scope["headers"] if name == header), b"")
    if not hmac.compare_digest(given, csrf_token(secret).encode()):
        raise PermissionDeniedError(
            f"the request has a session, and not its {CSRF_HEADER}",
            fix=f"send the csrf_token of GET /session as {CSRF_HEADER}, or a token instead of the session",
        )


def set_cookie(response: Response, scope: Scope, secret: str, *, lifetime_s: int) -> None:
    """Gives a browser its session; with lifetime 0 takes it away."""
    secure = scope.get("scheme") == "https"
    response.set_cookie(
        SECURE_COOKIE if secure else COOKIE,
        secret,
        max_age=lifetime_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
