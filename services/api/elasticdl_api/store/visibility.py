"""Visibility for a reader of one namespace: reasons and events name no job of another namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store.records import JobRecord
from elasticdl_core.scheduling.explanation import hide_names
from elasticdl_runtime.database import tables as t


async def visible_jobs(
    connection: AsyncConnection, rows: Sequence[Mapping[Any, Any]], namespace: str | None
) -> list[JobRecord]:
    """Rows of ``jobs`` as a reader of that namespace may see them."""
    hidden = await _hidden(connection, [row["target_detail"] for row in rows], namespace)
    records = []
    for row in rows:
        record = JobRecord.of(row)
        unseen = [one for one in blockers_of(row["target_detail"]) if one in hidden]
        records.append(replace(record, target_reason=hide_names(record.target_reason, unseen)) if unseen else record)
    return records


async def visible_events(
    connection: AsyncConnection, rows: Sequence[Mapping[Any, Any]], namespace: str | None
) -> list[dict[str, Any]]:
    """Rows of ``events`` as a reader of that namespace may see them."""
    hidden = await _hidden(connection, [row["detail"] for row in rows], namespace)
    found = []
    for row in rows:
        event = dict(row)
        unseen = [one for one in blockers_of(row["detail"]) if one in hidden]
        if unseen:
            event["detail"] = without_names(row["detail"], unseen)
            event["message"] = hide_names(row["message"], unseen)
        found.append(event)
    return found


async def _hidden(
    connection: AsyncConnection, details: Sequence[Mapping[str, Any]], namespace: str | None
) -> frozenset[str]:
    """The jobs named as blockers that a reader of that namespace does not see; one that is gone is nobody's."""
    named = frozenset(one for detail in details for one in blockers_of(detail))
    if namespace is None or not named:
        return frozenset()
    query = select(t.jobs.c.id).where(t.jobs.c.id.in_(sorted(named)), t.jobs.c.namespace == namespace)
    return named - frozenset((await connection.execute(query)).scalars())


def without_names(detail: Mapping[str, Any], unseen: Sequence[str]) -> dict[str, Any]:
    """The details of an event, for a reader who does not see these jobs."""
    seen = [one for one in blockers_of(detail) if one not in unseen]
    return {**detail, "blockers": seen, "text": hide_names(str(detail.get("text", "")), unseen)}


def blockers_of(detail: Mapping[str, Any]) -> list[str]:
    """The jobs that a reason of the scheduler names."""
    found = detail.get("blockers")
    return [str(one) for one in found] if isinstance(found, list) else []
