"""The takeover record: what one master leaves to the next that nothing else tells.

It is kept in the queue's store, so that it is never newer or older than what the queue holds. It is written and read
here alone. A record of another format is not guessed at: the job then goes back to its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model_description import ModelDescription
from elasticdl_core.task import TaskId

FORMAT = 1


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation in flight.

    Attributes:
        number: its number.
        training_epoch: how many epochs were complete when it began.
        boundary: whether it stands at the end of an epoch.
        stage: where it stands.
        model_version: the version that it evaluates; -1 before it is pinned.
        value: of the metric by which it is the best, while its model is being kept.
    """

    number: int
    training_epoch: int
    boundary: bool
    stage: str
    model_version: int
    value: float | None = None


@dataclass(frozen=True)
class TakeoverRecord:
    """The facts that the next master needs, if it finds the same PS alive.

    Attributes:
        servers: the incarnation of each PS that holds the job's parameters; empty while they are being restored.
        generation: of the PS.
        rolled_back: whether the PS ever went back, so that durable done-marks say more than they hold.
        epoch: the number of the present epoch.
        closed_epoch: the last epoch whose end was seen to; -1 for none.
        awaited_pin: the evaluation whose pin the next epoch waits for, if any.
        stopped: why training ended before all records were processed; empty if it did not.
        single_tasks: tasks that are no pass over records, to do.
        single_tasks_done: the same, done.
        exported: whether the model was exported.
        last_evaluation_begun: whether the evaluation after training was stopped has begun.
        evaluations: those in flight.
        evaluation_number: of the last evaluation that began.
        evaluated_version: the model version of the last evaluation; -1 for none.
        evaluated_epochs: numbers of complete epochs of which there is an evaluation.
        evaluated: whether an evaluation was published.
        description: what the workers said of the model; None before one did.
        best: the best value that early stopping saw; None for none.
        waited: evaluations since then.
        group: the group's generation and members, of a job that trains by AllReduce.
        group_incarnation: as which PS the group goes.
    """

    servers: Mapping[int, int] = field(default_factory=dict)
    generation: int = 1
    rolled_back: bool = False
    epoch: int = 0
    closed_epoch: int = -1
    awaited_pin: int | None = None
    stopped: str = ""
    single_tasks: tuple[TaskId, ...] = ()
    single_tasks_done: tuple[TaskId, ...] = ()
    exported: bool = False
    last_evaluation_begun: bool = False
    evaluations: tuple[EvaluationRecord, ...] = ()
    evaluation_number: int = 0
    evaluated_version: int = -1
    evaluated_epochs: tuple[int, ...] = ()
    evaluated: bool = False
    description: ModelDescription | None = None
    best: float | None = None
    waited: int = 0
    group: Mapping[str, Any] = field(default_factory=dict)
    group_incarnation: int = -1

    def to_text(self) -> str:
        """The record as it is kept."""
        data: dict[str, Any] = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        data["format"] = FORMAT
        for name in ("single_tasks", "single_tasks_done"):
            data[name] = [str(task) for task in data[name]]
        data["evaluations"] = [dataclasses.asdict(one) for one in self.evaluations]
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> TakeoverRecord:
        """Reads what ``to_text`` wrote.

        Raises:
            InvalidInputError: it is a record of another format, or none.
        """
        try:
            data = json.loads(text)
            if data.pop("format", None) != FORMAT:
                raise ValueError("it has another format")
            for name in ("single_tasks", "single_tasks_done"):
                data[name] = tuple(TaskId.parse(task) for task in data[name])
            data["servers"] = {int(index): int(incarnation) for index, incarnation in data["servers"].items()}
            data["evaluations"] = tuple(EvaluationRecord(**one) for one in data["evaluations"])
            data["evaluated_epochs"] = tuple(data["evaluated_epochs"])
            data["description"] = data["description"] or None
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInputError(
                f"the record that the last master left cannot be read: {error}",
                fix="nothing is to do: the job goes on from its last checkpoint",
            ) from None
