"""Evaluations: tasks at a pinned version, metric states merged by addition, one summary."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.errors import UserCodeError
from elasticdl_core.json_numbers import from_json
from elasticdl_core.skips import Skips
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.accounts import Account
from elasticdl_master.state.ledger import Round


class Stage(enum.StrEnum):
    """Where an evaluation stands."""

    PINNING = "pinning"
    RUNNING = "running"
    SUMMARY = "summary"


@dataclass
class Evaluation:
    """One evaluation in flight.

    Attributes:
        number: its number; also the number of its pin and the round of its tasks. 1, 2, 3, ...
        training_epoch: how many epochs were complete when it began.
        boundary: whether it stands at the end of an epoch; one that does is repeated if the PS lose its pin.
        progress: which of its tasks are done.
        results: what was reported with each task.
    """

    number: int
    training_epoch: int
    boundary: bool
    progress: Round
    stage: Stage = Stage.PINNING
    model_version: int = -1
    results: dict[TaskId, bytes] = field(default_factory=dict)

    @property
    def summary(self) -> TaskId:
        """The task that turns merged states into metrics."""
        return TaskId(TaskType.EVALUATION_SUMMARY, self.number, 0, 0, 0)

    def merged(self) -> dict[str, Any]:
        """The states of all tasks together.

        Raises:
            UserCodeError: the states of two tasks do not fit together.
        """
        states: dict[str, Any] = {}
        for task in sorted(self.results):
            for name, state in states_of(self.results[task]).items():
                states[name] = merge(name, states[name], state) if name in states else state
        return states

    @property
    def empty(self) -> bool:
        """Whether it is complete and no record came out of the user's ``feed``: then there is nothing to measure."""
        return bool(self.results) and all(records_of(result) == 0 for result in self.results.values())

    @property
    def skips(self) -> Skips:
        """Records that were passed over."""
        return sum((Account.of_result(self.results[task]).skips for task in sorted(self.results)), Skips())

    def to_mapping(self) -> dict[str, Any]:
        """What the next master must know."""
        return {
            "number": self.number,
            "training_epoch": self.training_epoch,
            "boundary": self.boundary,
            "stage": str(self.stage),
            "model_version": self.model_version,
        }


def states_of(result: bytes) -> dict[str, Any]:
    """Reads the metric states that a worker reported: ``{name: {"sum": [...], "kind": ...}}``.

    Raises:
        UserCodeError: that is not what was reported.
    """
    try:
        data = json.loads(result or b"{}")
        states = data.get("states", data)
        return {str(name): from_json(dict(state)) for name, state in states.items()}
    except (ValueError, TypeError, AttributeError):
        raise UserCodeError("a worker reported an evaluation without metric states") from None


def records_of(result: bytes) -> int | None:
    """How many records a worker says that it evaluated; None if it does not say."""
    try:
        records = json.loads(result or b"{}").get("records")
    except (ValueError, AttributeError):
        return None
    return records if isinstance(records, int) else None


def metrics_of(result: bytes) -> dict[str, float]:
    """Reads the metrics that a worker made of merged states.

    Raises:
        UserCodeError: that is not what was reported.
    """
    try:
        data = json.loads(result or b"{}")
        metrics = data["metrics"] if isinstance(data.get("metrics"), Mapping) else data
        return {str(name): float(from_json(value)) for name, value in metrics.items()}
    except (ValueError, TypeError, AttributeError):
        raise UserCodeError("a worker reported a summary without metrics") from None


def merge(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Adds two states of one metric.

    Raises:
        UserCodeError: they differ in kind or shape.
    """
    other = {key: value for key, value in first.items() if key != "sum"}
    if other != {key: value for key, value in second.items() if key != "sum"}:
        raise UserCodeError(f"the states of metric {name!r} differ in kind", fix="return the same metrics each time")
    return {**other, "sum": _add(name, first.get("sum", 0), second.get("sum", 0))}


def _add(name: str, first: Any, second: Any) -> Any:
    if isinstance(first, Sequence) and isinstance(second, Sequence) and len(first) == len(second):
        return [_add(name, one, two) for one, two in zip(first, second, strict=True)]
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    raise UserCodeError(f"the states of metric {name!r} differ in shape", fix="return the same metrics each time")
