"""Why a job has what it has, what would help it, how fast it would be, and how sure its expected end is.

All of it is worked out from a snapshot and a policy, by asking the policy itself: what is said to help was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from elasticdl_core.devices import WHOLE
from elasticdl_core.scheduling.forecast import Forecast, with_devices
from elasticdl_core.scheduling.pacing import planned_pool
from elasticdl_core.scheduling.plan import Allocation, Plan, ReasonCode
from elasticdl_core.scheduling.policies.base import Policy
from elasticdl_core.scheduling.policies.surplus import next_size
from elasticdl_core.scheduling.snapshot import JobView, Snapshot

Basis = Literal["measured", "similar", "estimated", "assumed"]
"""How a speed is known: from the job itself, from similar jobs, by the curve through these, or not at all."""

UNCERTAINTY: Mapping[str, float] = {"measured": 0.5, "similar": 0.55, "estimated": 0.75, "assumed": 1.0}
"""Relative error that four of five ends stay within, by how the job's speed at its present size is known.

Measured by ``benchmarks/eta.py``. Most of it is not the speed's: jobs that are submitted later take workers away.
"""

WAITING_UNCERTAINTY = 0.1
"""Added for a job that does not run yet: its start depends on the others' ends."""

MOST_POINTS = 24
"""A curve is shown at no more worker counts than this."""

MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class Speed:
    """A job's speed at one worker count.

    Attributes:
        workers: the count.
        records_per_second: None if nothing is known of the job's level.
        relative: speed as a multiple of that at the smallest size.
        basis: how it is known.
    """

    workers: int
    records_per_second: float | None
    relative: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job is expected to start and to end.

    Attributes:
        starts_at: on the snapshot's clock; None if that cannot be told.
        ends_at: likewise.
        earliest: lower bound of the end; four of five ends lie between the bounds.
        latest: upper bound of the end.
        basis: how the job's speed is known.
        why_unknown: what is missing when there is no end; else empty.
    """

    starts_at: float | None
    ends_at: float | None
    earliest: float | None
    latest: float | None
    basis: Basis
    why_unknown: str = ""


@dataclass(frozen=True, slots=True)
class RemedyOption:
    """Something that would give the job more workers.

    Attributes:
        text: a sentence for people.
        workers: how many it would have as soon as others have left.
        change: what to change, as a what-if takes it.
        command: what to type; empty where no command does it.
    """

    text: str
    workers: int
    change: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


def speeds(job: JobView) -> list[Speed]:
    """The job's speed at each size that it may have, or at some of them if they are many."""
    points = []
    for workers in _shown(job):
        speed, smallest = job.speed(workers), job.speed(job.smallest)
        if speed is None or smallest is None:  # Then the curve tells ratios alone.
            rate, smallest = job.curve.rate(workers), job.curve.rate(job.smallest)
        else:
            rate = speed
        relative = rate / smallest if smallest > 0 else 1.0
        points.append(Speed(workers, speed, relative, basis_of(job, workers)))
    return points


def basis_of(job: JobView, workers: int) -> Basis:
    """The source of the job's speed at that count."""
    if workers in job.throughput:
        return "measured"
    if workers in job.prior_throughput:
        return "similar"
    return "estimated" if job.throughput or job.prior_throughput else "assumed"


def _shown(job: JobView) -> list[int]:
    if len(job.sizes) <= MOST_POINTS:
        return list(job.sizes)
    chosen = {job.smallest, job.largest, *(n for n in job.throughput if n in job.sizes)}
    if job.current_workers in job.sizes:
        chosen.add(job.current_workers)
    size = 1
    while size < job.largest:
        chosen.add(max(n for n in (job.smallest, size) if n in job.sizes or n == job.smallest))
        size *= 2
    return sorted(chosen)[: 2 * MOST_POINTS]


def eta(job: JobView, forecast: Forecast, now: float) -> Eta:
    """The expected start and end of a job, with bounds."""
    starts, ends = forecast.starts.get(job.id), forecast.ends.get(job.id)
    allocation = forecast.plan.allocations.get(job.id)
    workers = (allocation.workers if allocation else 0) or job.current_workers or job.smallest
    basis = basis_of(job, workers)
    if ends is None:
        return Eta(starts, None, None, None, basis, _why_unknown(job, basis, allocation))
    spread = UNCERTAINTY[basis] + (0.0 if job.current_workers > 0 else WAITING_UNCERTAINTY) + job.work_error
    left = max(ends - now, 0.0)
    return Eta(starts, ends, now + left / (1.0 + spread), now + left * (1.0 + spread), basis)


def _why_unknown(job: JobView, basis: Basis, allocation: Allocation | None) -> str:
    if not job.schedulable:
        return "it is not wanted to run"
    if allocation is not None and allocation.reason.code is ReasonCode.IMPOSSIBLE:
        return "it can never start as it is"
    if job.remaining_records is None:
        return "its master has not counted its records yet, and no job before it had the same data"
    if basis == "assumed":
        return "its speed is not measured yet, and no similar job ended before"
    return "it waits for a job whose end is not known"


_OF_ALL = frozenset(
    {
        ReasonCode.CLUSTER_FULL,
        ReasonCode.RAISE_WAITS,
        ReasonCode.WAITING_FOR_CAPACITY,
        ReasonCode.WAITING_FOR_DRAIN,
    }
)
"""What a job lacks that any other may hold."""


def blockers(job: JobView, allocation: Allocation, snapshot: Snapshot) -> list[str]:
    """The jobs that hold what this one lacks: those of its reason, else those that hold most.

    A job that has all that it can use has none.
    """
    named = [one for one in allocation.reason.blockers if one in snapshot.by_id]
    if named or allocation.workers >= job.largest:
        return named
    code = allocation.reason.code
    if code in (ReasonCode.TEAM_SHARE, ReasonCode.WAITING_FOR_QUOTA):
        others = [one for one in snapshot.jobs if one.team == job.team]
    elif code in _OF_ALL:
        others = list(snapshot.jobs)
    else:
        return []
    holders = [one for one in others if one.id != job.id and one.occupied_workers > 0]
    return [one.id for one in sorted(holders, key=lambda one: (-one.occupied_workers, one.id))[:5]]


def find_remedies(
    snapshot: Snapshot, policy: Policy, plan: Plan, job_id: str, *, most_priority: int = MAX_PRIORITY
) -> list[RemedyOption]:
    """Changes that would give a job more workers than the plan does, each tried on the policy; the least first.

    Args:
        snapshot: the cluster.
        policy: decides.
        plan: what it decides on the snapshot as it is.
        job_id: the job, one of the snapshot.
        most_priority: the highest that it may get.
    """
    job = snapshot.by_id[job_id]
    if not job.schedulable:
        return []
    have = plan.allocations[job_id].workers
    found = []
    for text, change, command, changed in _ideas(snapshot, plan, job, most_priority):
        workers = policy.plan(changed).allocations[job_id].workers
        if workers > have:
            told = f"{text}: it would have {workers} worker{'s' if workers != 1 else ''} instead of {have}"
            found.append(RemedyOption(told, workers, change, command))
    return found


_Idea = tuple[str, dict[str, Any], str, Snapshot]


def _ideas(snapshot: Snapshot, plan: Plan, job: JobView, most_priority: int) -> list[_Idea]:
    allocation = plan.allocations[job.id]
    ideas: list[_Idea] = []
    if allocation.workers >= job.largest:
        if allocation.reason.code is ReasonCode.AT_MAX:
            ideas.append(_resized(snapshot, job, job.min_workers, 2 * job.max_workers, "max_workers"))
        return ideas
    if allocation.workers == 0 and job.smallest > 1:
        held = sum(other.demand(plan.allocations[other.id].workers).slots for other in snapshot.jobs)
        free = int((snapshot.capacity.total.slots - held - job.fixed.slots) / max(job.worker.slots, 1e-9))
        for least in sorted({1, min(max(free, 1), job.smallest - 1)}, reverse=True):
            ideas.append(_resized(snapshot, job, least, job.max_workers, "min_workers"))
    ideas.extend(_priority(snapshot, plan, job, most_priority))
    ideas.append(_more_slots(snapshot, plan, job))
    ideas.extend(_more_devices(snapshot, plan, job))
    return ideas


def _with(snapshot: Snapshot, job: JobView) -> Snapshot:
    # A change that the owner asks for is not held back by the cool-down after an earlier one.
    changed = replace(job, last_rescale_at=None)
    return replace(snapshot, jobs=tuple(changed if one.id == job.id else one for one in snapshot.jobs))


def _resized(snapshot: Snapshot, job: JobView, least: int, most: int, what: str) -> _Idea:
    changed = replace(job, min_workers=least, max_workers=most, allowed_sizes=(), step=1)
    value = least if what == "min_workers" else most
    return (
        f"with {what} {value}",
        {"sizes": {job.id: {"min_workers": least, "max_workers": most}}},
        f"elasticdl jobs scale {job.id} --{what.replace('_', '-')} {value}",
        _with(snapshot, changed),
    )


def _priority(snapshot: Snapshot, plan: Plan, job: JobView, highest: int) -> list[_Idea]:
    holding = {one.priority for one in snapshot.jobs if one.id != job.id and plan.allocations[one.id].workers > 0}
    passed = [priority for priority in holding if job.priority <= priority < highest]
    if not passed:
        return []
    ideas = []
    for priority in sorted({min(passed) + 1, max(passed) + 1}):
        ideas.append(
            (
                f"with priority {priority}",
                {"priorities": {job.id: priority}},
                f"elasticdl jobs scale {job.id} --priority {priority}",
                _with(snapshot, replace(job, priority=priority)),
            )
        )
    return ideas


def _more_slots(snapshot: Snapshot, plan: Plan, job: JobView) -> _Idea:
    have = plan.allocations[job.id].workers
    want = job.smallest if have == 0 else next_size(job, have) or have
    total = snapshot.capacity.total
    held = sum(other.demand(plan.allocations[other.id].workers).slots for other in snapshot.jobs)
    need = job.demand(want).slots - job.demand(have).slots
    more = max(int(-(-(need - max(total.slots - held, 0.0)) // 1)), 1)
    grown = replace(snapshot.capacity, total=replace(total, slots=total.slots + more))
    text = f"with {more} more slot{'s' if more != 1 else ''}"
    return text, {"add_slots": more}, "", replace(snapshot, capacity=grown)


def _more_devices(snapshot: Snapshot, plan: Plan, job: JobView) -> list[_Idea]:
    if not job.worker.gpu:
        return []
    have = plan.allocations[job.id].workers
    want = job.smallest if have == 0 else next_size(job, have) or have
    present = len(snapshot.capacity.devices)
    share, pool = job.device_share, planned_pool(snapshot, plan)
    if share < WHOLE:
        room = pool.room(share) if pool is not None else 0
        more = max(-(-(want - have - room) // (WHOLE // share)), 1)
    else:
        free = sum(one >= WHOLE for one in pool.free) if pool is not None else 0
        more = max((want - have) * (share // WHOLE) - free, 1)
    changed = replace(snapshot, capacity=with_devices(snapshot.capacity, present + more))
    text = f"with {more} more GPU{'s' if more != 1 else ''}"
    return [(text, {"devices": present + more}, "", changed)]


def hide_names(text: str, hidden: Sequence[str]) -> str:
    """A reason's text without the names of jobs that its reader may not see."""
    for job_id in sorted(hidden, key=len, reverse=True):
        text = text.replace(job_id, "another team's job")
    return text
