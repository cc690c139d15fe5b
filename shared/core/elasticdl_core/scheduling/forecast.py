"""When will a job start and end, and what if? The policy itself, played forward on what is known now.

Nothing is written and no new job is assumed to come, so a forecast says what the cluster is heading for, not what a
user was promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elasticdl_core.errors import NotFoundError
from elasticdl_core.job import JobState
from elasticdl_core.scheduling.plan import Plan
from elasticdl_core.scheduling.policies.base import Policy
from elasticdl_core.scheduling.policies.goodput import GoodputPolicy
from elasticdl_core.scheduling.snapshot import Capacity, DeviceView, JobView, Snapshot

LONGEST_STEP_S = 1800.0
"""Time-dependent rules are asked again at least this often."""

GROUPED = 0.1
"""Ends that lie this close together, as a fraction of the time to them, are handled in one step."""

CROWD = 200
"""With more jobs than this, ends are grouped more coarsely in proportion: one end among many changes little for the
others, and the steps of a forecast times the jobs in each hardly grow with the jobs."""

MOST_STEPS = 400
"""Bounds the work of a forecast; what has not ended by then is given as unknown."""


@dataclass(frozen=True)
class Forecast:
    """The expected course.

    Attributes:
        plan: what the policy decides now.
        starts: when each job gets its first workers, on the snapshot's clock; None if that cannot be told.
        ends: when each job ends; None if its speed or its remaining work is unknown, or it waits for one that is.
    """

    plan: Plan
    starts: Mapping[str, float | None]
    ends: Mapping[str, float | None]


@dataclass(frozen=True)
class Change:
    """A question.

    Attributes:
        add: jobs that do not exist.
        remove: ids of jobs to leave out.
        priorities: other priorities, by id.
        sizes: other (min, max) workers, by id.
        slots: another capacity, in slots.
        devices: another number of devices.
    """

    add: Sequence[JobView] = ()
    remove: Sequence[str] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    slots: int | None = None
    devices: int | None = None


@dataclass(frozen=True)
class ForecastComparison:
    """The answer: the same cluster without and with the change."""

    before: Forecast
    after: Forecast


def forecast(snapshot: Snapshot, policy: Policy) -> Forecast:
    """Plays the policy forward until all jobs whose end can be told have ended."""
    first = policy.plan(snapshot)
    # Later steps need no reasons, and what one step does not change need not be worked out again.
    planner = policy.incremental() if isinstance(policy, GoodputPolicy) else None
    targets: Mapping[str, int] = first.targets()
    starts: dict[str, float | None] = {}
    ends: dict[str, float | None] = {}
    jobs = {job.id: job for job in snapshot.jobs}
    now = snapshot.now
    for job in snapshot.jobs:
        starts[job.id] = job.started_at if job.current_workers > 0 else None
        ends[job.id] = None
    for step_number in range(MOST_STEPS):
        if step_number:
            later = replace(snapshot, now=now, jobs=tuple(jobs.values()))
            targets = planner.targets(later) if planner is not None else policy.plan(later).targets()
        left = _apply(jobs, targets, now, starts)
        if not left:
            break
        coarse = GROUPED * max(1.0, len(jobs) / CROWD) * (now - snapshot.now)
        step = min(max(min(left.values()), coarse), max(LONGEST_STEP_S, coarse))
        for job_id, seconds in left.items():
            if seconds <= step + 1e-9:
                ends[job_id] = now + seconds
                del jobs[job_id]
            else:
                job = jobs[job_id]
                records = job.remaining_records or 0.0
                jobs[job_id] = job.advanced(remaining_records=records - records * step / seconds)
        now += step
    return Forecast(first, starts, ends)


def what_if(snapshot: Snapshot, policy: Policy, change: Change) -> ForecastComparison:
    """Compares the forecasts without and with a change. Writes nothing.

    Raises:
        NotFoundError: the change names a job that is not in the snapshot.
    """
    known = set(snapshot.by_id)
    for job_id in (*change.remove, *change.priorities, *change.sizes):
        if job_id not in known:
            raise NotFoundError(f"there is no active job {job_id!r}", fix="list the jobs with: elasticdl jobs list")
    return ForecastComparison(forecast(snapshot, policy), forecast(_changed(snapshot, change), policy))


def with_devices(capacity: Capacity, number: int) -> Capacity:
    """The capacity with another number of devices; the last ones go first."""
    present = capacity.devices[:number]
    added = tuple(DeviceView(f"gpu{i}") for i in range(len(present), number))
    return replace(capacity, total=replace(capacity.total, gpu=float(number)), devices=(*present, *added))


def _changed(snapshot: Snapshot, change: Change) -> Snapshot:
    jobs = []
    for job in snapshot.jobs:
        if job.id in change.remove:
            continue
        low, high = change.sizes.get(job.id, (job.min_workers, job.max_workers))
        allowed = () if job.id in change.sizes else job.allowed_sizes
        priority = change.priorities.get(job.id, job.priority)
        jobs.append(replace(job, min_workers=low, max_workers=high, allowed_sizes=allowed, priority=priority))
    capacity = snapshot.capacity
    if change.slots is not None:
        total = replace(capacity.total, slots=float(change.slots))
        capacity = Capacity(total, devices=tuple(replace(device, leaving=0) for device in capacity.devices))
    if change.devices is not None:
        capacity = with_devices(capacity, change.devices)
    return replace(snapshot, jobs=(*jobs, *change.add), capacity=capacity)


def _apply(
    jobs: dict[str, JobView], targets: Mapping[str, int], now: float, starts: dict[str, float | None]
) -> dict[str, float]:
    """Carries a plan out; a change costs the job the records that it would have done meanwhile.

    Returns:
        Seconds that each job that runs still needs, where that can be told.
    """
    left: dict[str, float] = {}
    for job_id, workers in targets.items():
        job = jobs[job_id]
        if workers == job.current_workers or not job.schedulable:
            if workers and (seconds := _seconds_left(job)) is not None:
                left[job_id] = seconds
            continue
        remaining = job.remaining_records
        if workers and remaining is not None:
            remaining += (job.speed(workers) or 0.0) * job.rescale_cost_s
        if workers and starts.get(job_id) is None:
            starts[job_id] = now
        jobs[job_id] = changed = job.advanced(
            current_workers=workers,
            state=JobState.RUNNING if workers else JobState.QUEUED,
            remaining_records=remaining,
            places=job.places[:workers],
            last_rescale_at=now,
            started_at=now if workers and not job.current_workers else job.started_at,
        )
        if workers and (seconds := _seconds_left(changed)) is not None:
            left[job_id] = seconds
    return left


def _seconds_left(job: JobView) -> float | None:
    rate = job.speed(job.current_workers)
    if job.remaining_records is None or not rate:
        return None
    return job.remaining_records / rate
