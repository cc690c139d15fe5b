"""How fast the job is with each number of workers, and what a change of that number costs."""

from __future__ import annotations

from elasticdl_master.state.workers import Worker, WorkerPool

_WINDOW_S = 5.0
_WEIGHT = 0.5


class Throughput:
    """Measures speed by number of workers, and the time from a larger target to all workers at work."""

    def __init__(self) -> None:
        self.by_workers: dict[int, float] = {}
        self.rescale_cost_s = 0.0
        self._seen: dict[str, int] = {}
        self._total = 0
        self._window: tuple[int, float, int] | None = None
        self._rescale: tuple[int, float] | None = None

    def heartbeat(self, worker: Worker) -> None:
        """Takes in how many records a worker processed so far."""
        before = self._seen.get(worker.owner, 0)
        self._total += max(0, worker.records - before)
        self._seen[worker.owner] = worker.records

    def target_changed(self, before: int, after: int, now: float) -> None:
        """The scheduler gave the job another number of workers."""
        if 0 < before < after:
            self._rescale = (after, now)

    def tick(self, workers: WorkerPool, now: float) -> None:
        """Closes a window of measurement if the set of working workers was stable."""
        working = [worker for worker in workers.running if worker.steps > 0 and worker.phase == "training"]
        count = len(working)
        if self._rescale is not None and count >= self._rescale[0]:
            self.rescale_cost_s = _blend(self.rescale_cost_s, now - self._rescale[1])
            self._rescale = None
        if self._window is None or self._window[0] != count:
            self._window = (count, now, self._total)
            return
        _, since, records = self._window
        if now - since >= _WINDOW_S:
            if count and self._total > records:
                speed = (self._total - records) / (now - since)
                self.by_workers[count] = _blend(self.by_workers.get(count, 0.0), speed)
            self._window = (count, now, self._total)


def _blend(old: float, new: float) -> float:
    return new if not old else old + _WEIGHT * (new - old)
