"""The log of changes: who did what to which object, written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Insert, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.web.auth import Identity
from elasticdl_api.web.json_bodies import clean
from elasticdl_api.web.request_ids import current_request_id
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


def entry(
    identity: Identity,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
    *,
    namespace: str | None = None,
) -> Insert:
    """The statement that records a change, to be executed in the transaction of the change.

    Args:
        identity: who does it.
        action: what is done, as ``object.verb``, e.g. ``job.cancel``.
        target: the object, e.g. the job's id.
        detail: with what; no secrets.
        namespace: whose object it is, so that administrators of that namespace see the entry; by default the
            identity's own, and nobody's for what concerns the whole cluster.
    """
    return insert(t.audit_log).values(
        actor=identity.user,
        token_id=identity.token_id,
        namespace=namespace if namespace is not None else identity.namespace,
        action=action,
        target=target,
        detail=clean(dict(detail or {})),
        request_id=current_request_id(),
    )


async def record(
    connection: AsyncConnection,
    identity: Identity,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
    *,
    namespace: str | None = None,
) -> None:
    """Writes an ``entry``.

    Args:
        connection: in the transaction of the change: neither is there without the other.
        identity: who does it.
        action: what is done.
        target: the object.
        detail: with what; no secrets.
        namespace: whose object it is.
    """
    await connection.execute(entry(identity, action, target, detail, namespace=namespace))


@dataclass(frozen=True)
class AuditFilters:
    """Filters of a list of entries.

    Attributes:
        namespace: only of that namespace.
        actor: only of that user.
        action: only such.
        target: only about that object.
        since: only from then on.
        until: only before then.
    """

    namespace: str | None = None
    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def list_entries(
    database: Database, identity: Identity, filters: AuditFilters, *, before: int | None, limit: int
) -> list[Mapping[Any, Any]]:
    """Entries that somebody may see, the latest first: of the own namespace, or all for those of the cluster.

    Args:
        database: the pool.
        identity: who asks.
        filters: which.
        before: only with smaller ids: where the page before ended.
        limit: at most that many.
    """
    columns = t.audit_log.c
    query = select(t.audit_log).order_by(columns.id.desc()).limit(limit)
    for name in ("namespace", "actor", "action", "target"):
        value = getattr(filters, name)
        if value is not None:
            query = query.where(columns[name] == value)
    if identity.namespace is not None:
        query = query.where(columns.namespace == identity.namespace)
    if filters.since is not None:
        query = query.where(columns.at >= filters.since)
    if filters.until is not None:
        query = query.where(columns.at < filters.until)
    if before is not None:
        query = query.where(columns.id < before)
    async with database.reading() as connection:
        return list((await connection.execute(query)).mappings())
