"""The progress of a local run, as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from elasticdl_core.skips import Skips
from elasticdl_worker.reporting.loss_window import WINDOW, LossWindow

Emit = Callable[[Mapping[str, object]], None]
_PROGRESS_S = 0.5


class LocalProgress:
    """Emits the progress of a run, at most twice a second, in records of the source, as a job counts them.

    ``feed`` may make more or fewer of them: what came out of it is only how far the present shard is.
    """

    def __init__(self, emit: Emit, total: int, report_every: int = WINDOW) -> None:
        self.records = 0
        self._emit = emit
        self._shard = self._left = 0
        self._losses = LossWindow(report_every)
        self._event: dict[str, object] = {"event": "progress", "total": total}
        self._started = self._shown = time.monotonic()

    def begin(self, records: int) -> None:
        """Begins a shard of so many records."""
        self._shard = self._left = records

    def end(self, skips: Skips) -> None:
        """Ends the present shard, of which the reader and ``feed`` left out ``skips``; rows may have come twice."""
        self.records -= self._shard - self._left
        self._left = self._shard
        self._count(skips.rows_of(self._shard))

    def _count(self, records: int) -> None:
        counted = max(0, min(records, self._left))
        self._left -= counted
        self.records += counted

    def advance(
        self, records: int, epoch: int, step: int, loss: float | None, learning_rate: float | None = None
    ) -> None:
        """Counts a minibatch."""
        self._count(records)
        self._event |= {"records": self.records, "epoch": epoch, "step": step}
        if loss is not None:
            self._losses.add(step, loss, learning_rate)
        if time.monotonic() - self._shown >= _PROGRESS_S:
            self.show()

    @property
    def metrics_due(self) -> bool:
        """Whether the metrics of a minibatch are to be computed."""
        return self._losses.metrics_due

    def set_metrics(self, metrics: dict[str, float]) -> None:
        """Sets the metrics of a training minibatch."""
        self._losses.set_metrics(metrics)

    @property
    def training_metrics(self) -> dict[str, float]:
        """The last of them; empty before the first."""
        return {} if self._losses.summary is None else dict(self._losses.summary.metrics)

    def show(self) -> None:
        """Emits the present state."""
        now = time.monotonic()
        self._shown = now
        rate = self.records / max(now - self._started, 1e-9)
        shown = self._losses.summary
        losses: dict[str, object] = dict.fromkeys(("loss", "last_loss", "learning_rate"))
        if shown is not None:
            losses = {"loss": shown.mean, "last_loss": shown.last, "learning_rate": shown.learning_rate}
        losses["training_metrics"] = self.training_metrics
        self._emit({"records": 0, "epoch": 0, "step": 0} | losses | self._event | {"samples_per_second": rate})
