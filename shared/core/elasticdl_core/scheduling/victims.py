"""Whose slots are taken where the running jobs of a tier do not all fit any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from elasticdl_core.scheduling.snapshot import JobView

MOST_WEIGHED = 1000
"""With more running jobs, or more slots missing, victims are not searched for the fewest slots."""


class _Chain(NamedTuple):
    """Jobs, the last one first; those before it are shared by all that go on from them."""

    job_id: str
    rest: _Chain | None


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
    best: dict[float, _Chain | None] = {0.0: None}
    for job in order:
        for held, chain in list(best.items()):
            if held < missing - 1e-9:
                best.setdefault(round(held + slots[job.id], 6), _Chain(job.id, chain))
        if round(missing, 6) in best:
            break
    enough = [held for held in best if held >= missing - 1e-9]
    last = best[min(enough) if enough else max(best)]  # What is rounded may lack a little of what all hold.
    found = set()
    while last is not None:
        found.add(last.job_id)
        last = last.rest
    return found
