"""The rows that a snapshot of the cluster is made of. ``elasticdl_runtime.scheduling`` gives them their meaning.

The scheduler reads them to decide, the api to explain and to answer what-if; both must see the same cluster, so the
queries are here. Run them in one ``Database.snapshot``, so that they show one instant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Double,
    Text,
    any_,
    bindparam,
    case,
    cast,
    extract,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.job.life import ADMITTED_STATES, LIVE_STATES, SUCCEEDED_STATES
from elasticdl_core.scheduling import ReasonCode
from elasticdl_core.scheduling.expected_work import LATEST
from elasticdl_runtime.database import tables as t

PAST_JOBS = 20
"""Ended jobs of a kind whose speeds serve as priors."""

LATEST_JOBS = 500
"""Ended jobs of any kind that what-if questions about a model may be answered by."""


Rows = dict[str, tuple[str, Mapping[str, Any]]]
"""Rows of jobs by id, each with the transaction that wrote it last: whoever changes what is read writes the row."""


async def read_now(connection: AsyncConnection) -> float:
    """Seconds since the epoch, by Postgres' clock."""
    return float((await connection.execute(select(_seconds(func.now())))).scalar_one())


async def read_jobs(connection: AsyncConnection, seen: Rows | None = None) -> Sequence[Mapping[str, Any]]:
    """The jobs that are not over, the oldest first.

    Args:
        connection: of one snapshot.
        seen: rows that were read before, which stand where nobody wrote them since; it gets those of this time. Of
            ``status`` and ``target_detail`` these have what plans depend on.
    """
    if seen is None:
        return [dict(row) for row in (await connection.execute(_JOBS)).mappings()]
    ids, written = (await connection.execute(_VERSIONS)).one()
    versions = dict(zip(ids or (), written or (), strict=True))
    stale = [job_id for job_id, version in versions.items() if job_id not in seen or seen[job_id][0] != version]
    fresh: dict[str, dict[str, Any]] = {}
    if stale:
        found = await connection.execute(_STALE, {"ids": stale})
        names = tuple(found.keys())
        fresh = {row[0]: dict(zip(names, row, strict=True)) for row in found}
    rows = {job_id: (version, fresh.get(job_id) or seen[job_id][1]) for job_id, version in versions.items()}
    seen.clear()
    seen.update(rows)
    return [row for _, row in rows.values()]


async def read_namespaces(connection: AsyncConnection) -> Sequence[Mapping[str, Any]]:
    """Names and limits of all namespaces."""
    return [dict(row) for row in (await connection.execute(_NAMESPACES)).mappings()]


async def read_past_speeds(connection: AsyncConnection, kinds: Collection[str]) -> Sequence[Mapping[str, Any]]:
    """Kind and measured speeds of the jobs of each of these kinds that succeeded last."""
    found = await connection.execute(_PAST, {"kinds": sorted(set(kinds) - {""})})
    return [dict(row) for row in found.mappings()]


async def read_past_work(connection: AsyncConnection, keys: Collection[str]) -> Sequence[Mapping[str, Any]]:
    """Data and progress of the last jobs on each of these data whose masters counted them, the last one first."""
    found = await connection.execute(_PAST_WORK, {"keys": sorted(set(keys) - {""})})
    return [dict(row) for row in found.mappings()]


async def read_latest_speeds(connection: AsyncConnection) -> Sequence[Mapping[str, Any]]:
    """Kind and measured speeds of the jobs of any kind that succeeded last, the last one first."""
    return [dict(row) for row in (await connection.execute(_LATEST)).mappings()]


def _seconds(moment: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(extract("epoch", moment), Double)


_OF_WORK = (
    *("num_epochs", "max_steps", "minibatch_size", "distribution_strategy"),
    *("use_async", "grads_to_wait", "get_model_steps", "num_ps", "worker_memory_mib", "ps_memory_mib"),
)


def _brief(column: ColumnElement[Any], *names: str) -> dict[str, ColumnElement[Any]]:
    return {name: column[name] for name in names}


def _object(**values: ColumnElement[Any]) -> ColumnElement[Any]:
    """An object of these values, those left out that are not there; NULL for none."""
    pairs = [part for name, value in values.items() for part in (literal(name, Text), value)]
    return cast(func.nullif(func.jsonb_strip_nulls(func.jsonb_build_object(*pairs)), cast({}, JSONB)), JSONB)


def _jobs_query(*, brief: bool) -> Any:
    j, e = t.jobs.c, t.events
    last = (
        select(e.c.at, e.c.kind, e.c.detail["code"].astext.label("code"))
        .where(e.c.job_id == j.id, e.c.kind.in_(("scaled", "settings")))
        .order_by(e.c.id.desc())
        .limit(1)
        .correlate(t.jobs)
        .lateral("last_change")
    )
    # A change that the owner asked for is not held back by the cool-down after an earlier one, nor is the rest of
    # one that waited for slots to fall free.
    cools_down = (last.c.kind == "scaled") & last.c.code.is_distinct_from(str(ReasonCode.WAITING_FOR_DRAIN))
    names = (
        *("id", "name", "namespace", "state", "reason", "priority", "min_workers", "max_workers"),
        *("target_workers", "target_reason", "desired"),
    )
    status: ColumnElement[Any] = j.status
    detail: ColumnElement[Any] = j.target_detail
    if brief:  # What nobody looks at takes long to unpack.
        progress = _object(**_brief(status["progress"], "records_done", "records_total", "listing"))
        told = _brief(status, "throughput", "rescale_cost_s", "worker_seconds", "strategy")
        status = _object(progress=progress, **told)
        expected = _object(**_brief(detail["data"], "expected_at"))
        detail = _object(data=expected, **_brief(detail, "code", "blockers"))
    return (
        select(
            *(j[name] for name in names),
            status.label("status"),
            detail.label("target_detail"),
            j.kind,
            j.data_key,
            *(j.spec[name].astext.label(name) for name in _OF_WORK),
            j.spec["worker_resource_request"].astext.label("worker_resource_request"),
            j.spec["microbatches"].astext.label("microbatches"),
            (_seconds(j.created_at) + j.suspended_s).label("submitted_at"),
            _seconds(func.coalesce(j.admitted_at, j.started_at)).label("started_at"),
            case((cools_down, _seconds(last.c.at))).label("last_rescale_at"),
        )
        .select_from(t.jobs.outerjoin(last, t.in_states(ADMITTED_STATES)))
        .where(t.in_states(LIVE_STATES))
        .order_by(j.created_at, j.id)
    )


_JOBS = _jobs_query(brief=False)
_IN_ORDER = (t.jobs.c.created_at, t.jobs.c.id)
_VERSIONS: Any = select(
    func.array_agg(aggregate_order_by(t.jobs.c.id, *_IN_ORDER)),
    func.array_agg(aggregate_order_by(literal_column("jobs.xmin::text"), *_IN_ORDER)),
).where(t.in_states(LIVE_STATES))
_STALE = _jobs_query(brief=True).where(t.jobs.c.id == any_(cast(bindparam("ids"), ARRAY(Text))))
_NAMESPACES = select(t.namespaces.c.name, t.namespaces.c.limits)
_SPEEDS = (
    select(t.jobs.c.kind, t.jobs.c.status["throughput"].label("throughput"))
    .where(t.in_states(SUCCEEDED_STATES), t.jobs.c.status.has_key("throughput"), t.jobs.c.finished_at.is_not(None))
    .order_by(t.jobs.c.finished_at.desc())
)
_LATEST = _SPEEDS.where(t.jobs.c.kind != "").limit(LATEST_JOBS)


def _past_query() -> Any:
    asked = func.unnest(cast(bindparam("kinds"), ARRAY(Text))).table_valued("kind", name="asked").render_derived()
    past = _SPEEDS.where(t.jobs.c.kind == asked.c.kind).limit(PAST_JOBS).lateral("past")
    return select(past).select_from(asked.join(past, true()))


def _past_work_query() -> Any:
    j = t.jobs.c
    asked = func.unnest(cast(bindparam("keys"), ARRAY(Text))).table_valued("data_key", name="asked").render_derived()
    past = (
        select(j.data_key, j.status, j.spec["num_epochs"].astext.label("num_epochs"), j.created_at)
        .where(j.data_key == asked.c.data_key, j.data_key != "", j.progress.is_not(None))
        .order_by(j.created_at.desc())
        .limit(LATEST)
        .lateral("past")
    )
    return select(past).select_from(asked.join(past, true())).order_by(past.c.created_at.desc())


_PAST = _past_query()
_PAST_WORK = _past_work_query()
