"""A job as the goodput policy weighs it: what each worker is worth to it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl_core.scheduling.plan import Allocation
from elasticdl_core.scheduling.snapshot import JobView
from elasticdl_core.scheduling.throughput import Curve

_ALIKE = math.log(1.001)
"""Logarithm of the ratio up to which remaining times are about equal."""

_LONGEST_S = 1e12
"""Remaining times are not told apart above this: a speed that was measured may be next to nothing."""

_MEASURING_COOLDOWNS = 5
"""A size at which the job was not measured yet is kept for this many cool-downs at most."""


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """The numbers of the goodput policy.

    Attributes:
        urgency: exponent of a job's rank by remaining time (1 for the longest) in its weight. 0 weighs all
            jobs alike; with one half, work in the longest of ``n`` jobs counts ``1 / sqrt(n)`` of that in the
            shortest.
        horizon_s: a change must pay for itself within this time, or the job's remaining time if less.
        caution: how many times its cost a change must bring.
        cooldown_s: for this long after a change a job keeps its size, unless another's minimum needs its workers.
        min_runtime_s: a job is not evicted for another team's guarantee before it ran this long.
        least_gain: a worker that adds less than this fraction of a single worker's speed is not taken.
        first_size: a job of which nothing is known starts with at most this many workers (or its minimum).
        explore: a job grows to at most this many times the largest count at which its kind was measured.
        critical: exponent of the ratio by which a job's own shortest remaining time is longer than the time in which
            the cluster could do all work present; it counts that much more. 0 ignores it.
        shortest_s: remaining times are not told apart below this.
        unknown_s: single-worker remaining time that is assumed for a job that reports none.
    """

    urgency: float = 0.6
    horizon_s: float = 450.0
    caution: float = 2.5
    cooldown_s: float = 60.0
    min_runtime_s: float = 600.0
    least_gain: float = 0.02
    first_size: int = 4
    explore: float = 3.0
    critical: float = 1.5
    shortest_s: float = 60.0
    unknown_s: float = 3600.0


@dataclass(slots=True, eq=False)
class Candidate:
    """A job with its curve, in units that can be compared between the jobs of a team and tier.

    The value of a size is the job's speed relative to one worker, times its weight.

    Attributes:
        job: the job.
        curve: its speed by size.
        cost: what one worker takes, in slot equivalents.
        minimum: slots of its smallest size, with what master and PS take.
        remaining_s: seconds that a single worker would still need.
        fastest_s: seconds that it would still need, however many workers it had.
        alone_s: seconds that its smallest size would still need.
        current: the allowed size in force, 0 if it waits.
        top: index among the curve's corners of the largest size that it may be given.
        capped: why ``top`` is not the last size: ``useful``, ``measuring`` or empty.
        room: slots from the smallest size to the top.
        burden: records/s that a change must gain.
        thaws_at: until then the job keeps its size by choice, as it changed lately; 0 if it need not.
        frozen: whether that is still to come.
        curious: whether it runs and has measurements, so that it may try sizes that it never had.
        magnitude: the remaining time on a coarse logarithmic scale.
        group: its priority and team: the jobs with which it shares slots.
        order: its place among running jobs.
        unit: value of one record/s.
        penalty: value that a change must gain, per second.
        explained: the allocation last explained, and what it was explained by.
    """

    job: JobView
    curve: Curve
    cost: float
    minimum: float
    remaining_s: float
    fastest_s: float
    alone_s: float
    current: int
    top: int
    capped: str
    room: float
    burden: float
    thaws_at: float
    frozen: bool
    curious: bool
    magnitude: int
    group: tuple[int, str]
    order: tuple[float, str]
    unit: float = 1.0
    penalty: float = 0.0
    explained: tuple[object, Allocation] | None = None

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


def weigh(job: JobView, cost: float, settings: GoodputSettings, now: float) -> Candidate:
    """Builds the candidate of a job; ``rank`` gives it its weight among others.

    It is called for each job of a full plan, so it asks for nothing twice.
    """
    curve = job.curve
    base, corners = curve.base, curve.corners
    records = job.remaining_records
    if records is not None and base > 0 and curve.measured_up_to:
        remaining = min(max(records / base, settings.shortest_s), _LONGEST_S)
    else:  # For a job that does not say, as long again as it has worked.
        remaining = max(job.attained_service, settings.unknown_s)
    key = (settings.least_gain, settings.explore, settings.first_size)
    found = curve.tops.get(key)
    if found is None:
        found = curve.tops[key] = _top(curve, settings)
    top, capped = found
    if cost < 1e-9:
        cost = 1e-9
    current, burden, thaws_at = 0, 0.0, 0.0
    measured = bool(job.throughput)
    if job.current_workers > 0:
        index = max(bisect_right(curve.sizes, job.current_workers) - 1, 0)
        current, rate = curve.sizes[index], curve.rates[index]
        known = records is not None and rate > 0 and curve.measured_up_to > 0
        left = (records or 0.0) / rate if known else remaining * base / rate if rate > 0 else remaining
        burden = settings.caution * rate * job.rescale_cost_s / max(min(left, settings.horizon_s), 1.0)
        if left <= job.rescale_cost_s:  # However fast it would be, it would still change when it could have ended.
            burden = max(burden, curve.fastest)
        # A change that is still to come was made before the clock was set back.
        if job.last_rescale_at is not None and job.last_rescale_at <= now:
            unmeasured = measured and current not in job.throughput
            thaws_at = job.last_rescale_at + settings.cooldown_s * (_MEASURING_COOLDOWNS if unmeasured else 1)
    return Candidate(
        job,
        curve,
        cost,
        job.fixed.slots + corners[0] * job.worker.slots,
        remaining,
        remaining * base / curve.fastest if curve.fastest > 0 else 0.0,
        remaining / curve.slowest,
        current,
        top,
        capped,
        cost * (corners[top] - corners[0]),
        burden,
        thaws_at,
        now < thaws_at,
        current > 0 and measured,
        round(math.log(remaining if remaining > 1e-9 else 1e-9) / _ALIKE),
        (job.priority, job.team),
        (job.started_at or 0.0, job.id),
    )


def rank(candidates: Iterable[Candidate], settings: GoodputSettings, drain_s: float = math.inf) -> None:
    """Gives the jobs that share slots their weights, by their rank in remaining time.

    For jobs with the speed-up ``n ** p`` that all are there already, average completion is least when the i-th
    longest counts ``(i ** a - (i - 1) ** a) ** (1 / a)`` with ``a = 1 / (1 - p)``, whatever the remaining times
    themselves (heSRPT: Berg, Vesilo and Harchol-Balter, PERFORMANCE 2020); for p = 1/2 that is ``sqrt(2 i - 1)``. An
    error in a remaining time therefore matters only as far as it changes the order, and the longest job, which
    decides when all are done, is not starved as it is where its time divides its value. Remaining times that are
    about equal share their ranks, so that equal jobs get equal shares.

    A job on the critical path counts more: one that needs longer than ``drain_s``, in which the cluster could do all
    work present. Otherwise it would end last, alone, on workers that it can hardly use.
    """
    buckets: dict[int, list[Candidate]] = {}
    for c in candidates:
        buckets.setdefault(c.magnitude, []).append(c)
    longer = 0
    for magnitude in sorted(buckets, reverse=True):
        members = buckets[magnitude]
        weight = (longer + (len(members) + 1) / 2) ** settings.urgency
        longer += len(members)
        for c in members:
            urgent = c.fastest_s / drain_s
            factor = urgent**settings.critical if urgent > 1.0 else 1.0
            base = c.curve.base
            c.unit = unit = weight * factor / (base if base > 1e-12 else 1e-12)
            c.penalty = unit * c.burden


def _top(curve: Curve, settings: GoodputSettings) -> tuple[int, str]:
    """The largest size worth having, and the largest that is safe to try; the smaller of both."""
    last = len(curve.corners) - 1
    useful = min(bisect_right(curve.falls, -settings.least_gain * curve.base), last)
    known = curve.measured_up_to
    bound = settings.explore * known if known else max(settings.first_size, curve.sizes[0])
    safe = max(bisect_right(curve.corners, bound) - 1, 0)
    if safe < useful:
        return safe, "measuring"
    return useful, "" if curve.corners[useful] == curve.sizes[-1] else "useful"
