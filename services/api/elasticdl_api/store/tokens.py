"""Tokens of users: made, listed, revoked. Only a hash of each is kept."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store import audit
from elasticdl_api.web.auth import ADMIN_USER, Identity, token_digest
from elasticdl_core.access import TokenScope, make_token
from elasticdl_core.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import in_seconds

MOST_TOKENS = 1000
"""Valid tokens that a namespace can have."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True)
class TokenGrant:
    """The wanted properties of a new token.

    Attributes:
        name: what it is for.
        scope: what its holder may do.
        namespace: the only one that its holder sees; None for one of the cluster.
        owner: the user who will hold it.
        expires_in_s: seconds for which it is valid; None for until it is revoked.
    """

    name: str
    scope: TokenScope
    namespace: str | None
    owner: str
    expires_in_s: int | None = None


def is_valid() -> ColumnElement[bool]:
    """Whether a token is neither revoked nor expired."""
    columns = t.tokens.c
    return and_(columns.revoked_at.is_(None), or_(columns.expires_at.is_(None), columns.expires_at > func.now()))


def _columns() -> list[Any]:
    columns = t.tokens.c
    state = case((columns.revoked_at.is_not(None), "revoked"), (is_valid(), "valid"), else_="expired")
    return [*(one for one in columns if one.name != "sha256"), state.label("state")]


class TokenStore:
    """Tokens in Postgres. An administrator of a namespace sees and makes those of that namespace only.

    Every method may raise UnavailableError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, user: Identity, wanted: TokenGrant) -> tuple[Mapping[Any, Any], str]:
        """Makes a token that may do no more, nowhere else and no longer than its maker's.

        Returns:
            Its row, and the token itself.

        Raises:
            PermissionDeniedError: it would go beyond the maker's.
            NotFoundError: there is no such namespace.
            ConflictError: another token has that name, or there are too many.
        """
        _check_within(user, wanted)
        token = make_token()
        values: dict[str, Any] = {
            "id": "tok-" + "".join(secrets.choice(_ALPHABET) for _ in range(8)),
            "name": wanted.name,
            "owner": wanted.owner,
            "created_by": user.user,
            "namespace": wanted.namespace,
            "scope": str(wanted.scope),
            "sha256": token_digest(token),
        }
        if wanted.expires_in_s is not None:
            values["expires_at"] = in_seconds(wanted.expires_in_s)
        async with self._database.transaction() as connection:
            await _check_lifetime(connection, user, wanted.expires_in_s)
            if wanted.namespace is not None:
                await _check_namespace(connection, wanted.namespace)
            row = upsert(t.tokens).values(values).on_conflict_do_nothing().returning(*_columns())
            made = (await connection.execute(row)).mappings().one_or_none()
            if made is None:
                raise ConflictError(
                    f"there is a token {wanted.name!r} already",
                    fix="take another name, or revoke that one: `elasticdl tokens revoke NAME`",
                )
            detail = {name: made[name] for name in ("name", "owner", "scope")}
            detail["expires_at"] = made["expires_at"].isoformat() if made["expires_at"] else None
            await audit.record(connection, user, "token.create", made["id"], detail, namespace=wanted.namespace)
        return made, token

    async def list_page(
        self,
        user: Identity,
        *,
        namespace: str | None,
        owner: str | None,
        ended: bool,
        limit: int,
        after: tuple[datetime, str] | None,
    ) -> list[Mapping[Any, Any]]:
        """Tokens that the user administers, the newest first.

        Args:
            user: who asks.
            namespace: only of that one.
            owner: only of that user.
            ended: also those that are expired or revoked.
            limit: at most that many.
            after: when the last one of the page before was made, and its id.
        """
        columns = t.tokens.c
        query = select(*_columns()).order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
        for column, value in (
            (columns.namespace, user.namespace),
            (columns.namespace, namespace),
            (columns.owner, owner),
        ):
            if value is not None:
                query = query.where(column == value)
        if not ended:
            query = query.where(is_valid())
        if after is not None:
            query = query.where(tuple_(columns.created_at, columns.id) < tuple_(*after))
        async with self._database.reading() as connection:
            return list((await connection.execute(query)).mappings())

    async def get(self, token_id: str) -> Mapping[Any, Any] | None:
        """One token, for whoever holds it; None for the one of the token file."""
        query = select(*_columns()).where(t.tokens.c.id == token_id)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).mappings().one_or_none()

    async def revoke(self, user: Identity, token_id: str) -> None:
        """Ends a token; it is refused from the next request on. Revoking twice is revoking once.

        Raises:
            NotFoundError: there is none that the user administers.
        """
        async with self._database.transaction() as connection:
            row = (await connection.execute(_found(user, token_id).with_for_update())).one_or_none()
            if row is None:
                raise NotFoundError(f"there is no token {token_id}", fix="list them: `elasticdl tokens list`")
            if row.revoked_at is not None:
                return
            await connection.execute(update(t.tokens).where(t.tokens.c.id == token_id).values(revoked_at=func.now()))
            await audit.record(
                connection, user, "token.revoke", token_id, {"name": row.name}, namespace=row.namespace
            )


def _found(user: Identity, token_id: str) -> Select[Any]:
    """A token that the user administers."""
    query = select(t.tokens).where(t.tokens.c.id == token_id)
    return query if user.namespace is None else query.where(t.tokens.c.namespace == user.namespace)


def _check_within(user: Identity, wanted: TokenGrant) -> None:
    if user.namespace is not None and wanted.namespace != user.namespace:
        raise PermissionDeniedError(
            f"a token of the namespace {user.namespace!r} makes tokens of that namespace only",
            fix=f"leave of_cluster out, and give the namespace {user.namespace!r} or none",
        )
    if not user.scope.includes(wanted.scope):
        raise PermissionDeniedError(
            f"a token with the scope '{user.scope}' makes none with the wider scope '{wanted.scope}'",
            fix="ask for a narrower scope",
        )


async def _check_lifetime(connection: AsyncConnection, user: Identity, expires_in_s: int | None) -> None:
    """A token lives no longer than its maker; the maker is locked, so that it is not revoked meanwhile."""
    if user.token_id == ADMIN_USER:
        return
    columns = t.tokens.c
    query = select(columns.expires_at, func.now().label("now")).where(columns.id == user.token_id, is_valid())
    maker = (await connection.execute(query.with_for_update(read=True))).one_or_none()
    if maker is None:
        raise UnauthenticatedError("the token is not valid any more", fix="ask who made it for a new one")
    if maker.expires_at is None:
        return
    left = int((maker.expires_at - maker.now).total_seconds())
    if expires_in_s is None or expires_in_s > left:
        raise PermissionDeniedError(
            f"the new token would outlive the one that makes it, which ends in {left} seconds",
            fix=f"give expires_in_s of at most {left}, or use a token that lives longer",
        )


async def _check_namespace(connection: AsyncConnection, namespace: str) -> None:
    query = select(t.namespaces.c.name).where(t.namespaces.c.name == namespace)
    if (await connection.execute(query.with_for_update(key_share=True))).first() is None:
        raise NotFoundError(
            f"there is no namespace {namespace!r}", fix=f"make it first: `elasticdl namespaces create {namespace}`"
        )
    many = select(func.count()).select_from(t.tokens).where(t.tokens.c.namespace == namespace, is_valid())
    if (await connection.execute(many)).scalar_one() >= MOST_TOKENS:
        raise ConflictError(f"the namespace {namespace!r} has {MOST_TOKENS} tokens", fix="revoke some")
