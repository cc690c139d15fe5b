"""Series of numbers over time that stay small however long they grow: fine for the last minutes, coarser before.

A *recorder* takes samples and makes rows: of each span of each *tier* the means and extremes of all numbers. A row of
a long span is written once a minute until the span is over, so that who records may die at any moment. Who takes over
is another *writer* with rows of its own; a reader adds up what several writers tell of one span.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl_core.well_formed import shortened

Numbers = Mapping[str, Sequence[float]]
"""By name: mean, least and largest; the mean alone where they are equal."""
Point = list[float]
"""Where it lies, mean, least, largest."""
MOST_NAMES = 64
"""Series of one job."""
NAME_CHARS = 200
"""Characters of a name; longer ones are shortened where they are recorded."""
_DIGITS = 6
_FLUSH_S = 60


@dataclass(frozen=True)
class SeriesTier:
    """One degree of fineness.

    Attributes:
        step_s: length of a span.
        keeps_s: how long rows are kept, counted back from the newest; infinite for ever.
    """

    step_s: int
    keeps_s: float


TIERS = (
    SeriesTier(5, 1800.0),
    SeriesTier(60, 86_400.0),
    SeriesTier(600, 14 * 86_400.0),
    SeriesTier(7200, math.inf),
)


@dataclass(frozen=True)
class SeriesRow:
    """Statistics of all numbers in one span.

    Attributes:
        tier: index in ``TIERS``.
        start: when the span begins, in seconds since the epoch.
        samples: how many the means are of.
        numbers: means and extremes.
    """

    tier: int
    start: int
    samples: int
    numbers: Numbers

    @property
    def middle(self) -> float:
        """The middle of the span."""
        return self.start + TIERS[self.tier].step_s / 2


@dataclass
class _Totals:
    """The numbers of one or more spans, being added up."""

    samples: int = 0
    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, numbers: Numbers, samples: int = 1) -> None:
        self.samples += samples
        for name, told in numbers.items():
            mean, least, largest = told if len(told) == 3 else (told[0],) * 3
            known = self.sums.get(name)
            if known is None:
                self.sums[name] = [mean * samples, float(samples), least, largest]
            else:
                known[0] += mean * samples
                known[1] += samples
                known[2], known[3] = min(known[2], least), max(known[3], largest)

    def numbers(self) -> dict[str, list[float]]:
        found = {}
        for name, (total, count, least, largest) in self.sums.items():
            values = [_rounded(total / count), _rounded(least), _rounded(largest)]
            found[name] = values[:1] if values[1] == values[2] else values
        return found


class SeriesRecorder:
    """Turns samples into rows.

    Args:
        most_rows: rows that wait to be taken; beyond that the oldest of the finest tier are dropped.
    """

    def __init__(self, most_rows: int = 1000) -> None:
        self._most_rows = most_rows
        self._open: list[tuple[int, _Totals]] = [(0, _Totals()) for _ in TIERS]
        self._due: dict[tuple[int, int], SeriesRow] = {}
        self._flushed = 0

    def record(self, now: float, values: Mapping[str, float | None]) -> None:
        """Takes a sample; what is no number is left out, and so is what comes after the first 64 names."""
        known = {
            shortened(name, NAME_CHARS): [value]
            for name, value in values.items()
            if value is not None and math.isfinite(value)
        }
        sample = dict(list(known.items())[:MOST_NAMES])
        for tier, (start, totals) in enumerate(self._open):
            begins = int(now) // TIERS[tier].step_s * TIERS[tier].step_s
            if begins != start:
                self._make_due(tier)
                totals = _Totals()
                self._open[tier] = (begins, totals)
            totals.add(sample)
        minute = int(now) // _FLUSH_S
        if minute != self._flushed:
            self._flushed = minute
            for tier in range(1, len(TIERS)):
                self._make_due(tier)

    def take(self, *, everything: bool = False) -> list[SeriesRow]:
        """Takes the rows that are to be written; with ``everything`` those of open spans too."""
        if everything:
            for tier in range(len(TIERS)):
                self._make_due(tier)
        taken, self._due = list(self._due.values()), {}
        return taken

    def give_back(self, rows: Iterable[SeriesRow]) -> None:
        """Puts rows back that could not be written; what is newer of the same span counts."""
        self._due = {(row.tier, row.start): row for row in rows} | self._due
        over = len(self._due) - self._most_rows
        for key in sorted(self._due)[: max(over, 0)]:
            del self._due[key]

    def _make_due(self, tier: int) -> None:
        start, totals = self._open[tier]
        if totals.samples:
            self._due[tier, start] = SeriesRow(tier, start, totals.samples, totals.numbers())


@dataclass(frozen=True)
class SeriesSegment:
    """Rows to read: those of a tier whose spans begin in a stretch of time.

    Attributes:
        tier: index in ``TIERS``.
        since: the first second.
        until: the first second after it.
    """

    tier: int
    since: int
    until: int


def segments(
    bounds: Mapping[int, tuple[int, int]], since: float, until: float, points: int
) -> tuple[SeriesSegment, ...]:
    """The rows that tell most of a stretch of time, without telling anything twice.

    The coarsest tier that still gives so many points is read; what is older than its rows comes from coarser ones,
    and what its last row does not have yet from finer ones.

    Args:
        bounds: the beginnings of the first and the last span of each tier that has any.
        since: the beginning.
        until: the end.
        points: how many points are wanted.
    """
    need = max((until - since) / max(points, 1), TIERS[0].step_s)
    there = sorted(bounds)
    if not there:
        return ()
    base = max((tier for tier in there if TIERS[tier].step_s <= need), default=there[0])
    found: list[SeriesSegment] = []
    end = math.ceil(until)
    # Newest first: the tail of each tier is better told by the next finer one.
    for tier in there:
        first, last = bounds[tier]
        begin, coarser = first, min((other for other in there if other > tier), default=None)
        if found and first + TIERS[tier].step_s > end:
            continue  # its first span is told already
        older = min(
            (other for other in there if other > tier and _goes_further(bounds[other], other, first)), default=None
        )
        if older is not None:
            # Where the coarser one goes on, it does so with whole spans.
            begin = -(-first // TIERS[older].step_s) * TIERS[older].step_s
        if tier < base and coarser is not None:
            begin = max(begin, bounds[coarser][1])
        begin = max(begin, math.floor(since) // TIERS[tier].step_s * TIERS[tier].step_s)
        if begin < end and begin <= last:
            found.append(SeriesSegment(tier, begin, end))
            end = begin
    return tuple(reversed(found))


def beginning(bounds: Mapping[int, tuple[int, int]]) -> int:
    """When a series begins: that of its finest tier, unless a coarser one has a whole span before it.

    Args:
        bounds: the beginnings of the first and the last span of each tier that has any.

    Returns:
        Unix seconds; 0 for a series without rows.
    """
    tiers = sorted(bounds)
    begin = bounds[tiers[0]][0] if tiers else 0
    for tier in tiers:
        if _goes_further(bounds[tier], tier, begin):
            begin = bounds[tier][0]
    return begin


def _goes_further(bounds: tuple[int, int], tier: int, begin: int) -> bool:
    """Whether a tier has a whole span before a time: one that only holds that time tells nothing that is older."""
    return bounds[0] + TIERS[tier].step_s <= begin


def resolution_of(since: float, until: float, points: int) -> int:
    """The seconds that a point stands for when a stretch of time is shown with so many: whole spans."""
    step = TIERS[0].step_s
    return max(step, math.ceil((until - since) / max(points, 1) / step) * step)


def points_of(rows: Iterable[SeriesRow], resolution_s: int, *, along: str = "") -> dict[str, list[Point]]:
    """The points of each series.

    Args:
        rows: what was read, from any tiers and writers.
        resolution_s: rows that begin in one stretch of that length are one point.
        along: the series whose mean is where the points lie; empty for time.
    """
    stretches: dict[int, tuple[_Totals, float]] = {}
    for row in rows:
        totals, moments = stretches.get(row.start // resolution_s, (_Totals(), 0.0))
        totals.add(row.numbers, row.samples)
        stretches[row.start // resolution_s] = (totals, moments + row.middle * row.samples)
    found: dict[str, list[Point]] = {}
    for _, (totals, moments) in sorted(stretches.items()):
        numbers = totals.numbers()
        if along and along not in numbers:
            continue
        x = numbers[along][0] if along else round(moments / totals.samples, 1)
        for name, told in numbers.items():
            if name != along:
                mean, least, largest = told if len(told) == 3 else (told[0],) * 3
                found.setdefault(name, []).append([x, mean, least, largest])
    if along:
        for series in found.values():
            series.sort(key=lambda point: point[0])
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if abs(value) < 10**_DIGITS else round(value, 1)
