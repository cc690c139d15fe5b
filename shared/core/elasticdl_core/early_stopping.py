"""When training ends because a metric no longer improves: one rule for ``--local`` and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl_core.errors import UserCodeError
from elasticdl_core.model_description import EarlyStoppingRule
from elasticdl_core.watched_metric import find_metric, is_better, value_of


@dataclass
class EarlyStoppingCounter:
    """Counts evaluations without improvement.

    Attributes:
        monitor: the metric, by the name that the evaluation gives it, or with ``val_`` in front as Keras writes it:
            evaluations are always of validation data.
        patience: evaluations without improvement after which training ends.
        mode: ``min`` or ``max``, which is better.
        min_delta: a change that is no larger is no improvement.
        best: the best value so far; None before the first.
        waited: evaluations since then.
    """

    monitor: str
    patience: int
    mode: str = "min"
    min_delta: float = 0.0
    best: float | None = None
    waited: int = 0

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> EarlyStoppingCounter:
        """From a worker's description of the model; ``to_mapping`` makes it."""
        return cls(
            str(mapping["monitor"]),
            int(mapping.get("patience", 1)),
            str(mapping.get("mode", "min")),
            abs(float(mapping.get("min_delta", 0.0))),
        )

    def to_mapping(self) -> EarlyStoppingRule:
        """The rule as JSON data, without what it has seen."""
        return {
            "monitor": self.monitor,
            "patience": self.patience,
            "mode": self.mode,
            "min_delta": self.min_delta,
        }

    def check(self, *, validates: bool) -> None:
        """Refuses a rule that nothing would ever reach.

        Args:
            validates: whether the job evaluates on validation data.

        Raises:
            UserCodeError: it does not.
        """
        if not validates:
            raise UserCodeError(
                f"EarlyStopping watches {self.monitor!r} of the evaluations, but the job has no validation data",
                fix="give --validation_data, or remove EarlyStopping from callbacks()",
            )

    def observe(self, metrics: Mapping[str, Any]) -> str:
        """Takes in an evaluation. Returns why training shall end, or nothing.

        A value that is not a number is no improvement.

        Raises:
            UserCodeError: the metric is not among those of the evaluation.
        """
        if not metrics:
            return ""  # nothing was evaluated, and the report says so
        name = find_metric("EarlyStopping", self.monitor, metrics)
        value = value_of(metrics, name)
        if is_better(value, self.best, self.mode, self.min_delta):
            self.best, self.waited = value, 0
            return ""
        self.waited += 1
        if self.waited < self.patience:
            return ""
        what = "was never a number" if self.best is None else f"did not improve on {self.best:g}"
        return f"{name} {what} in {self.waited} evaluations"
