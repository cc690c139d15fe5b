"""The lives of the processes of jobs: written from what masters tell, read as pages.

A master tells of its PS and workers; of the masters themselves the api knows all. Every write is one in a transaction
that has locked the job's row, or is about the master's row alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Integer, Text, bindparam, func, insert, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause, LifeStage, ProcessLife
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query

ProcessKey = tuple[str, int, int]
"""Role, index and incarnation of a process of a job."""
_KEY = ("job_id", "role", "index", "incarnation")
_columns = t.processes.c
_LIFE = tuple(ProcessLife.__dataclass_fields__)
_WORDS = {
    LifeStage.LAUNCHED: ("started", "is launched"),
    LifeStage.READY: ("ready", "is ready"),
    LifeStage.DRAINED: ("drained", "is told to leave"),
    LifeStage.ENDED: ("ended", "has ended"),
}
"""What the event of each stage is called after the role, and how it is said."""


@dataclass(frozen=True)
class LifeReport:
    """A master's report of a process' life.

    Attributes:
        key: which.
        stage: that it has come to.
        at: when.
        cause: why it ended.
        exit_code: its exit code, or minus the signal that ended it.
        message: more about that.
        announce: whether the job's user is told by an event.
    """

    key: ProcessKey
    stage: LifeStage
    at: datetime
    cause: EndCause | None = None
    exit_code: int | None = None
    message: str = ""
    announce: bool = True


@dataclass(frozen=True)
class MasterEnding:
    """The end of a master.

    Attributes:
        cause: why.
        exit_code: its exit code, or minus the signal that ended it; None where nobody knows.
        message: more about that.
    """

    cause: EndCause
    exit_code: int | None
    message: str


# -- masters -------------------------------------------------------------------------------------------------------


async def launch_master(connection: AsyncConnection, job_id: str, incarnation: int) -> None:
    """A master was launched."""
    row = upsert(t.processes).values(job_id=job_id, role=Role.MASTER, index=0, incarnation=incarnation)
    await connection.execute(row.on_conflict_do_nothing())


async def begin_master(connection: AsyncConnection, job_id: str, incarnation: int) -> None:
    """A master has taken the job; those before it count no more, whether or not they live."""
    earlier = (_columns.job_id == job_id, _columns.role == Role.MASTER, _columns.incarnation < incarnation)
    gone = update(t.processes).where(*earlier, _columns.ended_at.is_(None))
    await connection.execute(
        gone.values(ended_at=func.now(), cause=EndCause.SUPERSEDED, message="a newer master took the job")
    )
    row = upsert(t.processes).values(
        job_id=job_id, role=Role.MASTER, index=0, incarnation=incarnation, ready_at=func.now()
    )
    known = {"ready_at": func.coalesce(_columns.ready_at, func.now())}
    await connection.execute(row.on_conflict_do_update(index_elements=_KEY, set_=known))


async def end_master(connection: AsyncConnection, job_id: str, incarnation: int, ending: MasterEnding) -> None:
    """A master is dead, or taken for it."""
    mine = (_columns.job_id == job_id, _columns.role == Role.MASTER, _columns.incarnation == incarnation)
    gone = update(t.processes).where(*mine, _columns.ended_at.is_(None))
    values = {"ended_at": func.now(), "cause": ending.cause, "exit_code": ending.exit_code}
    await connection.execute(gone.values({**values, "message": ending.message}))


# -- what a master tells -------------------------------------------------------------------------------------------


async def record_lives(
    connection: AsyncConnection, job_id: str, reports: Sequence[LifeReport], living: Sequence[ProcessKey] | None
) -> None:
    """Adds what a master tells to what is known; what is known already changes nothing.

    Args:
        connection: in a transaction that has locked the job's row.
        job_id: the job.
        reports: what became of processes, in this order.
        living: all PS and workers that there are; None if that is not told.
    """
    if living is not None:
        await _end_all_but(connection, job_id, living)
    if not reports:
        return
    before = await _read(connection, job_id, {report.key for report in reports})
    after = dict(before)
    events = []
    for report in reports:
        known = after.get(report.key)
        life = known or ProcessLife(report.at)
        life = life.at_stage(report.stage, report.at, report.cause, report.exit_code, report.message)
        after[report.key] = life
        if report.announce and life != known:
            events.append(_event(job_id, report))
    changed = [_row(job_id, key, life) for key, life in after.items() if before.get(key) != life]
    if changed:
        row = upsert(t.processes)
        values = {name: row.excluded[name] for name in _LIFE}
        await connection.execute(row.on_conflict_do_update(index_elements=_KEY, set_=values), changed)
    if events:
        await connection.execute(insert(t.events), events)


async def _end_all_but(connection: AsyncConnection, job_id: str, living: Sequence[ProcessKey]) -> None:
    alive = select(_columns.role, _columns.index, _columns.incarnation).where(
        _columns.job_id == job_id, _columns.role != Role.MASTER, _columns.ended_at.is_(None)
    )
    known = {(row.role, row.index, row.incarnation) for row in await connection.execute(alive)}
    gone = sorted(known - set(living))
    if gone:
        key = tuple_(_columns.role, _columns.index, _columns.incarnation)
        values = {"ended_at": func.now(), "cause": EndCause.LOST, "message": "it was gone when the master came back"}
        await connection.execute(update(t.processes).where(_columns.job_id == job_id, key.in_(gone)).values(values))


async def _read(connection: AsyncConnection, job_id: str, keys: set[ProcessKey]) -> dict[ProcessKey, ProcessLife]:
    key = tuple_(_columns.role, _columns.index, _columns.incarnation)
    query = select(t.processes).where(_columns.job_id == job_id, key.in_(sorted(keys)))
    rows = (await connection.execute(query)).mappings()
    return {(row["role"], row["index"], row["incarnation"]): _life(row) for row in rows}


def _life(row: Mapping[Any, Any]) -> ProcessLife:
    values = {name: row[name] for name in _LIFE}
    return ProcessLife(**values | {"cause": None if row["cause"] is None else EndCause(row["cause"])})


def _row(job_id: str, key: ProcessKey, life: ProcessLife) -> dict[str, Any]:
    return dict(zip(_KEY, (job_id, *key), strict=True)) | asdict(life)


def _event(job_id: str, report: LifeReport) -> dict[str, Any]:
    role, index, incarnation = report.key
    name, words = _WORDS[report.stage]
    detail: dict[str, Any] = {"role": role, "index": index, "incarnation": incarnation}
    message = f"{role}-{index}.{incarnation} {words}"
    if report.stage is LifeStage.ENDED:
        detail |= {"cause": report.cause, "exit_code": report.exit_code}
        message += f": {report.cause}" if report.cause else ""
    return {"job_id": job_id, "kind": f"{role}_{name}", "message": message, "detail": detail, "at": datetime.now(UTC)}


# -- reading -------------------------------------------------------------------------------------------------------


def _page_query() -> Query:
    after = {name: bindparam(f"after_{name}", type_=_columns[name].type) for name in _KEY[1:]}
    here = tuple_(_columns.role, _columns.index, _columns.incarnation)
    later = or_(after["role"].is_(None), here > tuple_(*after.values()))
    role = bindparam("role", type_=Text)
    query = select(t.processes).where(_columns.job_id == bindparam("job_id"), later)
    return Query(
        query.where(or_(role.is_(None), _columns.role == role))
        .order_by(_columns.role, _columns.index, _columns.incarnation)
        .limit(bindparam("limit", type_=Integer))
    )


_PAGE = _page_query()


class ProcessLists:
    """Lists the lives of a job's processes. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self, job_id: str, *, role: Role | None, after: Sequence[Any] | None, limit: int
    ) -> list[tuple[ProcessKey, ProcessLife]]:
        """The processes after a place, by role, index and incarnation."""
        place = dict(zip(("after_role", "after_index", "after_incarnation"), after or (None,) * 3, strict=True))
        rows = await self._database.fetch(_PAGE, job_id=job_id, role=role, limit=limit, **place)
        return [((row["role"], row["index"], row["incarnation"]), _life(row)) for row in rows]
