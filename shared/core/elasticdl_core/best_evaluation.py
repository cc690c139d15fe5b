"""The best evaluation of a job, whose model is kept: one rule for ``--local`` and the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.checkpoint_manifest import BestMark, Manifest
from elasticdl_core.errors import InvalidInputError, UserCodeError
from elasticdl_core.model_description import BestRule
from elasticdl_core.watched_metric import direction_of, find_metric, is_better, value_of

BEST = "best"
"""The kind of a checkpoint that is kept for its evaluation, and the folder of its export."""
_WHO = "--keep_best"
_DIRECTIONS = ("max", "min")


@dataclass(frozen=True)
class BestEvaluation:
    """The rule: an evaluation is the best if it is better than all before it; of equal ones the first stays.

    Attributes:
        monitor: the metric, by the name that the evaluation gives it, or with ``val_`` in front.
        mode: ``min`` or ``max``, which is better.
        min_delta: a change that is no larger is no improvement.
    """

    monitor: str
    mode: str
    min_delta: float = 0.0

    @classmethod
    def parse(cls, text: str) -> BestEvaluation | None:
        """Reads ``auc:max``, or ``auc`` where the name says which is better; None of nothing.

        Raises:
            InvalidInputError: it does not say whether more is better.
        """
        if not text:
            return None
        monitor, colon, mode = text.rpartition(":")
        if not colon:
            monitor, mode = text, direction_of(text)
        if not monitor or mode not in _DIRECTIONS:
            raise InvalidInputError(
                f"{text!r} does not say of which metric the largest or the smallest value is the best",
                fix=f"write {monitor or 'METRIC'}:max or {monitor or 'METRIC'}:min",
            )
        return cls(monitor, mode)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> BestEvaluation:
        """From a worker's description of the model; ``to_mapping`` makes it."""
        return cls(str(mapping["monitor"]), str(mapping["mode"]), abs(float(mapping.get("min_delta", 0.0))))

    def to_mapping(self) -> BestRule:
        """The rule as JSON data."""
        return {"monitor": self.monitor, "mode": self.mode, "min_delta": self.min_delta}

    def check(self, *, validates: bool) -> None:
        """Refuses a rule that nothing would ever reach.

        Args:
            validates: whether the job evaluates on validation data.

        Raises:
            UserCodeError: it does not.
        """
        if not validates:
            raise UserCodeError(
                f"the best model by {self.monitor!r} is to be kept, but the job has no validation data",
                fix="give --validation_data, or leave out what asks for the best model",
            )

    def check_names(self, names: Collection[str]) -> None:
        """Refuses a metric that the evaluations will not give.

        Raises:
            UserCodeError: with those that they give.
        """
        # A metric of several values gives name[0], name[1], ...
        find_metric(_WHO, self.monitor.partition("[")[0], names)

    def improved(self, metrics: Mapping[str, Any], best: BestMark | None) -> float | None:
        """The value of an evaluation that is better than the best so far; None of any other.

        Raises:
            UserCodeError: the metric is not among those of the evaluation.
        """
        if not metrics:
            return None  # nothing was evaluated, and the report says so
        value = value_of(metrics, find_metric(_WHO, self.monitor, metrics))
        return value if is_better(value, best["value"] if best else None, self.mode, self.min_delta) else None

    def mark(self, value: float, version: int, evaluation: int) -> BestMark:
        """The mark of the checkpoint that holds the model of an evaluation."""
        return {
            "metric": self.monitor,
            "mode": self.mode,
            "value": value,
            "version": version,
            "evaluation": evaluation,
        }


def marked_best(manifests: Sequence[Manifest]) -> Manifest | None:
    """The checkpoint of the best evaluation among those of a job, oldest first: the one that was marked last."""
    return next((one for one in reversed(manifests) if one.get("best")), None)


def mark_of(manifest: Manifest | None) -> BestMark | None:
    """The mark of a checkpoint."""
    return manifest.get("best") if manifest is not None else None
