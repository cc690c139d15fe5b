"""Speed of a job, and the time that the rest will take: one estimate for all who show it, with its band.

Workers report in beats, and a step may take longer than one; so the speed of a moment jumps where the job does not.
Here the records of all workers are counted together, in slices that end when records have come, and weighted by their
age. Time in which nobody works for long (a queue, a large evaluation, a new master) counts for neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SHOWN_S = 8.0
"""Age at which what was counted weighs e times less, for the speed that is shown."""
_LONG_S = 45.0
"""The same for the expected end."""
_SLICE_S = 1.0
_LATE = 3.0
"""A slice that takes so many times as long as usual counts before it ends."""
_PAUSE_S = 5.0
"""A pause that is no longer belongs to the work: such as the evaluations of a job with short epochs."""
_STALE_S = 10.0
"""After so long without anybody at work there is no speed to show."""
_KNOWN_S = 3.0
"""Seconds of work before there is an expected end."""
_NEW_COUNT_S = 4.0
"""What the past weighs at most, in seconds, when the number of workers changes."""
_LEAST_BAND = 0.05
_DEVIATIONS = 2.0
_SLOWEST = 0.25
"""The upper end of the band is never further away than at this part of the speed."""


@dataclass
class _Average:
    """A mean of rates that forgets, and how far they spread."""

    memory_s: float
    weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, rate: float, seconds: float) -> None:
        kept = math.exp(-seconds / self.memory_s)
        # The weight of the slice itself, so that a long one is not overrated.
        new = self.memory_s * (1.0 - kept)
        self.weight = self.weight * kept + new
        self.total = self.total * kept + rate * new
        self.squares = self.squares * kept + rate * rate * new

    def scale(self, factor: float, most_weight: float) -> None:
        """Other rates are expected from now on; what is known weighs no more than so much."""
        less = min(1.0, most_weight / self.weight) if self.weight else 1.0
        self.weight *= less
        self.total *= factor * less
        self.squares *= factor * factor * less

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.squares / self.weight - self.mean**2, 0.0)) if self.weight else 0.0


@dataclass(frozen=True)
class RestOfWork:
    """The seconds that the rest takes."""

    expected: float
    low: float
    high: float


class SpeedEstimator:
    """Counts records of all workers together.

    Attributes:
        work_s: seconds in which somebody worked, and short pauses between.
    """

    def __init__(self) -> None:
        self._shown = _Average(_SHOWN_S)
        self._long = _Average(_LONG_S)
        self._slice_s = _SLICE_S
        self.work_s = 0.0
        self._worked_s = 0.0
        self._idle_s = 0.0
        self._open: tuple[float, int] | None = None
        self._open_s = 0.0
        self._count = 0
        self._looked_at: float | None = None

    def look(self, records: int, working: int, now: float) -> None:
        """Takes in what has been done.

        Args:
            records: that all workers have processed in all.
            working: workers that take part in training; 0 while none of them trains.
            now: seconds of a clock that only goes forward.
        """
        before, self._looked_at = self._looked_at, now
        seconds = 0.0 if before is None else max(now - before, 0.0)
        if not working:
            self._idle_s += seconds
            return
        self.work_s += seconds + (self._idle_s if self._idle_s <= _PAUSE_S else 0.0)
        self._idle_s = 0.0
        if self._count and working != self._count:
            factor = working / self._count
            self._shown.scale(factor, _NEW_COUNT_S)
            self._long.scale(factor, _NEW_COUNT_S)
            self._open = None
        self._count = working
        if self._open is None:
            self._open = (self.work_s, records)
        began, counted = self._open
        self._open_s = self.work_s - began
        if self._open_s >= _SLICE_S and records > counted:
            rate = (records - counted) / self._open_s
            self._shown.add(rate, self._open_s)
            self._long.add(rate, self._open_s)
            self._worked_s += self._open_s
            self._slice_s += 0.2 * (self._open_s - self._slice_s)
            self._open, self._open_s = (self.work_s, records), 0.0

    @property
    def measured(self) -> bool:
        """Whether there is a speed to show."""
        return self._worked_s > 0

    @property
    def samples_per_second(self) -> float:
        """Records a second of all workers."""
        return 0.0 if self._idle_s > _STALE_S else self._now(self._shown)

    def rest(self, records: int) -> RestOfWork | None:
        """The time for so many records; None while it cannot be known."""
        speed = self._now(self._long)
        if self._idle_s > _STALE_S or self._worked_s < _KNOWN_S or speed <= 0:
            return None
        # The mean may be off, by what it is of; and the slices to come spread as those before did.
        slice_s = max(self._slice_s, _SLICE_S)
        known, to_come = max(self._long.weight / slice_s, 1.0), max(records / speed / slice_s, 1.0)
        spread = self._long.deviation * math.sqrt(1.0 / known + 1.0 / to_come)
        error = max(_DEVIATIONS * spread, _LEAST_BAND * speed)
        slow, fast = max(speed - error, _SLOWEST * speed), speed + error
        return RestOfWork(records / speed, records / fast, records / slow)

    def _now(self, average: _Average) -> float:
        """The mean, with a slice that should have ended long ago."""
        if self._open_s <= _LATE * max(self._slice_s, _SLICE_S):
            return average.mean
        kept = math.exp(-self._open_s / average.memory_s)
        total = average.total * kept
        return total / (average.weight * kept + average.memory_s * (1.0 - kept))
