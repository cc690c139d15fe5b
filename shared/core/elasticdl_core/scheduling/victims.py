"""Whose slots are taken where the running jobs of a tier do not all fit any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from elasticdl_core.scheduling.snapshot import JobView

MOST_WEIGHED = 1000
"""With more running jobs, or more slots missing, victims are not searched for the fewest slots."""


def claims_of(
    running: Sequence[JobView], free: float, size: Callable[[JobView], int], eta: Callable[[JobView, int], float]
) -> Sequence[JobView]:
    """Running jobs of a tier whose minimums do not all fit, those last that are to leave.

    These hold the fewest slots, then have the longest to go, then are the newest. One that will end sooner than it
    could restart leaves only where the others do not suffice.
    """
    slots = {job.id: job.demand(size(job)).slots for job in running}
    rest = {job.id: eta(job, job.current_workers) for job in running}
    missing = sum(slots.values()) - free
    if missing <= 1e-9:
        return running
    others = [job for job in running if rest[job.id] > job.rescale_cost_s]
    if sum(slots[job.id] for job in others) < missing - 1e-9:
        others = list(running)
    others.reverse()  # the newest first, among those with as long to go
    others.sort(key=lambda job: -rest[job.id])
    victims = _fewest(others, slots, missing)
    stay = [job for job in running if job.id not in victims]
    return [*stay, *(job for job in running if job.id in victims)]


def _fewest(order: Sequence[JobView], slots: Mapping[str, float], missing: float) -> Set[str]:
    """Jobs that hold at least ``missing`` slots, and few more; the first ones of equals."""
    best: dict[float, tuple[str, ...]] = {0.0: ()}
    if len(order) > MOST_WEIGHED or missing > MOST_WEIGHED:
        held, chosen = 0.0, []
        for job in order:
            if held >= missing - 1e-9:
                break
            chosen.append(job)
            held += slots[job.id]
        for job in sorted(chosen, key=lambda job: -slots[job.id]):
            if held - slots[job.id] >= missing - 1e-9:
                held -= slots[job.id]
                chosen.remove(job)
        return {job.id for job in chosen}
    for job in order:
        for held, ids in list(best.items()):
            if held < missing - 1e-9:
                best.setdefault(round(held + slots[job.id], 6), (*ids, job.id))
        if round(missing, 6) in best:
            break
    return set(best[min(held for held in best if held >= missing - 1e-9)])
