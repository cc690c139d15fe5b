"""Reads snapshots from Postgres and writes plans to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Allocation, Plan, Quota, Snapshot
from elasticdl_runtime import scheduling
from elasticdl_runtime.failpoints import failpoint
from elasticdl_scheduler.database import Database
from elasticdl_scheduler.leadership import NAME, Leadership

PRUNED_AT_ONCE = 2000
"""Decisions that are removed from the log in one transaction, at most."""


@dataclass(frozen=True)
class Present:
    """What is in force now.

    Attributes:
        snapshot: the policy's input.
        states: state of each job by id.
        desired: what each job's owner, or an earlier plan, wants of it, by id.
        targets: worker targets by id.
    """

    snapshot: Snapshot
    states: Mapping[str, str]
    desired: Mapping[str, str]
    targets: Mapping[str, int]


@dataclass(frozen=True)
class Pass:
    """How one pass went.

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
        quotas: of teams.
    """

    def __init__(self, database: Database, leadership: Leadership, quotas: Mapping[str, Quota]) -> None:
        self._database = database
        self._leadership = leadership
        self._quotas = quotas
        self._priors: dict[str, dict[int, float]] = {}
        self._priors_until = 0.0
        self._told: dict[str, str] = {}

    async def read(self, capacity: CapacityInfo) -> Present:
        """Reads everything that a plan depends on, at one instant.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        async with self._database.transaction() as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            now = float(await connection.fetchval(scheduling.NOW))
            rows = await connection.fetch(scheduling.JOBS, list(scheduling.ACTIVE))
            if now >= self._priors_until:
                past = await connection.fetch(scheduling.PAST, scheduling.PAST_JOBS)
                self._priors, self._priors_until = scheduling.mean_speeds(past), now + 60.0
        snapshot = scheduling.snapshot_of(now, rows, self._priors, capacity, self._quotas)
        return Present(
            snapshot,
            {row["id"]: row["state"] for row in rows},
            {row["id"]: row["desired"] for row in rows},
            {row["id"]: row["target_workers"] for row in rows},
        )

    async def write(self, epoch: int, present: Present, plan: Plan) -> int:
        """Puts a plan in force, in one transaction that only the holder of the epoch can commit.

        Returns:
            How many jobs' targets or states changed.

        Raises:
            FencedError: another scheduler leads by now; nothing was written.
            UnavailableError: Postgres does not answer; whether it was written shows in the next snapshot.
        """
        told: dict[str, str] = {}
        changes: list[dict[str, Any]] = []
        work = [
            (job_id, allocation)
            for job_id, allocation in plan.allocations.items()
            if self._differs(job_id, allocation, present)
        ]
        if not work:
            return 0
        async with self._database.transaction() as connection:
            await self._leadership.require(connection, epoch)
            for job_id, allocation in work:
                if await self._apply(connection, job_id, allocation, present):
                    changes.append(_change(job_id, allocation, present.targets[job_id]))
                told[job_id] = _signature(allocation)
            if changes:
                await self._log(connection, epoch, present.snapshot, plan, changes)
            failpoint("scheduler.before_plan_commit")
        failpoint("scheduler.after_plan_commit")
        self._told = {job_id: self._told[job_id] for job_id in self._told if job_id in plan.allocations} | told
        return len(changes)

    def _differs(self, job_id: str, allocation: Allocation, present: Present) -> bool:
        if present.desired[job_id] != "run":
            return False
        if present.states[job_id] in ("STARTING", "RUNNING", "QUEUED"):
            return allocation.workers != present.targets[job_id] or self._told.get(job_id) != _signature(allocation)
        return False

    async def _apply(self, connection: Any, job_id: str, allocation: Allocation, present: Present) -> int:
        """Changes one job; every statement is guarded, as its owner may have changed it since the snapshot."""
        text, workers = allocation.reason.text, allocation.workers
        detail = json.dumps(allocation.reason.to_mapping())
        if present.states[job_id] == "QUEUED":
            if not allocation.admitted:
                await connection.execute(
                    "UPDATE jobs SET target_reason = $2, target_detail = $3::jsonb "
                    "WHERE id = $1 AND state = 'QUEUED'",
                    job_id,
                    text,
                    detail,
                )
                return 0
            admitted = await connection.fetchval(
                "SELECT transition_job(id, ARRAY['QUEUED'], 'STARTING', $2, $3::jsonb) FROM jobs "
                "WHERE id = $1 AND state = 'QUEUED' AND desired = 'run'",
                job_id,
                text,
                json.dumps({"workers": workers, "code": str(allocation.reason.code)}),
            )
            if not admitted:
                return 0
        elif not allocation.admitted:
            evicted = await connection.fetchval(
                "UPDATE jobs SET desired = 'evict', target_workers = 0, target_reason = $2, "
                "target_detail = $3::jsonb "
                "WHERE id = $1 AND state IN ('STARTING', 'RUNNING') AND desired = 'run' RETURNING id",
                job_id,
                text,
                detail,
            )
            if evicted:
                await self._event(connection, job_id, "evicting", allocation, present.targets[job_id])
            return 1 if evicted else 0
        changed = await connection.fetchval(
            "UPDATE jobs SET target_workers = $2, target_reason = $3, target_detail = $4::jsonb "
            "WHERE id = $1 AND state IN ('STARTING', 'RUNNING') AND desired = 'run' RETURNING id",
            job_id,
            workers,
            text,
            detail,
        )
        if not changed or workers == present.targets[job_id]:
            return 0
        await self._event(connection, job_id, "scaled", allocation, present.targets[job_id])
        return 1

    async def _event(self, connection: Any, job_id: str, kind: str, allocation: Allocation, before: int) -> None:
        detail = allocation.reason.to_mapping() | {"from": before, "to": allocation.workers}
        message = f"workers {before} -> {allocation.workers}: {allocation.reason.text}"
        await connection.execute(
            "INSERT INTO events (job_id, kind, message, detail) VALUES ($1, $2, $3, $4::jsonb)",
            job_id,
            kind,
            message,
            json.dumps(detail),
        )

    async def _log(
        self, connection: Any, epoch: int, snapshot: Snapshot, plan: Plan, changes: list[dict[str, Any]]
    ) -> None:
        await connection.execute(
            "INSERT INTO plans (epoch, policy, input_hash, snapshot, plan, changes) "
            "VALUES ($1, $2, $3, $4::jsonb, $5::jsonb, $6::jsonb)",
            epoch,
            plan.policy,
            snapshot.digest(),
            json.dumps(snapshot.to_mapping()),
            json.dumps(plan.to_mapping()),
            json.dumps(changes),
        )

    async def report(self, epoch: int, done: Pass) -> None:
        """Leaves word of a pass, for those who ask how the scheduler is and what it decides with.

        Raises:
            FencedError: another scheduler leads by now; nothing was written.
            UnavailableError: Postgres does not answer.
        """
        capacity = {
            "slots": done.capacity.slots,
            "for_jobs": done.capacity.for_jobs,
            "used": dict(done.capacity.used),
            "leaving": done.snapshot.capacity.leaving.slots,
        }
        async with self._database.transaction() as connection:
            await self._leadership.require(connection, epoch)
            await connection.execute(
                "INSERT INTO scheduler_passes AS p "
                "(name, epoch, changes, policy, quotas, capacity, seconds, interval_s) "
                "VALUES ($1, $2, $3, $4, $5::jsonb, $6::jsonb, $7, $8) "
                "ON CONFLICT (name) DO UPDATE SET at = now(), epoch = excluded.epoch, passes = p.passes + 1, "
                "changes = p.changes + excluded.changes, policy = excluded.policy, quotas = excluded.quotas, "
                "capacity = excluded.capacity, seconds = excluded.seconds, interval_s = excluded.interval_s",
                NAME,
                epoch,
                done.changes,
                done.policy,
                json.dumps(scheduling.quotas_to_json(self._quotas)),
                json.dumps(capacity),
                done.seconds,
                done.interval_s,
            )

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
            rows = await connection.fetch(
                "DELETE FROM plans WHERE id IN (SELECT id FROM plans WHERE at < now() - make_interval(secs => $1) "
                "OR id <= (SELECT id FROM plans ORDER BY id DESC OFFSET $2 LIMIT 1) ORDER BY id LIMIT $3) "
                "RETURNING id",
                keep_days * 86400.0,
                keep_decisions,
                PRUNED_AT_ONCE,
            )
        return len(rows)


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


def _signature(allocation: Allocation) -> str:
    """What must change for a reason to be written again; numbers inside its text alone are not worth a write."""
    return f"{allocation.workers} {allocation.reason.code} {' '.join(allocation.reason.blockers)}"
