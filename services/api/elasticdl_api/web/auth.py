"""Authentication of every request.

Every path needs a token unless it is named in ``OPEN_PATHS``, so a new route needs one too. ``/internal`` takes job
tokens of masters, every other path takes the admin token or a token from the table ``tokens`` (hashed there).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request
from sqlalchemy import ColumnElement, Select, Update, bindparam, case, func, or_, select, update
from starlette.types import ASGIApp, Receive, Scope, Send

from elasticdl_api.dashboard import files as page_files
from elasticdl_api.web.credential_watch import CredentialWatch
from elasticdl_api.web.problems import problem_response
from elasticdl_api.web.route_scopes import RouteRule, rules_of
from elasticdl_api.web.sealed_tokens import unseal
from elasticdl_api.web.session_cookies import check_csrf, session_of
from elasticdl_api.web.wire import CONNECTION
from elasticdl_core.access import DEFAULT_NAMESPACE, TokenScope, is_mistyped
from elasticdl_core.errors import ElasticDLError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query
from elasticdl_runtime.database.transitions import in_seconds

_REFERENCE = ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css")
UNVERSIONED_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", *_REFERENCE, *page_files.open_paths()})
PROVIDERS = "/session/providers"
OPEN_PATHS = UNVERSIONED_PATHS | {PROVIDERS, f"/v1{PROVIDERS}"}
ADMIN_USER = "admin"
"""Who holds the token of the cluster's token file: its id, and the user's name."""
USE_RECORDED_EVERY_S = 60.0
"""A token's last use is written at most that often: reading must not cost a write."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user.

    Attributes:
        namespace: the only namespace that the user sees; None for one of the cluster, who sees all.
        user: the user's name: the owner of the token.
        scope: what the user may do there.
        token_id: the token's id.
        expires_at: when the token of an identity provider ends; None for tokens of ours.
    """

    namespace: str | None
    user: str
    scope: TokenScope
    token_id: str = ""
    expires_at: datetime | None = None

    @property
    def home(self) -> str:
        """The namespace that the user's new objects belong to."""
        return self.namespace or DEFAULT_NAMESPACE

    @property
    def restricted(self) -> bool:
        """Whether the user's jobs may touch the namespace's places only; who administers the cluster may name any."""
        return self.namespace is not None or self.scope is not TokenScope.ADMIN

    def require_own_token(self, what: str) -> None:
        """Refuses tokens of an identity provider for what would go on when the provider takes its word back.

        Raises:
            PermissionDeniedError: it is one.
        """
        if self.expires_at is not None:
            raise PermissionDeniedError(
                f"a token of the identity provider {what}",
                fix="use a token of the cluster: an administrator makes one with `elasticdl tokens create`",
            )

    def require(self, scope: TokenScope | str, *, cluster: bool = False) -> None:
        """Refuses who may not do something.

        Args:
            scope: the least scope that may.
            cluster: whether it concerns the whole cluster, so that nobody of one namespace may.

        Raises:
            PermissionDeniedError: the user may not.
        """
        wanted = TokenScope(scope)
        if cluster and self.namespace is not None:
            raise PermissionDeniedError(
                f"that is for administrators of the cluster; this token is of the namespace {self.namespace!r}",
                fix="use the cluster's admin token, or ask your administrator",
            )
        if not self.scope.includes(wanted):
            raise PermissionDeniedError(
                f"that needs the scope '{wanted}'; this token has '{self.scope}'",
                fix=f"use a token with the scope '{wanted}': `elasticdl tokens create NAME --scope {wanted}`",
            )


ADMINISTRATOR = Identity(None, ADMIN_USER, TokenScope.ADMIN, ADMIN_USER)
"""Who holds the token of the token file."""


class TokenVerifier:
    """Tells users by their tokens. Nothing is remembered: a token that is revoked is not valid any more at once.

    Args:
        database: has the table of tokens.
        admin_token: the token that may do everything.
        provider: tells users by tokens of an identity provider, if there is one.
    """

    def __init__(
        self, database: Database, admin_token: str, provider: Callable[[str], Awaitable[Identity]] | None = None
    ) -> None:
        self._database = database
        self._provider = provider
        self._admin = token_digest(admin_token)

    async def __call__(self, token: str) -> Identity:
        """Checks a token.

        Raises:
            UnauthenticatedError: nobody has it, or it has expired or was revoked.
        """
        digest = token_digest(token)
        if hmac.compare_digest(digest, self._admin):
            return ADMINISTRATOR
        if is_mistyped(token):
            raise UnauthenticatedError(
                "the token is mistyped or cut off: its checksum is not right", fix="copy all of it, and try again"
            )
        if self._provider is not None and token.count(".") == 2:
            return await self._of_provider(self._provider, token)
        return await self._holder(digest)

    async def _holder(self, digest: str) -> Identity:
        """The holder of the token with that digest."""
        rows = await self._database.fetch(_FIND_TOKEN, digest=digest)
        if not rows:
            raise UnauthenticatedError(
                "the token is not valid", fix="use one of `elasticdl tokens create`, or that of `elasticdl up`"
            )
        (row,) = rows
        if row["ended"]:
            raise UnauthenticatedError(
                f"the token {row['name']!r} {row['ended']}", fix="ask who made it for a new one"
            )
        if row["unrecorded"]:
            async with self._database.transaction() as connection:
                await connection.execute(_record_use(row["id"]))
        return Identity(row["namespace"], row["owner"], TokenScope(row["scope"]), row["id"])

    async def _of_provider(self, provider: Callable[[str], Awaitable[Identity]], token: str) -> Identity:
        """Whom a provider's token names, in a namespace that is there."""
        user = await provider(token)
        known = user.namespace is None or await self._database.fetch(_FIND_NAMESPACE, name=user.namespace)
        if not known:
            raise PermissionDeniedError(
                f"there is no namespace {user.namespace!r}", fix="ask an administrator of the cluster for it"
            )
        return user

    async def of_session(self, secret: str) -> Identity:
        """Checks the session of a browser, and the token that it was made with.

        Raises:
            UnauthenticatedError: there is no such session, or it or its token has ended.
        """
        rows = await self._database.fetch(_FIND_SESSION, digest=token_digest(secret))
        if not rows:
            raise UnauthenticatedError("the session is over", fix="log in again")
        digest: str = rows[0]["token_sha256"]
        sealed: str | None = rows[0]["sealed_token"]
        if sealed is None:
            return ADMINISTRATOR if hmac.compare_digest(digest, self._admin) else await self._holder(digest)
        if self._provider is None:
            raise UnauthenticatedError("the session is over: its provider is no longer ours", fix="log in again")
        return await self._of_provider(self._provider, unseal(secret, sealed))


def _unrecorded() -> ColumnElement[bool]:
    last = t.tokens.c.last_used_at
    return or_(last.is_(None), last < in_seconds(-USE_RECORDED_EVERY_S))


def _find_token() -> Select[Any]:
    columns = t.tokens.c
    ended = case(
        (columns.revoked_at.is_not(None), "was revoked"), (columns.expires_at <= func.now(), "has expired"), else_=""
    )
    return select(
        columns.id,
        columns.name,
        columns.namespace,
        columns.owner,
        columns.scope,
        ended.label("ended"),
        _unrecorded().label("unrecorded"),
    ).where(columns.sha256 == bindparam("digest"))


def _record_use(token_id: str) -> Update:
    """Of many requests at once one writes; the others do not wait for it."""
    one = select(t.tokens.c.id).where(t.tokens.c.id == token_id, _unrecorded()).with_for_update(skip_locked=True)
    return update(t.tokens).where(t.tokens.c.id.in_(one)).values(last_used_at=func.now())


_FIND_TOKEN = Query(_find_token())
_FIND_SESSION = Query(
    select(t.sessions.c.token_sha256, t.sessions.c.sealed_token).where(
        t.sessions.c.sha256 == bindparam("digest"), t.sessions.c.expires_at > func.now()
    )
)
_FIND_NAMESPACE = Query(select(t.namespaces.c.name).where(t.namespaces.c.name == bindparam("name")))


class AuthenticationMiddleware:
    """ASGI middleware that refuses requests without a valid token.

    Args:
        app: handles requests with a valid token.
        verify: tells users by their tokens.
        cluster_secret: derives the secrets that sign job tokens.
    """

    def __init__(self, app: ASGIApp, verify: TokenVerifier, cluster_secret: str) -> None:
        self._app = app
        self._verify = verify
        self._secret = cluster_secret
        self._watch = CredentialWatch(self._user, credential_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            if scope["type"] == "websocket":
                return
            await self._app(scope, receive, send)
            return
        rules: list[RouteRule] = []
        try:
            path: str = scope["path"]
            if path == "/internal" or path.startswith("/internal/"):
                identity: object = self._master(path, bearer_of(scope))
            else:
                identity = user = await self._user(scope)
                rules = rules_of(scope["method"], path)
                for rule in rules:
                    user.require(rule.scope, cluster=rule.cluster)
        except ElasticDLError as error:
            await problem_response(error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state.update(identity=identity, ruled=bool(rules))
        if isinstance(identity, Identity):
            self._watch.hand_on(scope)
        if CONNECTION in state:
            state[CONNECTION].prove()
        await self._app(scope, receive, send)

    async def _user(self, scope: Scope) -> Identity:
        """The sender of a request: by the token in its header, else by the session in its cookie."""
        session = session_of(scope)
        if session is None:
            return await self._verify(bearer_of(scope))
        check_csrf(scope, session)
        return await self._verify.of_session(session)

    def _master(self, path: str, token: str) -> tokens.Claims:
        parts = path.split("/")
        job_id = parts[3] if len(parts) > 3 and parts[2] == "jobs" else tokens.peek_job_id(token)
        claims = tokens.verify(tokens.derive_job_secret(self._secret, job_id), token, job_id=job_id)
        claims.require(Role.MASTER)
        return claims


async def refuse_unruled(request: Request) -> None:
    """The net under the table of scopes: a user's request that it says nothing about finds no route.

    Raises:
        NotFoundError: there is no rule for this route.
    """
    if isinstance(getattr(request.state, "identity", None), Identity) and not request.state.ruled:
        raise NotFoundError("there is nothing here", fix="see the API reference at /docs")


async def current_user(request: Request) -> Identity:
    """The user who calls a public route."""
    identity = request.state.identity
    if not isinstance(identity, Identity):
        raise NotFoundError("there is nothing here", fix="see the API reference at /docs")
    return identity


async def current_master(request: Request) -> tokens.Claims:
    """The master that calls an internal route."""
    identity = request.state.identity
    if not isinstance(identity, tokens.Claims):
        raise NotFoundError("there is nothing here", fix="see the API reference at /docs")
    return identity


def token_digest(token: str) -> str:
    """The kept form of a token: the SHA-256 of it, as hex digits. Tokens are random, so that needs no salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def credential_of(scope: Scope) -> str:
    """The credential of a request: its bearer token, else its session; empty for neither."""
    return _find_bearer(scope) or session_of(scope) or ""


def bearer_of(scope: Scope) -> str:
    """The bearer token of a request.

    Raises:
        UnauthenticatedError: it has none.
    """
    token = _find_bearer(scope)
    if not token:
        raise UnauthenticatedError("the request has no token", fix="send 'Authorization: Bearer <token>'")
    return token


def _find_bearer(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return str(token.strip())
    return ""
