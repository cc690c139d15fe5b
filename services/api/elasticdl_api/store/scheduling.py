"""The scheduler's view and decisions. Everything here only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.job.life import LIVE_STATES, SCHEDULABLE_STATES
from elasticdl_runtime.database import snapshots
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.scheduling import unpacked

SCHEDULER = "scheduler"
LEAST_PATIENCE_S = 30.0
"""A scheduler whose last pass is this old does not decide any more; later where full passes are further apart."""


@dataclass(frozen=True)
class ObservedCluster:
    """The cluster at one instant, as Postgres has it.

    Attributes:
        now: seconds since the epoch, by Postgres' clock.
        rows: the jobs that are not over, as rows of ``snapshots.read_jobs``.
        past: speeds of jobs that succeeded, of the kinds that there are, as rows of ``snapshots.read_past_speeds``.
        work: progress of jobs on the same data, as rows of ``snapshots.read_past_work``.
        latest: speeds of jobs of any kind, as rows of ``snapshots.read_latest_speeds``.
        last: the record of the scheduler's last pass, with ``age_s`` and ``alive``; None if there was none.
        decision: number, time, epoch and input hash of the last decision; None if there was none.
        namespaces: all of them, as rows of ``snapshots.read_namespaces``.
    """

    now: float
    rows: Sequence[Mapping[str, Any]]
    past: Sequence[Mapping[str, Any]]
    work: Sequence[Mapping[str, Any]]
    latest: Sequence[Mapping[str, Any]]
    last: Mapping[str, Any] | None
    decision: Mapping[str, Any] | None
    namespaces: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class DecisionFilters:
    """Filters of a list of decisions.

    Attributes:
        namespace: only those that changed a job of that namespace; None for all.
        job_id: only those that changed that job.
        since: only from then on.
        until: only before then.
        before: only those with a smaller number.
    """

    namespace: str | None = None
    job_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None


class SchedulingStore:
    """Reads snapshots, the last pass and the decision log. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> ObservedCluster:
        """Reads everything that a policy decides on, in one read-only transaction."""
        async with self._database.snapshot() as connection:
            rows = await snapshots.read_jobs(connection)
            return ObservedCluster(
                await snapshots.read_now(connection),
                rows,
                await snapshots.read_past_speeds(connection, {row["kind"] for row in rows}),
                await snapshots.read_past_work(connection, {row["data_key"] for row in rows}),
                await snapshots.read_latest_speeds(connection),
                await _last_pass(connection),
                await _last_decision(connection),
                await snapshots.read_namespaces(connection),
            )

    async def read_last_pass(self) -> Mapping[str, Any] | None:
        """The record of the scheduler's last pass, with ``age_s`` and ``alive``."""
        async with self._database.transaction() as connection:
            return await _last_pass(connection)

    async def list_decisions(self, filters: DecisionFilters, *, limit: int, full: bool) -> list[dict[str, Any]]:
        """Decisions that match, the latest first.

        Args:
            filters: which.
            limit: at most that many.
            full: with the snapshot and the plan.
        """
        columns = [t.plans.c[name] for name in ("id", "at", "epoch", "policy", "input_hash", "changes")]
        if full:
            columns += [t.plans.c.snapshot, t.plans.c.plan]
        query = select(*columns).order_by(t.plans.c.id.desc()).limit(limit)
        if filters.job_id is not None:
            query = query.where(t.plans.c.changes.contains([{"job_id": filters.job_id}]))
        if filters.since is not None:
            query = query.where(t.plans.c.at >= filters.since)
        if filters.until is not None:
            query = query.where(t.plans.c.at < filters.until)
        if filters.before is not None:
            query = query.where(t.plans.c.id < filters.before)
        if filters.namespace is not None:
            change = func.jsonb_array_elements(t.plans.c.changes).table_valued("value")
            mine = and_(
                t.jobs.c.id == func.jsonb_extract_path_text(change.c.value, "job_id"),
                t.jobs.c.namespace == filters.namespace,
            )
            query = query.where(select(1).select_from(change).join(t.jobs, mine).exists())
        async with self._database.transaction() as connection:
            rows = [dict(row) for row in (await connection.execute(query)).mappings()]
        return [row | {name: unpacked(row[name]) for name in ("snapshot", "plan") if name in row} for row in rows]

    async def filter_by_namespace(self, job_ids: Sequence[str], namespace: str) -> frozenset[str]:
        """The jobs that are of that namespace."""
        query = select(t.jobs.c.id).where(t.jobs.c.id == t.any_of(job_ids), t.jobs.c.namespace == namespace)
        async with self._database.transaction() as connection:
            return frozenset((await connection.execute(query)).scalars())

    async def count_by_reason(self, namespace: str | None) -> dict[tuple[str, str], int]:
        """The number of jobs that are not over in each state for each reason."""
        decided = t.in_states(SCHEDULABLE_STATES)
        code = case((decided, func.coalesce(t.jobs.c.target_detail["code"].astext, "")), else_="")
        query = (
            select(t.jobs.c.state, code.label("code"), func.count().label("number"))
            .where(t.in_states(LIVE_STATES))
            .group_by(t.jobs.c.state, code)
        )
        if namespace is not None:
            query = query.where(t.jobs.c.namespace == namespace)
        async with self._database.transaction() as connection:
            return {(row.state, row.code): row.number for row in await connection.execute(query)}


def is_led() -> ColumnElement[bool]:
    """Whether a scheduler leads and decides.

    Its lease lives and its last pass is recent: a lease alone may be one of a dead scheduler's, from before the clock
    was set back.
    """
    passes, lease = t.scheduler_passes.c, t.leadership.c
    patience_s = func.greatest(3 * passes.interval_s, LEAST_PATIENCE_S)
    recent = func.abs(func.extract("epoch", func.now() - passes.at)) < patience_s
    return exists().where(passes.name == SCHEDULER, lease.name == SCHEDULER, lease.expires_at > func.now(), recent)


async def _last_pass(connection: AsyncConnection) -> Mapping[str, Any] | None:
    passes = t.scheduler_passes
    query = select(
        passes,
        func.extract("epoch", func.now() - passes.c.at).label("age_s"),
        is_led().label("alive"),
    ).where(passes.c.name == SCHEDULER)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else {**row, "age_s": max(float(row["age_s"]), 0.0)}


async def _last_decision(connection: AsyncConnection) -> Mapping[str, Any] | None:
    columns = (t.plans.c[name] for name in ("id", "at", "epoch", "policy", "input_hash"))
    query = select(*columns).order_by(t.plans.c.id.desc()).limit(1)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else dict(row)
