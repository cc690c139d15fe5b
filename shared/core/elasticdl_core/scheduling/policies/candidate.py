"""A job as the goodput policy weighs it: what each worker is worth to it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl_core.scheduling.snapshot import JobView
from elasticdl_core.scheduling.throughput import Curve, fit

_MEASURING_COOLDOWNS = 5
"""A size at which the job was not measured yet is kept for this many cool-downs at most."""


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """The numbers of the goodput policy.

    Attributes:
        urgency: exponent of the remaining time by which a job's relative speed is divided. 1 weighs a job by the
            fraction of its remaining work done per second; 0 ignores remaining work.
        horizon_s: a change must pay for itself within this time, or the job's remaining time if less.
        caution: how many times its cost a change must bring.
        cooldown_s: for this long after a change a job keeps its size, unless another's minimum needs its workers.
        min_runtime_s: a job is not evicted for another team's guarantee before it ran this long.
        least_gain: a worker that adds less than this fraction of a single worker's speed is not taken.
        first_size: a job of which nothing is known starts with at most this many workers (or its minimum).
        explore: a job grows to at most this many times the largest count at which its kind was measured.
        critical: how much more a job counts whose remaining time, however many workers it had, is a large part of the
            time that the cluster needs for all work present.
        shortest_s: remaining times are not told apart below this.
        unknown_s: single-worker remaining time that is assumed for a job that reports none.
    """

    urgency: float = 0.56
    horizon_s: float = 600.0
    caution: float = 1.5
    cooldown_s: float = 60.0
    min_runtime_s: float = 600.0
    least_gain: float = 0.02
    first_size: int = 4
    explore: float = 3.0
    critical: float = 4.4
    shortest_s: float = 60.0
    unknown_s: float = 3600.0


@dataclass(slots=True)
class Candidate:
    """A job with its curve, in units that can be compared between jobs.

    The value of a size is the job's speed relative to one worker, divided by its single-worker remaining time to the
    power of ``urgency``.

    Attributes:
        job: the job.
        curve: its speed by size.
        unit: value of one record/s.
        cost: what one worker takes, in slot equivalents.
        remaining_s: seconds that a single worker would still need.
        current: the allowed size in force, 0 if it waits.
        top: index among the curve's corners of the largest size that it may be given.
        capped: why ``top`` is not the last size: ``useful``, ``measuring`` or empty.
        penalty: value that a change must gain, per second.
        frozen: whether it changed so lately that it keeps its size by choice.
    """

    job: JobView
    curve: Curve
    unit: float
    cost: float
    remaining_s: float
    current: int
    top: int
    capped: str
    penalty: float
    frozen: bool

    def value(self, workers: int) -> float:
        """Value per second of that size."""
        return self.unit * self.curve.worth(workers)

    def larger(self, workers: int) -> int | None:
        """The next size worth taking, or None."""
        index = bisect_right(self.curve.corners, workers)
        return self.curve.corners[index] if index <= self.top else None

    def smaller(self, workers: int) -> int | None:
        """The next smaller size worth having, or None."""
        index = bisect_left(self.curve.corners, workers)
        return self.curve.corners[index - 1] if index > 0 else None

    def density(self, have: int, want: int) -> float:
        """Value per slot of going from one size to a larger one."""
        return (self.value(want) - self.value(have)) / (self.cost * (want - have))

    def surplus(self, workers: int) -> float:
        """Slots above the minimum."""
        return (workers - self.curve.corners[0]) * self.cost


def remaining_alone(job: JobView, curve: Curve, settings: GoodputSettings, now: float) -> float:
    """Seconds that one worker would still need; for a job that does not say, as long again as it has worked."""
    if job.remaining_records is not None and curve.measured_up_to and curve.base > 0:
        return max(job.remaining_records / curve.base, settings.shortest_s)
    return max(job.attained_service, settings.unknown_s)


def weigh(job: JobView, cost: float, settings: GoodputSettings, now: float) -> Candidate:
    """Builds the candidate of a job."""
    curve = fit(job.sizes, job.throughput, job.prior_throughput)
    remaining = remaining_alone(job, curve, settings, now)
    unit = 1.0 / (max(curve.base, 1e-12) * remaining**settings.urgency)
    current = 0
    if job.current_workers > 0:
        index = bisect_right(curve.sizes, job.current_workers) - 1
        current = curve.sizes[max(index, 0)]
    top, capped = _top(job, curve, settings)
    penalty = 0.0
    frozen = False
    if current:
        rate = curve.rate(current)
        left = remaining * curve.base / rate if rate > 0 else remaining
        horizon = max(min(left, settings.horizon_s), 1.0)
        penalty = settings.caution * unit * rate * job.rescale_cost_s / horizon
        since = now - job.last_rescale_at if job.last_rescale_at is not None else math.inf
        unmeasured = bool(job.throughput) and current not in job.throughput
        frozen = since < settings.cooldown_s * (_MEASURING_COOLDOWNS if unmeasured else 1)
    return Candidate(job, curve, unit, max(cost, 1e-9), remaining, current, top, capped, penalty, frozen)


def weigh_critical(candidates: Iterable[Candidate], slots: float, settings: GoodputSettings) -> None:
    """Raises the weight of jobs on the critical path.

    Dividing by remaining time favours short jobs, which is what keeps waiting low on average, but the longest job
    then ends last and alone, on workers that it can hardly use. It counts more, the larger its shortest possible
    time is compared with the time in which the cluster could do all the work that is there.
    """
    candidates = list(candidates)
    drain = sum(c.remaining_s * c.cost for c in candidates) / max(slots, 1.0)
    if drain <= 0 or settings.critical <= 0:
        return
    for c in candidates:
        fastest = c.curve.rate(c.curve.corners[-1])
        shortest = c.remaining_s * c.curve.base / fastest if fastest > 0 else 0.0
        factor = 1.0 + settings.critical * shortest / drain
        c.unit *= factor
        c.penalty *= factor


def _top(job: JobView, curve: Curve, settings: GoodputSettings) -> tuple[int, str]:
    """The largest size worth having, and the largest that is safe to try; the smaller of both."""
    last = len(curve.corners) - 1
    useful = min(bisect_right(curve.falls, -settings.least_gain * curve.base), last)
    known = curve.measured_up_to
    bound = settings.explore * known if known else max(settings.first_size, job.smallest)
    safe = max(bisect_right(curve.corners, bound) - 1, 0)
    if safe < useful:
        return safe, "measuring"
    return useful, "" if curve.corners[useful] == curve.sizes[-1] else "useful"
