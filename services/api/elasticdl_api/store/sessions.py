"""Sessions of browsers: begun with a token, ended by their user, their age, or the end of the token."""

from __future__ import annotations

import secrets
from datetime import datetime

from sqlalchemy import delete, func, insert, select

from elasticdl_api.store import audit
from elasticdl_api.web.auth import Identity, token_digest
from elasticdl_api.web.sealed_tokens import seal
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import in_seconds

MOST_SESSIONS = 50
"""Sessions of one token; the oldest gives way to one more."""


class SessionStore:
    """Sessions in Postgres; only a hash of each secret is kept. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, user: Identity, token: str, *, lifetime_s: int) -> str:
        """Begins a session of a token's holder; returns its secret.

        A token of an identity provider is kept, sealed: it is checked with each request of the session.
        """
        secret = secrets.token_urlsafe(32)
        sessions = t.sessions.c
        digest = token_digest(token)
        latest = (
            select(sessions.sha256)
            .where(sessions.token_sha256 == digest)
            .order_by(sessions.created_at.desc())
            .offset(MOST_SESSIONS - 1)
        )
        async with self._database.transaction() as connection:
            await connection.execute(delete(t.sessions).where(sessions.expires_at <= func.now()))
            await connection.execute(delete(t.sessions).where(sessions.sha256.in_(latest)))
            row = {"sha256": token_digest(secret), "token_sha256": digest, "expires_at": in_seconds(lifetime_s)}
            if user.expires_at is not None:
                row["sealed_token"] = seal(secret, token)
            await connection.execute(insert(t.sessions).values(row))
            await audit.record(connection, user, "session.begin", user.token_id)
        return secret

    async def end(self, user: Identity, secret: str) -> None:
        """Ends a session; it is refused from the next request on."""
        async with self._database.transaction() as connection:
            ended = delete(t.sessions).where(t.sessions.c.sha256 == token_digest(secret))
            if (await connection.execute(ended.returning(t.sessions.c.sha256))).first() is not None:
                await audit.record(connection, user, "session.end", user.token_id)

    async def expires_at(self, secret: str) -> datetime | None:
        """When a session ends by itself; None if there is none."""
        query = select(t.sessions.c.expires_at).where(t.sessions.c.sha256 == token_digest(secret))
        async with self._database.transaction() as connection:
            at: datetime | None = (await connection.execute(query)).scalar_one_or_none()
        return at
