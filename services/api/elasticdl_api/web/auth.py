"""Authentication of every request.

Every path needs a token unless it is named in ``OPEN_PATHS``, so a new route needs one too. ``/internal`` takes job
tokens of masters, every other path takes the admin token or a token from the table ``tokens`` (hashed there).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request
from sqlalchemy import func, or_, select
from starlette.types import ASGIApp, Receive, Scope, Send

from elasticdl_api.web.problems import problem_response
from elasticdl_core.errors import ElasticDLError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Identity:
    """A user.

    Attributes:
        namespace: the only namespace that the user sees; None for an administrator, who sees all.
    """

    namespace: str | None

    @property
    def home(self) -> str:
        """The namespace that the user's new objects belong to."""
        return self.namespace or DEFAULT_NAMESPACE


Verifier = Callable[[str, str], Awaitable[Identity]]
"""Takes a token and an HTTP method; returns who that is, or raises."""


class TokenVerifier:
    """Tells users by their tokens.

    Args:
        database: has the table of tokens.
        admin_token: the token that may do everything.
    """

    def __init__(self, database: Database, admin_token: str) -> None:
        self._database = database
        self._admin = _digest(admin_token)

    async def __call__(self, token: str, method: str) -> Identity:
        """Checks a token.

        Raises:
            UnauthenticatedError: nobody has it, or it has expired.
            PermissionDeniedError: it is for reading only.
        """
        digest = _digest(token)
        if hmac.compare_digest(digest, self._admin):
            return Identity(None)
        query = select(t.tokens.c.namespace, t.tokens.c.scope).where(
            t.tokens.c.sha256 == digest,
            or_(t.tokens.c.expires_at.is_(None), t.tokens.c.expires_at > func.now()),
        )
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise UnauthenticatedError("the token is not valid", fix="use the token that 'elasticdl up' made")
        if row.scope != "write" and method not in READING:
            raise PermissionDeniedError("the token is for reading only", fix="use a token with the scope 'write'")
        return Identity(row.namespace)


class AuthenticationMiddleware:
    """ASGI middleware that refuses requests without a valid token.

    Args:
        app: handles requests with a valid token.
        verify: tells users by their tokens.
        cluster_secret: derives the secrets that sign job tokens.
    """

    def __init__(self, app: ASGIApp, verify: Verifier, cluster_secret: str) -> None:
        self._app = app
        self._verify = verify
        self._secret = cluster_secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            if scope["type"] == "websocket":
                return
            await self._app(scope, receive, send)
            return
        try:
            token = _bearer(scope)
            path: str = scope["path"]
            if path == "/internal" or path.startswith("/internal/"):
                identity: object = self._master(path, token)
            else:
                identity = await self._verify(token, scope["method"])
        except ElasticDLError as error:
            await problem_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["identity"] = identity
        await self._app(scope, receive, send)

    def _master(self, path: str, token: str) -> tokens.Claims:
        parts = path.split("/")
        job_id = parts[3] if len(parts) > 3 and parts[2] == "jobs" else tokens.peek_job_id(token)
        claims = tokens.verify(tokens.derive_job_secret(self._secret, job_id), token, job_id=job_id)
        claims.require(Role.MASTER)
        return claims


def current_user(request: Request) -> Identity:
    """The user who calls a public route."""
    identity = request.state.identity
    if not isinstance(identity, Identity):
        raise NotFoundError("there is nothing here", fix="see the API reference at /docs")
    return identity


def current_master(request: Request) -> tokens.Claims:
    """The master that calls an internal route."""
    identity = request.state.identity
    if not isinstance(identity, tokens.Claims):
        raise NotFoundError("there is nothing here", fix="see the API reference at /docs")
    return identity


def token_digest(token: str) -> str:
    """How a token is kept: the SHA-256 of it, as hex digits. Tokens are random, so that needs no salt."""
    return _digest(token)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _bearer(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return str(token.strip())
    raise UnauthenticatedError("the request has no token", fix="send 'Authorization: Bearer <token>'")
