"""Speed of a job at each number of workers: measured, fitted, or taken from similar jobs.

The model is ``n / rate(n) = a + b (n - 1)``: with a fixed global batch ``a`` is the work of one worker and ``b``
the cost of keeping one more in step; with a fixed batch a worker, ``b`` is contention at the parameter servers.
It is linear in its two unknowns, concave in ``n`` for ``a, b >= 0``, and needs no iteration to fit. Where counts were
measured the curve goes through the measurements. Of the sizes only those on the upper concave hull are worth
taking (a fifth worker can cost more in crossing to a second machine than it brings), so that a marginal gain is well
defined from each to the next.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PRIOR_STRENGTH = 0.25
"""Weight of a prior relative to one measurement, in the fit of the slope ``b``."""

MEASUREMENT_NOISE = 0.1
"""Relative standard deviation of a measured speed: a mean over the last few windows, however long the job runs."""

KIND_SPREAD = 0.05
"""Relative standard deviation that the shapes of the curves of a kind's jobs have at least."""

DIMINISHING = 0.02
"""Exponent of the worker count by which rates are discounted when they are weighed, so that jobs that speed up in
proportion share evenly instead of one taking all."""

LONE_SLOPE = 0.02
"""``b / a`` assumed when nothing similar was seen: nearly linear, so that growing is tried, but not for ever."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Rates over the allowed sizes.

    Attributes:
        sizes: the worker counts that the job may have, ascending.
        rates: records/s at each.
        worths: the rates, discounted a little with the worker count.
        corners: the sizes on the upper concave hull of the worths up to the fastest, ascending, from the smallest.
        gains: rise of the worth per worker from one corner to the next (one less than the corners), decreasing.
        falls: the gains with their sign turned: ascending, to be searched.
        base: rate of a single worker (extrapolated if the smallest size is larger).
        measured_up_to: the largest count with a measurement or a prior; 0 if there is none.
        widths: workers from one corner to the next.
        fastest: the rate at the last corner.
        slowest: the rate at the smallest size as a multiple of that of a single worker; never 0.
        tops: which corners are worth having, by the settings that say so; filled by those who ask.
    """

    sizes: Sequence[int]
    rates: tuple[float, ...]
    worths: tuple[float, ...]
    corners: tuple[int, ...]
    gains: tuple[float, ...]
    falls: tuple[float, ...]
    base: float
    measured_up_to: int
    widths: tuple[int, ...]
    fastest: float
    slowest: float
    tops: dict[tuple[float, float, int], tuple[int, str]] = field(default_factory=dict, repr=False)

    def rate(self, workers: int) -> float:
        """Records/s with that many workers; 0 for none. Between allowed sizes, that of the next smaller."""
        if workers <= 0:
            return 0.0
        index = bisect_left(self.sizes, workers + 1) - 1
        return self.rates[index] if index >= 0 else self.base

    def worth(self, workers: int) -> float:
        """The discounted rate of an allowed size; 0 for none."""
        if workers <= 0:
            return 0.0
        return self.worths[max(bisect_left(self.sizes, workers + 1) - 1, 0)]


def fit(sizes: Sequence[int], measured: Mapping[int, float], prior: Mapping[int, float] | None = None) -> Curve:
    """Fits a job's curve.

    Args:
        sizes: the worker counts that the job may have, ascending.
        measured: records/s by worker count of the job itself.
        prior: records/s by worker count of similar jobs; with measurements only its shape is used.

    Returns:
        The curve over ``sizes``. With neither measurements nor a prior its rates are relative to one worker.
    """
    return _fit(
        sizes if isinstance(sizes, range) else tuple(sizes),
        tuple(sorted((n, r) for n, r in measured.items() if n > 0 and r > 0)),
        tuple(sorted((n, r) for n, r in (prior or {}).items() if n > 0 and r > 0)),
    )


Points = tuple[tuple[int, float], ...]
_MOST_LOG = 690.0


@functools.lru_cache(maxsize=65536)
def _fit(sizes: Sequence[int], measured: Points, prior: Points) -> Curve:
    slope = _slope(prior, LONE_SLOPE, 0.0)
    if measured:
        slope = _slope(measured, slope, PRIOR_STRENGTH)
        anchors = measured
    else:
        anchors = prior or ((1, 1.0),)
    if measured and prior:
        anchors = _merged(measured, prior, slope)
    rates = [_through(anchors, slope, n) for n in sizes]
    base = _through(anchors, slope, 1)
    worths = tuple(rate * n**-DIMINISHING for n, rate in zip(sizes, rates, strict=True))
    corners, gains = _hull(sizes, worths)
    known = max((n for n, _ in measured + prior), default=0)
    return Curve(
        sizes,
        tuple(rates),
        worths,
        corners,
        gains,
        tuple(-gain for gain in gains),
        base,
        known,
        tuple(b - a for a, b in itertools.pairwise(corners)),
        rates[bisect_left(sizes, corners[-1])],
        max(rates[0] / max(base, 1e-12), 1e-9),
    )


def _slope(points: Points, fallback: float, strength: float) -> float:
    """Least-squares ``b / a`` of the points, drawn towards ``fallback``; not negative."""
    if len(points) < 2:
        return fallback
    # x = n - 1, y = n / rate; a from the smallest count measured given b, then b/a by least squares.
    xs = [n - 1 for n, _ in points]
    ys = [n / rate for n, rate in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    b = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    a = mean_y - b * mean_x
    if a <= 0:
        a = min(ys) / max(xs[0] + 1, 1)
    fitted = max(b, 0.0) / a
    weight = (len(points) - 1) / (len(points) - 1 + strength)
    return weight * fitted + (1 - weight) * fallback


def _merged(measured: Points, prior: Points, slope: float) -> Points:
    """Weighs the measurements against the prior, scaled to the job's level, at each count of either.

    Both are weighed by their precision (normal errors of the logarithms): that of a measurement is known, and how
    far a job's curve lies from its kind's is estimated from its own measurements. So a few noisy ones that agree with
    many similar jobs are smoothed by these, and those that contradict them count alone.
    """
    errors = [_log(rate) - _log(_through(prior, LONE_SLOPE, n)) for n, rate in measured]
    level = sum(errors) / len(errors)
    spread = KIND_SPREAD**2
    if len(errors) > 1:
        seen = sum((error - level) ** 2 for error in errors) / (len(errors) - 1)
        spread = max(spread, seen - MEASUREMENT_NOISE**2)
    trust = MEASUREMENT_NOISE**2 / (MEASUREMENT_NOISE**2 + spread)
    merged = []
    for n in sorted({n for n, _ in measured + prior}):
        own, kind = _log(_through(measured, slope, n)), _log(_through(prior, LONE_SLOPE, n)) + level
        merged.append((n, math.exp(min((1 - trust) * own + trust * kind, _MOST_LOG))))
    return tuple(merged)


def _log(rate: float) -> float:
    """The logarithm, also of what no job has: a speed is its owner's to choose."""
    return math.log(max(rate, math.exp(-_MOST_LOG)))


def _through(anchors: Points, slope: float, workers: int) -> float:
    """The rate at a count: linear between anchors, by the model's shape beyond them."""
    counts = [n for n, _ in anchors]
    index = bisect_left(counts, workers)
    if index < len(anchors) and counts[index] == workers:
        return anchors[index][1]
    if 0 < index < len(anchors):
        (low, low_rate), (high, high_rate) = anchors[index - 1], anchors[index]
        return low_rate + (high_rate - low_rate) * (workers - low) / (high - low)
    count, rate = anchors[0] if index == 0 else anchors[-1]
    return rate * _shape(workers, slope) / _shape(count, slope)


def _shape(workers: int, slope: float) -> float:
    return workers / (1.0 + slope * (workers - 1))


def _hull(sizes: Sequence[int], rates: Sequence[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The corners of the upper concave hull up to the fastest size, and the slopes between them."""
    corners: list[int] = [0]
    for i in range(1, len(sizes)):
        if rates[i] <= rates[corners[-1]]:
            continue
        while len(corners) > 1:
            last, before = corners[-1], corners[-2]
            rise = (rates[i] - rates[last]) * (sizes[last] - sizes[before])
            if rise < (rates[last] - rates[before]) * (sizes[i] - sizes[last]):
                break
            corners.pop()
        corners.append(i)
    gains = tuple((rates[b] - rates[a]) / (sizes[b] - sizes[a]) for a, b in itertools.pairwise(corners))
    return tuple(sizes[i] for i in corners), gains


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean records/s of several jobs at each worker count that any of them was measured at.

    The jobs' levels may differ (one ran on a slower machine), so each is first scaled to the mean level at the counts
    that it shares with the first.
    """
    sums: dict[int, tuple[float, int]] = {}
    for curve in curves:
        shared = [n for n in curve if n in sums]
        scale = 1.0
        if shared:
            scale = sum(sums[n][0] / sums[n][1] for n in shared) / sum(curve[n] for n in shared)
        for n, rate in curve.items():
            total, count = sums.get(n, (0.0, 0))
            sums[n] = (total + rate * scale, count + 1)
    return {n: total / count for n, (total, count) in sorted(sums.items())}
