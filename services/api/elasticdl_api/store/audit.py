"""The log of changes: who did what to which object, written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.web.auth import Identity
from elasticdl_api.web.json_bodies import clean
from elasticdl_runtime.database import tables as t


async def record(
    connection: AsyncConnection,
    identity: Identity,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
    *,
    namespace: str | None = None,
) -> None:
    """Writes that somebody changes something.

    Args:
        connection: in the transaction of the change: neither is there without the other.
        identity: who does it.
        action: what is done, as ``object.verb``, e.g. ``job.cancel``.
        target: the object, e.g. the job's id.
        detail: with what; no secrets.
        namespace: whose object it is, so that administrators of that namespace see the entry; by default the
            identity's own, and nobody's for what concerns the whole cluster.
    """
    await connection.execute(
        insert(t.audit_log).values(
            actor=identity.user,
            token_id=identity.token_id,
            namespace=namespace if namespace is not None else identity.namespace,
            action=action,
            target=target,
            detail=clean(dict(detail or {})),
        )
    )
