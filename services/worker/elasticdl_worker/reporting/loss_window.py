"""Training in a few numbers: mean loss of the last minibatches, loss of the latest, learning rate, metrics."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW = 100
"""Minibatches of which the mean is shown."""


@dataclass(frozen=True)
class TrainingSummary:
    """The latest numbers of training.

    Attributes:
        mean: of the last 100 minibatches; those that are no numbers are left out, unless there are no others.
        last: of the latest minibatch.
        learning_rate: that it was trained with; None where nobody knows one.
        metrics: values of the module's metrics on the records of the epoch so far, by name.
        metrics_version: the model version that the last of these was computed at.
    """

    mean: float
    last: float
    learning_rate: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_version: int = 0


class LossWindow:
    """Collects the losses of minibatches.

    Args:
        every: minibatches that make one point of the history; the first minibatch is a point of its own.

    Attributes:
        metrics_due: whether the metrics are to be told: with each point of the history, and before the second one
            with minibatches 1, 2, 4, ..., so that a short job does not show those of its first one.
    """

    def __init__(self, every: int = WINDOW) -> None:
        self._every = every
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._open: list[float] = []
        self._version = 0
        self._points: list[tuple[int, float]] = []
        self._learning_rate: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._metrics_version = 0
        self._added = 0
        self.metrics_due = False

    def add(self, version: int, loss: float, learning_rate: float | None) -> None:
        """Notes the loss of a minibatch, the model version that it was computed at, and its learning rate."""
        self._recent.append(loss)
        self._open.append(loss)
        self._version, self._learning_rate = version, learning_rate
        self._added += 1
        if self._added == 1 or len(self._open) >= self._every:
            self.close()
            self.metrics_due = True
        elif self._added < self._every and self._added.bit_count() == 1:
            self.metrics_due = True

    def set_metrics(self, metrics: Mapping[str, float]) -> None:
        """Sets the metrics, with the latest minibatch; NaN is of what cannot be said yet, and is left out."""
        self._metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}
        self._metrics_version = self._version
        self.metrics_due = False

    def close(self) -> None:
        """Ends the present point of the history, however few minibatches it has."""
        if self._open:
            self._points.append((self._version, _mean(self._open)))
            self._open.clear()

    def take_points(self) -> tuple[tuple[int, float], ...]:
        """Takes the new points of the history: (model version, mean loss since the point before)."""
        taken, self._points = tuple(self._points), []
        return taken

    def restore_points(self, points: tuple[tuple[int, float], ...]) -> None:
        """Puts points back that did not reach the master."""
        self._points = [*points, *self._points]

    @property
    def summary(self) -> TrainingSummary | None:
        """The latest numbers; None before the first minibatch."""
        if not self._recent:
            return None
        return TrainingSummary(
            _mean(self._recent), self._recent[-1], self._learning_rate, self._metrics, self._metrics_version
        )


def _mean(losses: list[float] | deque[float]) -> float:
    numbers = [loss for loss in losses if math.isfinite(loss)]
    return sum(numbers) / len(numbers) if numbers else losses[-1]
