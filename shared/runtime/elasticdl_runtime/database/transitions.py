"""Changes of a job's state: the row, its event and the launch of its master, in one transaction.

Where a change may lead is decided in ``elasticdl_core.job.life``; here is what it means for the tables. Everybody
who changes a job's state does it through ``transition``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Insert,
    Text,
    case,
    cast,
    column,
    extract,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.job.life import JobState, desired_on_entering
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_core.process_life import EndCause
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.failpoints import failpoint


async def transition(
    connection: AsyncConnection,
    job_id: str,
    origin: JobState,
    to: JobState,
    reason: str,
    detail: Mapping[str, Any] | None = None,
    *,
    where: Sequence[ColumnElement[bool]] = (),
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Changes a job's state if it is in ``origin``, with everything that belongs to the change.

    Args:
        connection: in a transaction; nothing is in force before it is committed.
        job_id: the job.
        origin: the state that it must be in.
        to: the state that it enters.
        reason: why, for people.
        detail: goes into the event; ``error`` in it becomes the job's error.
        where: more conditions that its row must meet.
        values: other columns of its row to set along.

    Returns:
        Whether the job was as described, and its state was changed.
    """
    given = dict(detail or {})
    changes: dict[str, Any] = {"state": to, "reason": reason, **_changes_of(origin, to), **(values or {})}
    if given.get("error") is not None:
        changes["error"] = given["error"]
    query = (
        update(t.jobs)
        .where(t.jobs.c.id == job_id, t.jobs.c.state == origin, *where)
        .values(changes)
        .returning(t.jobs.c.master_incarnation)
    )
    incarnation = (await connection.execute(query)).scalar_one_or_none()
    if incarnation is None:
        return False
    if to is JobState.STARTING:
        await _launch_masters(connection, {job_id: incarnation})
    if not to.active:
        await _end_lives(connection, job_id, EndCause.FINISHED if to.succeeded else EndCause.STOPPED, str(reason))
    await add_event(connection, job_id, "state", reason, given | {"from": origin, "to": to})
    return True


@dataclass(frozen=True, slots=True)
class Start:
    """A queued job that is to start.

    Attributes:
        job_id: the job.
        reason: why, for people.
        detail: goes into the event.
        values: other columns of its row to set along; every start of a call sets the same ones.
    """

    job_id: str
    reason: str
    detail: Mapping[str, Any]
    values: Mapping[str, Any]


async def start_all(
    connection: AsyncConnection, starts: Sequence[Start], *, where: Sequence[ColumnElement[bool]] = ()
) -> set[str]:
    """Starts queued jobs, as ``transition`` starts one, in as many statements for many as for one.

    Args:
        connection: in a transaction; nothing is in force before it is committed.
        starts: the jobs.
        where: more conditions that their rows must meet.

    Returns:
        The ids of those that were as described, and start.
    """
    if not starts:
        return set()
    names = list(starts[0].values)
    given = rows_of(
        {"id": [one.job_id for one in starts], "reason": [one.reason for one in starts]}
        | {name: [one.values[name] for one in starts] for name in names},
    )
    changes = _changes_of(JobState.QUEUED, JobState.STARTING) | {name: given[name] for name in ("reason", *names)}
    query = (
        update(t.jobs)
        .where(t.jobs.c.id == given["id"], t.jobs.c.state == JobState.QUEUED, *where)
        .values(state=JobState.STARTING, **changes)
        .returning(t.jobs.c.id, t.jobs.c.master_incarnation)
    )
    incarnations = {row.id: row.master_incarnation for row in await connection.execute(query)}
    started = [one for one in starts if one.job_id in incarnations]
    if not started:
        return set()
    await _launch_masters(connection, incarnations)
    moved = {"from": JobState.QUEUED, "to": JobState.STARTING}
    await add_events(connection, [(one.job_id, "state", one.reason, {**one.detail, **moved}) for one in started])
    return set(incarnations)


def rows_of(columns: Mapping[str, Sequence[Any]]) -> dict[str, ColumnElement[Any]]:
    """Rows that a statement brings along, as values for columns of jobs; all columns are equally long."""
    of_json = [name for name in columns if isinstance(t.jobs.c[name].type, JSONB)]
    types = {name: Text() if name in of_json else t.jobs.c[name].type for name in columns}
    told = {
        name: list(map(json.dumps, columns[name])) if name in of_json else list(columns[name]) for name in columns
    }
    arrays = [cast(literal(told[name], ARRAY(types[name])), ARRAY(types[name])) for name in columns]
    given = func.unnest(*arrays).table_valued(*map(column, types, types.values()), name="given").render_derived()
    return {name: cast(given.c[name], JSONB) if name in of_json else given.c[name] for name in columns}


async def _end_lives(connection: AsyncConnection, job_id: str, cause: EndCause, reason: str) -> None:
    """A job that is not at work has no processes: those that nobody saw end have ended now, its master above all."""
    mine = (t.processes.c.job_id == job_id) & t.processes.c.ended_at.is_(None)
    values = {"ended_at": func.now(), "cause": cause, "message": reason}
    await connection.execute(update(t.processes).where(mine).values(values))


async def add_launch_intent(
    connection: AsyncConnection, job_id: str, incarnation: int, *, delay_s: float = 0.0
) -> None:
    """Writes that a master of that incarnation shall be launched. The api's relay delivers it after the commit.

    An intent that is written already stands: a job that was evicted before its master was launched, and admitted
    again, needs no other one.
    """
    row = upsert(t.launch_intents).values(**_launch_intent(job_id, incarnation), deliver_after=in_seconds(delay_s))
    await connection.execute(row.on_conflict_do_nothing(index_elements=["id"]))


async def _launch_masters(connection: AsyncConnection, incarnations: Mapping[str, int]) -> None:
    failpoint("scheduler.before_launch_intent")
    intents = [_launch_intent(job_id, incarnation) for job_id, incarnation in incarnations.items()]
    await connection.execute(upsert(t.launch_intents).on_conflict_do_nothing(index_elements=["id"]), intents)


def _launch_intent(job_id: str, incarnation: int) -> dict[str, Any]:
    process = ProcessId(job_id, Role.MASTER, 0, incarnation)
    return {
        "id": str(process),
        "job_id": job_id,
        "role": str(process.role),
        "index": process.index,
        "incarnation": incarnation,
    }


async def add_events(connection: AsyncConnection, events: Sequence[tuple[str, str, str, Mapping[str, Any]]]) -> None:
    """Writes what happened to jobs: job, kind, message and detail of each."""
    names = ("job_id", "kind", "message", "detail")
    if events:
        await connection.execute(insert(t.events), [dict(zip(names, event, strict=True)) for event in events])


async def add_event(
    connection: AsyncConnection, job_id: str, kind: str, message: str, detail: Mapping[str, Any]
) -> None:
    """Writes something that happened to a job."""
    await connection.execute(event_row(job_id, kind, message, detail))


def event_row(job_id: str, kind: str, message: str, detail: Mapping[str, Any]) -> Insert:
    """The row of an event of a job."""
    return insert(t.events).values(job_id=job_id, kind=kind, message=message, detail=dict(detail))


def in_seconds(seconds: float) -> ColumnElement[Any]:
    """The time so many seconds from now, by Postgres' clock; in the past if negative."""
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _changes_of(origin: JobState, state: JobState) -> dict[str, Any]:
    """The other changes of a job's row when it goes from one state to another."""
    changes: dict[str, Any] = {}
    if origin is JobState.SUSPENDED:
        lasted = extract("epoch", func.now() - func.coalesce(t.jobs.c.suspended_at, func.now()))
        changes |= {"suspended_at": null(), "suspended_s": t.jobs.c.suspended_s + func.greatest(lasted, 0)}
    desired = desired_on_entering(state)
    if desired is not None:
        changes["desired"] = desired
    if state is JobState.STARTING:
        changes |= {
            "started_at": func.coalesce(t.jobs.c.started_at, func.now()),
            "admitted_at": func.now(),
            "master_failures": 0,
            "master_incarnation": t.jobs.c.master_incarnation + case((_intent_waits(), 0), else_=1),
        }
    if state is JobState.SUSPENDED:
        changes["suspended_at"] = func.now()
    if not state.active:
        changes |= {"target_workers": 0, "master_holder": "", "master_lease_expires_at": null()}
    if state.terminal:
        changes["finished_at"] = func.now()
    return changes


def _intent_waits() -> ColumnElement[bool]:
    """Whether the launch of the job's newest master was written and is not delivered yet."""
    intents = t.launch_intents
    newest: Column[int] = t.jobs.c.master_incarnation
    waiting = select(intents.c.id).where(
        intents.c.job_id == t.jobs.c.id, intents.c.incarnation == newest, intents.c.delivered_at.is_(None)
    )
    return waiting.correlate(t.jobs).exists()
