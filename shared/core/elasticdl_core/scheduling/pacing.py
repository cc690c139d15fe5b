"""Turns a plan into targets that can be given out now, while those who shrink still hold their slots.

A plan says where the cluster should go. A worker that is drained keeps its slot until it has left, so a job that
grows into it is granted only what is free at this moment; it gets the rest in a later pass.
"""

from __future__ import annotations

from dataclasses import replace

from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies.surplus import allowed_at_most
from elasticdl_core.scheduling.snapshot import JobView, Snapshot


def pace(snapshot: Snapshot, plan: Plan) -> Plan:
    """Holds back growth for which slots are not free yet.

    Returns:
        A plan under which what all jobs hold now, or are asked to hold, whichever is more, fits the capacity, in
        so far as the present holdings fit at all. Shrinking is never held back.
    """
    free = [total - held for total, held in zip(snapshot.capacity.total.vector(), _held(snapshot, plan), strict=True)]
    limited = snapshot.capacity.limited
    allocations: dict[str, Allocation] = {}
    for job_id, allocation in plan.allocations.items():
        job = snapshot.by_id[job_id]
        floor = max(job.occupied_workers, min(job.current_workers, allocation.workers))
        if allocation.workers <= floor:
            allocations[job_id] = allocation
            continue
        now = _grantable(job, floor, allocation.workers, free, limited)
        if now > floor:
            for i, amount in enumerate(_change(job, floor, now)):
                free[i] -= amount
        allocations[job_id] = _held_back(job, allocation, now)
    return replace(plan, allocations=allocations)


def _held(snapshot: Snapshot, plan: Plan) -> tuple[float, ...]:
    """What is taken before any growth."""
    totals = list(snapshot.capacity.leaving.vector())
    for job in snapshot.jobs:
        allocation = plan.allocations.get(job.id)
        target = allocation.workers if allocation else 0
        workers = max(job.occupied_workers, min(job.current_workers, target))
        for i, amount in enumerate(job.demand(workers).vector()):
            totals[i] += amount
    return tuple(totals)


def _change(job: JobView, have: int, want: int) -> tuple[float, ...]:
    before, after = job.demand(have).vector(), job.demand(want).vector()
    return tuple(b - a for a, b in zip(before, after, strict=True))


def _grantable(job: JobView, floor: int, wanted: int, free: list[float], limited: tuple[int, ...]) -> int:
    """The size up to ``wanted`` that can be granted now; ``floor`` or 0 if there is none."""
    # A running job changes once, when all is free; one that waits starts with what there is.
    choices = [wanted] if floor >= job.smallest else reversed([s for s in job.sizes if floor < s <= wanted])
    for size in choices:
        change = _change(job, floor, size)
        if all(change[i] <= free[i] + 1e-9 for i in limited):
            return size
    if floor >= job.smallest:
        return allowed_at_most(job, floor)
    return 0


def _held_back(job: JobView, allocation: Allocation, now: int) -> Allocation:
    if now >= allocation.workers:
        return allocation
    text = (
        f"{allocation.workers} workers are assigned to it; it has {now} until the former users of the other slots "
        "have left"
    )
    reason = Reason(
        ReasonCode.WAITING_FOR_DRAIN,
        text,
        allocation.reason.blockers,
        {"workers": now, "assigned": allocation.workers},
    )
    return Allocation(now, now > 0, reason)
