"""Reads snapshots from Postgres and writes plans to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from sqlalchemy import Select, delete, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.job.life import ADMITTED_STATES, Desired, JobState
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Allocation, Plan, Quota, Snapshot
from elasticdl_core.scheduling.expected_work import ExpectedWork
from elasticdl_core.scheduling.quota import contradictions
from elasticdl_runtime import scheduling
from elasticdl_runtime.database import snapshots
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database, is_lock_timeout
from elasticdl_runtime.database.transitions import Start, add_events, in_seconds, rows_of, start_all
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.items import Items
from elasticdl_runtime.telemetry import meters
from elasticdl_scheduler.leadership import NAME, Leadership

PRUNED_AT_ONCE = 2000
"""Decisions that are removed from the log in one transaction, at most."""

OVERTAKEN_S = 60.0
"""Seconds after the time that a reason names, from which on it is told anew."""

Apply: TypeAlias = Callable[[AsyncConnection, Mapping[str, Allocation], "CurrentPlan"], Awaitable[set[str]]]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CurrentPlan:
    """The plan that is in force now.

    Attributes:
        snapshot: the policy's input.
        states: state of each job by id.
        desired: what each job's owner, or an earlier plan, wants of it, by id.
        targets: worker targets by id.
        reasons: the reasons that are written down, as data, by id.
    """

    snapshot: Snapshot
    states: Mapping[str, JobState]
    desired: Mapping[str, Desired]
    targets: Mapping[str, int]
    reasons: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SchedulingPass:
    """The result of one pass.

    Attributes:
        snapshot: what was decided on.
        capacity: what the launcher said.
        policy: who decided, by name.
        changes: jobs whose targets or states changed.
        seconds: from the question for the snapshot to the plan in force.
        interval_s: seconds between full passes.
    """

    snapshot: Snapshot
    capacity: CapacityInfo
    policy: str
    changes: int
    seconds: float
    interval_s: float


class SchedulerStore:
    """The scheduler's view of the tables.

    Args:
        database: Postgres.
        leadership: fences every write.
        quotas: of teams, by settings; limits of namespaces go before them.
    """

    def __init__(self, database: Database, leadership: Leadership, quotas: Mapping[str, Quota]) -> None:
        self._database = database
        self._leadership = leadership
        self._quotas = quotas
        self._priors: dict[str, dict[int, float]] = {}
        self._works: dict[str, ExpectedWork] = {}
        self._contradictions: list[str] = []
        self._kinds: set[str] = set()
        self._keys: set[str] = set()
        self._past_until = 0.0
        self._rows: snapshots.Rows = {}
        self._views: scheduling.Views = {}
        self._unread, self._unchanged = Items("reading jobs"), Items("changing jobs")

    async def read(self, capacity: CapacityInfo) -> CurrentPlan:
        """Reads everything that a plan depends on, at one instant.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        async with self._database.snapshot() as connection:
            now = await snapshots.read_now(connection)
            rows = await snapshots.read_jobs(connection, self._rows)
            namespaces = await snapshots.read_namespaces(connection)
            if now >= self._past_until:
                self._priors, self._works, self._kinds, self._keys = {}, {}, set(), set()
                self._past_until = now + 60.0
            kinds = {row["kind"] for row in rows} - self._kinds
            if kinds:
                self._priors |= scheduling.mean_speeds(await snapshots.read_past_speeds(connection, kinds))
                self._kinds |= kinds
            keys = {row["data_key"] for row in rows} - self._keys
            if keys:
                self._works |= scheduling.mean_work(await snapshots.read_past_work(connection, keys))
                self._keys |= keys
        refused: dict[str, Exception] = {}
        quotas = scheduling.with_limits(self._quotas, namespaces)
        self._tell_contradictions(contradictions(quotas, capacity.slots, {row["name"] for row in namespaces}))
        snapshot = scheduling.snapshot_of(
            now, rows, self._priors, capacity, quotas, refused.__setitem__, self._works, self._views
        )
        self._note(refused, rows)
        return CurrentPlan(
            snapshot,
            {row["id"]: JobState(row["state"]) for row in rows},
            {row["id"]: Desired(row["desired"]) for row in rows},
            {row["id"]: row["target_workers"] for row in rows},
            {row["id"]: row["target_detail"] or {} for row in rows},
        )

    def _tell_contradictions(self, found: list[str]) -> None:
        """Says once what cannot be kept of the quotas."""
        for problem in found:
            if problem not in self._contradictions:
                _log.warning("quotas_contradict", problem=problem)
        self._contradictions = found

    async def write(self, epoch: int, present: CurrentPlan, plan: Plan) -> int:
        """Puts a plan in force, in one transaction that only the holder of the epoch can commit.

        A job that cannot be changed is put off, and keeps no other from its change.

        Returns:
            How many jobs' targets or states changed.

        Raises:
            FencedError: another scheduler leads by now; nothing was written.
            UnavailableError: Postgres does not answer; whether it was written shows in the next snapshot.
        """
        work = {
            job_id: allocation
            for job_id, allocation in plan.allocations.items()
            if _differs(job_id, allocation, present) and not self._unchanged.is_put_off(job_id)
        }
        if not work:
            return 0
        try:
            return await self._write(epoch, present, plan, work, _apply)
        except FencedError:
            raise
        except Exception as error:
            if isinstance(error, UnavailableError) and not is_lock_timeout(error):
                raise
            _log.warning("a plan is written job by job", error=repr(error))
            return await self._write(epoch, present, plan, work, self._apply_alone)

    async def _write(
        self, epoch: int, present: CurrentPlan, plan: Plan, work: Mapping[str, Allocation], apply: Apply
    ) -> int:
        async with self._database.transaction() as connection:
            await self._leadership.require(connection, epoch)
            changed = await apply(connection, work, present)
            changes = [_change(job_id, work[job_id], present.targets[job_id]) for job_id in work if job_id in changed]
            if changes:
                await self._log(connection, epoch, present.snapshot, plan, changes)
            failpoint("scheduler.before_plan_commit")
        failpoint("scheduler.after_plan_commit")
        return len(changes)

    def _note(self, refused: Mapping[str, Exception], rows: Sequence[Mapping[str, Any]]) -> None:
        """Says which jobs cannot be read: the others are planned without them."""
        self._unread.keep(refused)
        self._unchanged.keep(row["id"] for row in rows)
        for job_id, error in refused.items():
            if not self._unread.is_put_off(job_id):
                self._unread.put_off(job_id, error)

    async def _apply_alone(
        self, connection: AsyncConnection, work: Mapping[str, Allocation], present: CurrentPlan
    ) -> set[str]:
        """As ``_apply``, job by job; of one that cannot be changed nothing is changed, and it is put off."""
        changed: set[str] = set()
        for job_id, allocation in work.items():
            try:
                async with connection.begin_nested():
                    changed |= await _apply(connection, {job_id: allocation}, present)
            except Exception as error:
                if connection.invalidated:
                    raise  # it is lost for all jobs
                self._unchanged.put_off(job_id, error)
            else:
                self._unchanged.went_well(job_id)
        return changed

    async def _log(
        self, connection: AsyncConnection, epoch: int, snapshot: Snapshot, plan: Plan, changes: list[dict[str, Any]]
    ) -> None:
        row = {
            "epoch": epoch,
            "policy": plan.policy,
            "input_hash": snapshot.digest(),
            "snapshot": scheduling.packed(snapshot.as_json),
            "plan": scheduling.packed(plan.as_json()),
            "changes": changes,
        }
        await connection.execute(insert(t.plans).values(row))

    async def report(self, epoch: int, done: SchedulingPass) -> None:
        """Records a pass, for those who ask how the scheduler is and what it decides with.

        Raises:
            FencedError: another scheduler leads by now; nothing was written.
            UnavailableError: Postgres does not answer.
        """
        capacity = {
            "slots": done.capacity.slots,
            "for_jobs": done.capacity.for_jobs,
            "used": dict(done.capacity.used),
            "leaving": done.snapshot.capacity.leaving.slots,
            "memory_mib": done.capacity.memory_mib,
            **scheduling.devices_to_json(done.capacity),
        }
        async with self._database.transaction() as connection:
            await self._leadership.require(connection, epoch)
            row = upsert(t.scheduler_passes).values(
                name=NAME,
                epoch=epoch,
                changes=done.changes,
                policy=done.policy,
                quotas=scheduling.quotas_to_json(done.snapshot.quotas),
                capacity=capacity,
                seconds=done.seconds,
                interval_s=done.interval_s,
                meters=meters.read(),
            )
            latest = ("epoch", "policy", "quotas", "capacity", "seconds", "interval_s", "meters")
            changes: dict[str, Any] = {name: row.excluded[name] for name in latest}
            changes |= {
                "at": func.now(),
                "passes": t.scheduler_passes.c.passes + 1,
                "changes": t.scheduler_passes.c.changes + row.excluded.changes,
            }
            await connection.execute(row.on_conflict_do_update(index_elements=["name"], set_=changes))

    async def prune(self, epoch: int, *, keep_days: float, keep_decisions: int) -> int:
        """Removes old decisions from the log: those past the age, and those past the number.

        Returns:
            How many were removed; as many as ``PRUNED_AT_ONCE`` if there may be more.

        Raises:
            FencedError: another scheduler leads by now; nothing was removed.
            UnavailableError: Postgres does not answer.
        """
        async with self._database.transaction() as connection:
            await self._leadership.require(connection, epoch)
            result = await connection.execute(
                delete(t.plans).where(t.plans.c.id.in_(_outdated(keep_days, keep_decisions)))
            )
        return int(result.rowcount)


def _outdated(keep_days: float, keep_decisions: int) -> Select[tuple[int]]:
    """Ids of decisions past the age or the number, as many as are removed at once."""
    newest_too_many = (
        select(t.plans.c.id).order_by(t.plans.c.id.desc()).offset(keep_decisions).limit(1).scalar_subquery()
    )
    old = t.plans.c.at < in_seconds(-keep_days * 86400.0)
    outdated = or_(old, t.plans.c.id <= newest_too_many)
    return select(t.plans.c.id).where(outdated).order_by(t.plans.c.id).limit(PRUNED_AT_ONCE)


async def _apply(connection: AsyncConnection, work: Mapping[str, Allocation], present: CurrentPlan) -> set[str]:
    """Changes jobs, all in a few statements, which are guarded: owners may have changed theirs since the snapshot.

    Returns:
        The ids of those whose target or state changed.
    """
    queued = {job_id for job_id in work if present.states[job_id] is JobState.QUEUED}
    await _explain(connection, {i: one for i, one in work.items() if i in queued and not one.admitted})
    changed = await _start(connection, {i: one for i, one in work.items() if i in queued and one.admitted})
    for job_id in await _rescale(connection, {i: one for i, one in work.items() if i not in queued}):
        if not work[job_id].admitted or work[job_id].workers != present.targets[job_id]:
            changed.add(job_id)
    events = [_event(i, one, present.targets[i]) for i, one in work.items() if i in changed]
    await add_events(connection, events)
    return changed


async def _explain(connection: AsyncConnection, work: Mapping[str, Allocation]) -> None:
    """Tells queued jobs why they wait."""
    if work:
        given = rows_of(_columns(work))
        query = update(t.jobs).where(t.jobs.c.id == given.pop("id"), t.jobs.c.state == JobState.QUEUED)
        await connection.execute(query.values(given))


async def _start(connection: AsyncConnection, work: Mapping[str, Allocation]) -> set[str]:
    """Starts queued jobs: state, target and the launch of their masters, in the transaction of the plan."""
    starts = [
        Start(
            job_id,
            one.reason.text,
            {"workers": one.workers, "code": str(one.reason.code)},
            {
                "target_workers": one.workers,
                "target_reason": one.reason.text,
                "target_detail": one.reason.to_mapping(),
            },
        )
        for job_id, one in work.items()
    ]
    return await start_all(connection, starts, where=[t.jobs.c.desired == Desired.RUN])


async def _rescale(connection: AsyncConnection, work: Mapping[str, Allocation]) -> list[str]:
    """Changes the targets and reasons of admitted jobs, or asks them to leave; gives those that were still such."""
    if not work:
        return []
    desired = [Desired.RUN if one.admitted else Desired.EVICT for one in work.values()]
    workers = [one.workers if one.admitted else 0 for one in work.values()]
    given = rows_of({**_columns(work), "target_workers": workers, "desired": desired})
    query = (
        update(t.jobs)
        .where(t.jobs.c.id == given.pop("id"), t.in_states(ADMITTED_STATES), t.jobs.c.desired == Desired.RUN)
        .values(given)
        .returning(t.jobs.c.id)
    )
    return list((await connection.execute(query)).scalars())


def _columns(work: Mapping[str, Allocation]) -> dict[str, list[Any]]:
    """Columns that tell reasons."""
    reasons = [one.reason for one in work.values()]
    details = [reason.to_mapping() for reason in reasons]
    return {"id": list(work), "target_reason": [reason.text for reason in reasons], "target_detail": details}


def _event(job_id: str, allocation: Allocation, before: int) -> tuple[str, str, str, dict[str, Any]]:
    detail = allocation.reason.to_mapping() | {"from": before, "to": allocation.workers}
    message = f"workers {before} -> {allocation.workers}: {allocation.reason.text}"
    return job_id, "scaled" if allocation.admitted else "evicting", message, detail


def _change(job_id: str, allocation: Allocation, before: int) -> dict[str, Any]:
    """One line of a decision: what became of a job, and why."""
    reason = allocation.reason
    return {
        "job_id": job_id,
        "from": before,
        "to": allocation.workers,
        "code": str(reason.code),
        "text": reason.text,
        "blockers": list(reason.blockers),
    }


def _differs(job_id: str, allocation: Allocation, present: CurrentPlan) -> bool:
    """Whether a decision has to be written; numbers in the text of its reason alone are not worth that."""
    if present.desired[job_id] is not Desired.RUN or not present.states[job_id].schedulable:
        return False
    reason, written = allocation.reason, present.reasons[job_id]
    if allocation.workers != present.targets[job_id] or str(reason.code) != written.get("code"):
        return True
    return list(reason.blockers) != written.get("blockers") or _is_overtaken(written, present.snapshot.now)


def _is_overtaken(reason: Mapping[str, Any], now: float) -> bool:
    """Whether the time that a reason names is over, and what it expected has not come."""
    at = scheduling.number((reason.get("data") or {}).get("expected_at"))
    return 0 < at < now - OVERTAKEN_S
