"""Reads changes since the last look: few queries for any number of jobs that are watched.

A job's row has a version that differs after every write of it, also after those that count for no revision: the
transaction that wrote it (``xmin``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Select, Text, cast, column, func, literal, literal_column, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.visibility import visible_events, visible_jobs
from elasticdl_core.job.life import LIVE_STATES
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database

_VERSION = cast(literal_column("jobs.xmin"), Text)
EVENTS_AT_ONCE = 500
"""Events of one job that are read in one query."""


@dataclass(frozen=True)
class ChangedJob:
    """A job that is not as it was.

    Attributes:
        version: differs after every write of the job's row.
        job: the job; None if there is none any more.
    """

    version: str
    job: JobRecord | None


class ChangeStore:
    """Reads what changed. Every method may raise UnavailableError.

    ``namespace`` None sees all namespaces; reasons and events name no job of another namespace.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_jobs(self, versions: Mapping[str, str], namespace: str | None) -> dict[str, ChangedJob]:
        """The jobs whose version is not the given one.

        Args:
            versions: the known versions by job; empty for a job that was not read yet.
            namespace: whose the jobs must be.
        """
        known = func.unnest(literal(list(versions), ARRAY(Text)), literal(list(versions.values()), ARRAY(Text)))
        watched = known.table_valued("id", "version", name="watched").render_derived()
        mine = t.jobs.c.id == watched.c.id
        if namespace is not None:
            mine &= t.jobs.c.namespace == namespace
        query = (
            select(watched.c.id.label("watched_id"), _VERSION.label("version"), t.jobs)
            .select_from(watched.outerjoin(t.jobs, mine))
            .where(_VERSION.is_distinct_from(watched.c.version))
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
            there = [row for row in rows if row["id"] is not None]
            records = {job.id: job for job in await visible_jobs(connection, there, namespace)}
        return {row["watched_id"]: ChangedJob(row["version"] or "", records.get(row["watched_id"])) for row in rows}

    async def read_versions(self, namespace: str | None, *, live: bool) -> dict[str, str]:
        """The versions of all jobs, or of those that are not over."""
        query = select(t.jobs.c.id, _VERSION.label("version"))
        if live:
            query = query.where(t.in_states(LIVE_STATES))
        if namespace is not None:
            query = query.where(t.jobs.c.namespace == namespace)
        async with self._database.reading() as connection:
            return {row.id: row.version for row in await connection.execute(query)}

    async def list_events(
        self, after: Mapping[str, int], namespace: str | None, limit: int = EVENTS_AT_ONCE
    ) -> dict[str, list[dict[str, Any]]]:
        """Events of several jobs, of each those after an id, oldest first, at most ``limit`` of each."""
        known = func.unnest(literal(list(after), ARRAY(Text)), literal(list(after.values()), ARRAY(BigInteger)))
        watched = known.table_valued(
            column("job_id", Text), column("last", BigInteger), name="watched"
        ).render_derived()
        newer = (
            select(t.events)
            .where(t.events.c.job_id == watched.c.job_id, t.events.c.id > watched.c.last)
            .order_by(t.events.c.id)
            .limit(limit)
            .lateral("newer")
        )
        query = select(newer).select_from(watched.join(newer, true())).order_by(newer.c.id)
        return await self._read_events(query, namespace)

    async def list_last_events(
        self, job_ids: Sequence[str], namespace: str | None, limit: int
    ) -> dict[str, list[dict[str, Any]]]:
        """The last events of several jobs, oldest first."""
        known = func.unnest(literal(list(job_ids), ARRAY(Text))).table_valued("job_id", name="watched")
        watched = known.render_derived()
        last = (
            select(t.events)
            .where(t.events.c.job_id == watched.c.job_id)
            .order_by(t.events.c.id.desc())
            .limit(limit)
            .lateral("last")
        )
        query = select(last).select_from(watched.join(last, true())).order_by(last.c.id)
        return await self._read_events(query, namespace)

    async def _read_events(self, query: Select[Any], namespace: str | None) -> dict[str, list[dict[str, Any]]]:
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
            return _by_job(await visible_events(connection, rows, namespace))


def _by_job(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        found.setdefault(event["job_id"], []).append(event)
    return found
