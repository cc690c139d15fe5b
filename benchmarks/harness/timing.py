"""Timing on machines that are shared: sides take turns, medians count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one side.

    Attributes:
        values: in the order measured; seconds, or whatever the caller measured.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles over the median: how far to trust the median."""
        if len(self.values) < 4:
            return (max(self.values) - min(self.values)) / 2 / self.median
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median

    def over(self, other: Sample) -> float:
        """The median of ``ratios``."""
        return self.ratios(other).median

    def ratios(self, other: Sample) -> Sample:
        """The quotients of measurements taken side by side.

        What slowed the machine for a while slowed both sides of a quotient, so their median is steadier than the
        quotient of the medians.
        """
        return Sample(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))


def measure(
    function: Callable[[], object], *, least_s: float = 0.02, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call, over as many calls as make a measurable time."""
    calls = 1
    while True:
        started = clock()
        for _ in range(calls):
            function()
        taken = clock() - started
        if taken >= least_s:
            return taken / calls
        calls = max(calls * 2, int(calls * least_s / max(taken, 1e-9)) + 1)


def interleaved(
    sides: Mapping[str, Callable[[], object]],
    repeats: int = 7,
    *,
    least_s: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Sample]:
    """Times the sides in turns, so that what else the machine does falls on all of them alike.

    Args:
        sides: what to call, by name; each is called once before it is timed.
        repeats: measurements of each.
        least_s: seconds that one measurement takes at least, by repeated calls.
        clock: seconds; ``time.thread_time`` for work of one thread that does not wait, whose time on the processor
            does not depend on who else wants it.

    Returns:
        Seconds of a call of each side.
    """
    for function in sides.values():
        function()
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, function in sides.items():
            values[name].append(measure(function, least_s=least_s, clock=clock))
    return {name: Sample(tuple(one)) for name, one in values.items()}
