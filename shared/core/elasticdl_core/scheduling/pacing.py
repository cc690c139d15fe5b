"""Turns a plan into targets that can be given out now, while those who shrink still hold their slots.

A plan says where the cluster should go. A worker that is drained keeps its slot until it has left, so a job that
grows into it is granted only what is free at this moment; it gets the rest in a later pass.
"""

from __future__ import annotations

from dataclasses import replace

from elasticdl_core.devices import WHOLE, DevicePool
from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies.surplus import allowed_at_most
from elasticdl_core.scheduling.snapshot import GPU, NOTHING, ONE_SLOT, JobView, Snapshot
from elasticdl_core.scheduling.words import workers_of


def pace(snapshot: Snapshot, plan: Plan) -> Plan:
    """Holds back growth for which slots are not free yet.

    Returns:
        A plan under which what all jobs hold now, or are asked to hold, whichever is more, fits the capacity, in
        so far as the present holdings fit at all. Shrinking is never held back.
    """
    pool = planned_pool(snapshot, plan)
    free = [total - held for total, held in zip(snapshot.capacity.total.vector(), _held(snapshot, plan), strict=True)]
    limited = snapshot.limited
    allocations: dict[str, Allocation] = {}
    for job_id, allocation in plan.allocations.items():
        job = snapshot.by_id[job_id]
        floor = max(job.occupied_workers, min(job.current_workers, allocation.workers))
        if allocation.workers <= floor:
            allocations[job_id] = allocation
            continue
        now = _grantable(job, floor, allocation.workers, free, limited, pool)
        if now > floor:
            for i, amount in enumerate(_change(job, floor, now)):
                free[i] -= amount
            _place(job, now - floor, pool)
        allocations[job_id] = _held_back(job, allocation, now)
    return replace(plan, allocations=allocations)


def planned_pool(snapshot: Snapshot, plan: Plan) -> DevicePool | None:
    """The rest of each device before any growth: workers are where they are, and those to come go first."""
    if GPU not in snapshot.limited or not snapshot.capacity.devices:
        return None
    pool = DevicePool(WHOLE - device.leaving for device in snapshot.capacity.devices)
    asking = [job for job in snapshot.jobs if job.device_share]
    for job in asking:
        for place in job.places:
            pool.take(job.device_share, place)
    for job in asking:
        allocation = plan.allocations.get(job.id)
        granted = min(job.current_workers, allocation.workers if allocation else 0)
        _place(job, granted - len(job.places), pool)
    return pool


def _place(job: JobView, workers: int, pool: DevicePool | None) -> None:
    """Takes the devices of so many workers more, as far as there are some."""
    if pool is None or not job.device_share:
        return
    for _ in range(workers):
        place = pool.find(job.device_share)
        if place is None:
            return
        pool.take(job.device_share, place)


def _held(snapshot: Snapshot, plan: Plan) -> tuple[float, ...]:
    """The resources taken before any growth."""
    totals = list(snapshot.capacity.leaving.vector())
    for job in snapshot.jobs:
        allocation = plan.allocations.get(job.id)
        target = allocation.workers if allocation else 0
        workers = max(job.occupied_workers, min(job.current_workers, target))
        if job.worker is ONE_SLOT and job.fixed is NOTHING:  # as nearly all are, and this is done for each
            totals[0] += workers
            continue
        for i, amount in enumerate(job.demand(workers).vector()):
            totals[i] += amount
    return tuple(totals)


def _change(job: JobView, have: int, want: int) -> tuple[float, ...]:
    before, after = job.demand(have).vector(), job.demand(want).vector()
    return tuple(b - a for a, b in zip(before, after, strict=True))


def _grantable(
    job: JobView, floor: int, wanted: int, free: list[float], limited: tuple[int, ...], pool: DevicePool | None
) -> int:
    """The size up to ``wanted`` that can be granted now; what it has if there is none."""
    # A running job changes once, when all is free; one that waits starts with what there is.
    choices = [wanted] if floor >= job.smallest else reversed([s for s in job.sizes if floor < s <= wanted])
    for size in choices:
        change = _change(job, floor, size)
        if pool is not None and job.device_share and pool.room(job.device_share) < size - floor:
            continue
        if all(change[i] <= free[i] + 1e-9 for i in limited):
            return size
    if floor >= job.smallest:
        return allowed_at_most(job, floor)
    return job.current_workers  # 0 if it waits; one whose minimum was raised goes on with what it has


def _held_back(job: JobView, allocation: Allocation, now: int) -> Allocation:
    if now >= allocation.workers:
        return allocation
    text = (
        f"it is to have {workers_of(allocation.workers)}; it has {now} until the former users of the other slots "
        "have left"
    )
    reason = Reason(
        ReasonCode.WAITING_FOR_DRAIN,
        text,
        allocation.reason.blockers,
        {"workers": now, "assigned": allocation.workers},
    )
    return Allocation(now, now > 0, reason)
