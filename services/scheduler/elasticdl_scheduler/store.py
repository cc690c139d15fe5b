"""Reads snapshots from Postgres and writes plans to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Allocation, Capacity, JobView, Plan, Quota, Resources, Snapshot
from elasticdl_core.scheduling.throughput import mean_curve
from elasticdl_scheduler.database import Database
from elasticdl_scheduler.leadership import Leadership

ACTIVE = ("QUEUED", "STARTING", "RUNNING", "SUSPENDED", "CANCELLING")
DEFAULT_RESCALE_COST_S = 15.0
"""Assumed until a job has measured its own."""

PAST_JOBS = 500
"""Ended jobs whose speeds serve as priors."""

_KIND = (
    "namespace || '/' || coalesce(spec->>'model_def', '') || '/' || coalesce(spec->>'minibatch_size', '') || '/' || "
    "coalesce(spec->>'num_ps', '') || '/' || coalesce(spec->>'use_async', '')"
)

# A change that the owner asked for is not held back by the cool-down after an earlier one, nor is the rest of one
# that waited for slots to fall free.
_JOBS = f"""
SELECT j.id, j.namespace, j.state, j.priority, j.min_workers, j.max_workers, j.target_workers, j.target_reason,
       j.desired, j.status, {_KIND} AS kind,
       extract(epoch FROM j.created_at)::float8 AS submitted_at,
       extract(epoch FROM j.started_at)::float8 AS started_at,
       CASE WHEN s.kind = 'scaled' AND s.code IS DISTINCT FROM 'waiting_for_drain'
           THEN extract(epoch FROM s.at)::float8 END AS last_rescale_at
FROM jobs j
LEFT JOIN LATERAL (
    SELECT e.at, e.kind, e.detail ->> 'code' AS code FROM events e
    WHERE e.job_id = j.id AND e.kind IN ('scaled', 'settings') ORDER BY e.id DESC LIMIT 1
) s ON j.state IN ('STARTING', 'RUNNING')
WHERE j.state = ANY ($1::text[])
ORDER BY j.created_at, j.id
"""

_PAST = f"""
SELECT {_KIND} AS kind, status -> 'throughput' AS throughput FROM jobs
WHERE state = 'SUCCEEDED' AND status ? 'throughput' ORDER BY finished_at DESC LIMIT $1
"""


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


def job_view(row: Mapping[str, Any], used: Mapping[str, int], priors: Mapping[str, Mapping[int, float]]) -> JobView:
    """One job of a snapshot from its row.

    Args:
        row: of the query for active jobs.
        used: worker slots in use by job id, as the launcher sees it.
        priors: mean speeds of past jobs by kind.
    """
    status = _json(row["status"]) or {}
    progress = status.get("progress") or {}
    total = float(progress.get("records_total") or 0.0)
    evicting = row["desired"] == "evict"
    state = JobState(row["state"])
    return JobView(
        id=row["id"],
        team=row["namespace"],
        priority=row["priority"],
        submitted_at=row["submitted_at"],
        state=state,
        wanted=row["desired"] in ("run", "evict"),
        min_workers=max(row["min_workers"], 1),
        max_workers=max(row["max_workers"], row["min_workers"], 1),
        current_workers=0
        if evicting or state not in (JobState.STARTING, JobState.RUNNING)
        else row["target_workers"],
        live_workers=used.get(row["id"], 0),
        throughput=_rates(status.get("throughput")),
        prior_throughput=priors.get(row["kind"], {}),
        remaining_records=max(total - float(progress.get("records_done") or 0.0), 0.0) if total else None,
        rescale_cost_s=float(status.get("rescale_cost_s") or DEFAULT_RESCALE_COST_S),
        last_rescale_at=row["last_rescale_at"],
        started_at=row["started_at"],
        attained_service=float(status.get("worker_seconds") or 0.0),
        kind=row["kind"],
    )


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _rates(value: Any) -> dict[int, float]:
    """Measured speeds; entries that make no sense are left out, as a status is what a job's master says."""
    rates: dict[int, float] = {}
    for count, rate in (value or {}).items():
        if str(count).isdigit() and int(count) > 0 and isinstance(rate, int | float) and 0 < rate < float("inf"):
            rates[int(count)] = float(rate)
    return rates


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
            now = float(await connection.fetchval("SELECT extract(epoch FROM now())::float8"))
            rows = await connection.fetch(_JOBS, list(ACTIVE))
            if now >= self._priors_until:
                past = await connection.fetch(_PAST, PAST_JOBS)
                self._priors, self._priors_until = _mean_speeds(past), now + 60.0
        ids = {row["id"] for row in rows}
        # Slots of jobs that are over, or of nobody we know, are not ours to give until they are free.
        foreign = sum(slots for job_id, slots in capacity.used.items() if job_id not in ids)
        snapshot = Snapshot(
            now=now,
            jobs=tuple(job_view(row, capacity.used, self._priors) for row in rows),
            capacity=Capacity(Resources(slots=float(capacity.slots)), leaving=Resources(slots=float(foreign))),
            quotas=self._quotas,
        )
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
        changes = 0
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
                changes += await self._apply(connection, job_id, allocation, present)
                told[job_id] = _signature(allocation)
            if changes:
                await self._log(connection, epoch, present.snapshot, plan)
        self._told = {job_id: self._told[job_id] for job_id in self._told if job_id in plan.allocations} | told
        return changes

    def _differs(self, job_id: str, allocation: Allocation, present: Present) -> bool:
        if present.desired[job_id] != "run":
            return False
        if present.states[job_id] in ("STARTING", "RUNNING", "QUEUED"):
            return allocation.workers != present.targets[job_id] or self._told.get(job_id) != _signature(allocation)
        return False

    async def _apply(self, connection: Any, job_id: str, allocation: Allocation, present: Present) -> int:
        """Changes one job; every statement is guarded, as its owner may have changed it since the snapshot."""
        text, workers = allocation.reason.text, allocation.workers
        if present.states[job_id] == "QUEUED":
            if not allocation.admitted:
                await connection.execute(
                    "UPDATE jobs SET target_reason = $2 WHERE id = $1 AND state = 'QUEUED'", job_id, text
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
                "UPDATE jobs SET desired = 'evict', target_workers = 0, target_reason = $2 "
                "WHERE id = $1 AND state IN ('STARTING', 'RUNNING') AND desired = 'run' RETURNING id",
                job_id,
                text,
            )
            if evicted:
                await self._event(connection, job_id, "evicting", allocation, present.targets[job_id])
            return 1 if evicted else 0
        changed = await connection.fetchval(
            "UPDATE jobs SET target_workers = $2, target_reason = $3 "
            "WHERE id = $1 AND state IN ('STARTING', 'RUNNING') AND desired = 'run' RETURNING id",
            job_id,
            workers,
            text,
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

    async def _log(self, connection: Any, epoch: int, snapshot: Snapshot, plan: Plan) -> None:
        await connection.execute(
            "INSERT INTO plans (epoch, policy, input_hash, snapshot, plan) VALUES ($1, $2, $3, $4::jsonb, $5::jsonb)",
            epoch,
            plan.policy,
            snapshot.digest(),
            json.dumps(snapshot.to_mapping()),
            json.dumps(plan.to_mapping()),
        )


def _signature(allocation: Allocation) -> str:
    """What must change for a reason to be written again; numbers inside its text alone are not worth a write."""
    return f"{allocation.workers} {allocation.reason.code} {' '.join(allocation.reason.blockers)}"


def _mean_speeds(rows: list[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    by_kind: dict[str, list[dict[int, float]]] = {}
    for row in rows:
        rates = _rates(_json(row["throughput"]))
        if rates:
            by_kind.setdefault(row["kind"], []).append(rates)
    return {kind: mean_curve(curves) for kind, curves in by_kind.items()}
