"""Handing out of the workers above the minimums, shared by the policies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

from elasticdl_core.scheduling.capacity_tracker import CapacityTracker, Obstacle
from elasticdl_core.scheduling.device_reasons import lack_of_devices
from elasticdl_core.scheduling.plan import Allocation, Reason, ReasonCode
from elasticdl_core.scheduling.snapshot import JobView
from elasticdl_core.scheduling.words import slots_of, workers_of

MAX_BLOCKERS = 5


def next_size(job: JobView, workers: int) -> int | None:
    """The smallest allowed size above ``workers``, or None."""
    index = bisect_right(job.sizes, workers)
    return job.sizes[index] if index < len(job.sizes) else None


def allowed_at_most(job: JobView, workers: float) -> int:
    """The largest allowed size not above ``workers``; the smallest size if there is none."""
    index = bisect_right(job.sizes, workers)
    return job.sizes[max(index - 1, 0)]


def grow_as_far_as_possible(
    job: JobView, sizes: MutableMapping[str, int], tracker: CapacityTracker, most: int | None = None
) -> None:
    """Raises a job to the largest size that fits, at most ``most`` if given, and books it."""
    have = sizes[job.id]
    low = bisect_right(job.sizes, have) - 1
    high = (len(job.sizes) if most is None else bisect_right(job.sizes, most)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tracker.obstacle(job, have, job.sizes[middle]) is None:
            low = middle
        else:
            high = middle - 1
    if job.sizes[low] > have:
        tracker.take(job, have, job.sizes[low])
        sizes[job.id] = job.sizes[low]


def largest_holders(jobs: Iterable[JobView], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The jobs with most workers above their minimum."""
    holders: Sequence[JobView] = [job for job in jobs if sizes[job.id] > job.smallest]
    ranked = sorted(holders, key=lambda job: (job.smallest - sizes[job.id], job.id))
    return tuple(job.id for job in ranked[: MAX_BLOCKERS + 1])


def explained(
    jobs: Sequence[JobView],
    sizes: Mapping[str, int],
    tracker: CapacityTracker,
    special: Callable[[JobView, int], Reason | None] = lambda job, workers: None,
) -> dict[str, Allocation]:
    """The allocations of admitted jobs, each with its reason.

    Args:
        jobs: the admitted jobs, in the order in which they go first.
        sizes: their workers, by id.
        tracker: with everything booked.
        special: a policy's own reason, or None for the common one.
    """
    holders = largest_holders(jobs, sizes)
    free = max(tracker.free[0], 0.0)
    result: dict[str, Allocation] = {}
    for job in jobs:
        workers = sizes[job.id]
        reason = special(job, workers)
        if reason is None:
            reason = _common(job, workers, holders, free, tracker)
        result[job.id] = Allocation(workers, True, reason)
    return result


def _common(job: JobView, workers: int, holders: tuple[str, ...], free: float, tracker: CapacityTracker) -> Reason:
    data: dict[str, float | str] = {"workers": workers, "max_workers": job.largest, "free": free}
    more = next_size(job, workers)
    if more is None:
        text = f"it has {workers_of(workers)}, {job.why_no_more}"
        return Reason(ReasonCode.AT_MAX, text, (), data)
    obstacle = tracker.obstacle(job, workers, more)
    if obstacle is Obstacle.DEVICES:
        lacking, named = lack_of_devices(job, more - workers, tracker)
        text = f"it has {workers} of at most {workers_of(job.largest)}; another {lacking}"
        return Reason(ReasonCode.CLUSTER_FULL, text, named, data)
    if obstacle is Obstacle.LIMIT:
        text = f"it has {workers} of at most {workers_of(job.largest)}; team {job.team} is at its limit"
        return Reason(ReasonCode.TEAM_SHARE, text, (), data)
    others = tuple(holder for holder in holders if holder != job.id)[:MAX_BLOCKERS]
    head = f"it has {workers} of at most {workers_of(job.largest)}"
    text = f"{head}; {slots_of(free)} {'is' if free == 1 else 'are'} free for another {more - workers}"
    return Reason(ReasonCode.CLUSTER_FULL, text, others, data)
