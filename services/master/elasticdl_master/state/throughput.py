"""Speed of the job with each number of workers, and the cost of a change of that number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from elasticdl_master.state.speed import SpeedEstimator
from elasticdl_master.state.workers import Worker, WorkerPool

_WINDOW_S = 5.0
_WEIGHT = 0.5
_LEAVING = ("draining", "exporting")


class Measurements(TypedDict):
    """Measurements: records/s by number of workers, seconds that a change costs, worker-seconds received."""

    throughput: dict[str, float]
    rescale_cost_s: float
    worker_seconds: float


@dataclass(frozen=True)
class _Window:
    """A time of work in which the same number of workers is there."""

    workers: int
    records: int
    began_s: float


class Throughput:
    """Measures speed by number of workers, the time a larger target takes to all workers at work, service received.

    Args:
        before: what earlier masters of the job measured, as ``to_mapping`` gave it; what makes no sense is left out.

    Attributes:
        speed: how fast the job is now, and how long the rest takes.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        told = before or {}
        speeds = told.get("throughput")
        self.by_workers: dict[int, float] = {
            int(count): _amount(rate)
            for count, rate in (speeds.items() if isinstance(speeds, Mapping) else ())
            if str(count).isdecimal() and _amount(rate) > 0
        }
        self.rescale_cost_s = _amount(told.get("rescale_cost_s"))
        self.worker_seconds = _amount(told.get("worker_seconds"))
        self._counted_at: float | None = None
        self._seen: dict[str, int] = {}
        self._total = 0
        self._window = _Window(0, 0, 0.0)
        self._rescale: tuple[int, float] | None = None
        self._told: dict[int, float] = {}
        self.speed = SpeedEstimator()

    @property
    def samples_per_second(self) -> float:
        """Records a second of all workers; of a job that is too short to be measured, what they say of themselves."""
        return self.speed.samples_per_second if self.speed.measured else sum(self._told.values())

    def heartbeat(self, worker: Worker) -> None:
        """Takes in how many records a worker processed so far."""
        before = self._seen.get(worker.owner, 0)
        self._total += max(0, worker.records - before)
        self._seen[worker.owner] = worker.records
        self._told[worker.index] = worker.samples_per_second or self._told.get(worker.index, 0.0)

    def target_changed(self, before: int, after: int, now: float) -> None:
        """The scheduler gave the job another number of workers."""
        if 0 < before < after:
            self._rescale = (after, now)

    def tick(self, workers: WorkerPool, now: float) -> None:
        """Counts the service received; closes a window of measurement if the set of working workers was stable."""
        seconds = 0.0 if self._counted_at is None else max(now - self._counted_at, 0.0)
        self.worker_seconds += len(workers.running) * seconds
        self._counted_at = now
        # Who evaluates between two tasks belongs to those who train. Short evaluations are seen in some heartbeats
        # and not in others, so that the number of those who train at a moment would hardly ever stay the same.
        count = sum(worker.steps > 0 and worker.phase not in _LEAVING for worker in workers.running)
        trains = any(worker.steps > 0 and worker.phase == "training" for worker in workers.running)
        self.speed.look(self._total, count if trains else 0, now)
        if self._rescale is not None and count >= self._rescale[0]:
            self.rescale_cost_s = _blend(self.rescale_cost_s, now - self._rescale[1])
            self._rescale = None
        window = self._window
        if window.workers != count:
            self._window = _Window(count, self._total, self.speed.work_s)
            return
        worked_s = self.speed.work_s - window.began_s
        if worked_s >= _WINDOW_S:
            if self._total > window.records:
                speed = (self._total - window.records) / worked_s
                self.by_workers[count] = _blend(self.by_workers.get(count, 0.0), speed)
            self._window = _Window(count, self._total, self.speed.work_s)

    def to_mapping(self) -> Measurements:
        """The measurements, as JSON data: records/s by number of workers, seconds a change, worker-seconds."""
        return {
            "throughput": {str(count): round(rate, 3) for count, rate in sorted(self.by_workers.items())},
            "rescale_cost_s": round(self.rescale_cost_s, 3),
            "worker_seconds": round(self.worker_seconds, 1),
        }


def _amount(value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if good else 0.0


def _blend(old: float, new: float) -> float:
    return new if not old else old + _WEIGHT * (new - old)
