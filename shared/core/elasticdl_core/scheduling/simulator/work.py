"""Work and true speed of simulated jobs."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from elasticdl_core.scheduling.simulator.curves import Application, Placement


class SimulatedWork(Protocol):
    """A job's work. The simulator knows the truth; policies see what was measured."""

    @property
    def kind(self) -> str:
        """The key by which jobs are similar."""
        ...

    @property
    def most_workers(self) -> int:
        """The most workers that it can use."""
        ...

    def rate(self, placement: Placement) -> float:
        """Records/s at a placement."""
        ...

    def remaining_records(self) -> float:
        """Records still to process, as the job's master would count them."""
        ...

    def seconds_left(self, placement: Placement) -> float:
        """Seconds to the end at that placement."""
        ...

    def advance(self, placement: Placement, seconds: float) -> None:
        """Works for that long at that placement."""
        ...


@dataclass
class MeasuredWork:
    """Training of a measured application with a fixed global batch.

    Rounding makes the real batch differ a little between worker counts, so work is kept as a place within the epochs.

    Attributes:
        application: its measurements.
        batch: global batch size, in records.
    """

    application: Application
    batch: int
    _epoch: int = 0
    _part: float = 0.0
    _steps: dict[Placement, tuple[float, int]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Application and batch size."""
        return f"{self.application.name}/{self.batch}"

    @property
    def most_workers(self) -> int:
        """Limited by the smallest batch of a worker."""
        return self.application.most_workers(self.batch)

    def _step(self, placement: Placement) -> tuple[float, int]:
        if placement not in self._steps:
            plan = self.application.divide(self.batch, sum(placement))
            self._steps[placement] = (self.application.step_seconds(placement, plan), plan.batch)
        return self._steps[placement]

    def rate(self, placement: Placement) -> float:
        """Records/s."""
        seconds, batch = self._step(placement)
        return batch / seconds

    def _iterations_left(self, batch: int) -> float:
        iterations = self.application.iterations(batch)
        if self._epoch >= len(iterations):
            return 0.0
        return iterations[self._epoch] * (1.0 - self._part) + sum(iterations[self._epoch + 1 :])

    def remaining_records(self) -> float:
        """Steps left times the batch."""
        return self._iterations_left(self.batch) * self.batch

    def seconds_left(self, placement: Placement) -> float:
        """Steps left times the step time."""
        seconds, batch = self._step(placement)
        return self._iterations_left(batch) * seconds

    def advance(self, placement: Placement, seconds: float) -> None:
        """Walks through the epochs."""
        step, batch = self._step(placement)
        iterations = self.application.iterations(batch)
        while seconds > 1e-9 and self._epoch < len(iterations):
            left = iterations[self._epoch] * (1.0 - self._part) * step
            if seconds < left:
                self._part += seconds / (iterations[self._epoch] * step)
                return
            seconds -= left
            self._epoch += 1
            self._part = 0.0


@dataclass
class CurveWork:
    """A given amount of work with a speed-up curve by worker count alone."""

    name: str
    rates: Mapping[int, float]
    records: float

    @property
    def kind(self) -> str:
        """The curve's name."""
        return self.name

    @property
    def most_workers(self) -> int:
        """The largest count of the curve."""
        return max(self.rates)

    def rate(self, placement: Placement) -> float:
        """Records/s, linear between the counts of the curve."""
        workers = sum(placement)
        counts = sorted(self.rates)
        index = bisect_right(counts, workers)
        if index == 0:
            return self.rates[counts[0]] * workers / counts[0]
        if index == len(counts) or counts[index - 1] == workers:
            return self.rates[counts[index - 1]]
        low, high = counts[index - 1], counts[index]
        share = (workers - low) / (high - low)
        return (1 - share) * self.rates[low] + share * self.rates[high]

    def remaining_records(self) -> float:
        """The work left."""
        return self.records

    def seconds_left(self, placement: Placement) -> float:
        """The work left over the speed."""
        return self.records / self.rate(placement)

    def advance(self, placement: Placement, seconds: float) -> None:
        """Takes off what was done."""
        self.records = max(self.records - self.rate(placement) * seconds, 0.0)


def packed(workers: int, per_node: int) -> Placement:
    """The placement on as few machines as possible."""
    full, rest = divmod(workers, per_node)
    return tuple(itertools.chain(itertools.repeat(per_node, full), (rest,) if rest else ()))
