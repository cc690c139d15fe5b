"""When training evaluates, when it ends and why, what is exported: one set of rules for ``--local`` and a cluster.

What a job asks for is in its specification and in the callbacks of its module. A worker declares the latter to its
master (``DeclaredRules``), a local run to itself; both make ``TrainingRules`` of them and ask these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.best_evaluation import BestEvaluation
from elasticdl_core.early_stopping import EarlyStoppingCounter
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.model_description import CallbackSettings

SAVED_MODEL = "saved_model"


@dataclass(frozen=True)
class DeclaredRules:
    """Rules that the callbacks of a module ask for.

    Attributes:
        max_steps: updates after which training ends; 0 for no limit.
        early_stopping: the rule of early stopping; None for none.
        saved_model: whether a SavedModel is to be exported, whatever the job says.
        keep_best: the rule of the best evaluation, whose model is kept; None for none.
    """

    max_steps: int = 0
    early_stopping: EarlyStoppingCounter | None = None
    saved_model: bool = False
    keep_best: BestEvaluation | None = None

    def to_mapping(self) -> CallbackSettings:
        """As JSON data, for a worker's description of the model."""
        early = None if self.early_stopping is None else self.early_stopping.to_mapping()
        best = None if self.keep_best is None else self.keep_best.to_mapping()
        return {
            "max_steps": self.max_steps,
            "early_stopping": early,
            "saved_model": self.saved_model,
            "keep_best": best,
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> DeclaredRules:
        """Reads what ``to_mapping`` made; of nothing it makes no rules."""
        early, best = mapping.get("early_stopping"), mapping.get("keep_best")
        return cls(
            int(mapping.get("max_steps") or 0),
            EarlyStoppingCounter.from_mapping(early) if early else None,
            bool(mapping.get(SAVED_MODEL)),
            BestEvaluation.from_mapping(best) if best else None,
        )


@dataclass(frozen=True)
class TrainingRules:
    """The rules of one job.

    Attributes:
        max_steps: updates of the job's own after which training ends; 0 for no limit.
        evaluation_steps: updates after which there is an evaluation within an epoch; 0 for none.
        export_formats: what to export, in order.
        early_stopping: the rule, with what it has seen; None for none.
        validates: whether there is validation data.
        keep_best: the rule of the best evaluation, whose model is kept; None for none.
    """

    max_steps: int = 0
    evaluation_steps: int = 0
    export_formats: tuple[str, ...] = ()
    early_stopping: EarlyStoppingCounter | None = None
    validates: bool = False
    keep_best: BestEvaluation | None = None

    @classmethod
    def of(cls, spec: JobSpec, declared: DeclaredRules) -> TrainingRules:
        """The rules of a job; a job that does not train has none but the formats.

        Raises:
            UserCodeError: the job and its callbacks call different evaluations the best.
        """
        formats = export_formats(spec.export_formats.split(","), declared)
        if spec.type is not JobType.TRAINING:
            return cls(export_formats=formats)
        validates = bool(spec.validation_data)
        limits = [limit for limit in (spec.max_steps, declared.max_steps) if limit]
        every = spec.evaluation_steps if validates else 0
        asked, best = BestEvaluation.parse(spec.keep_best), declared.keep_best
        if asked and best and (asked.monitor, asked.mode) != (best.monitor, best.mode):
            raise UserCodeError(
                f"the job has --keep_best {spec.keep_best}, but callbacks() asks for that of "
                f"{best.monitor}:{best.mode}",
                fix="leave out one of them",
            )
        return cls(min(limits, default=0), every, formats, declared.early_stopping, validates, best or asked)

    def check(self) -> None:
        """Refuses rules that nothing would ever reach.

        Raises:
            UserCodeError: early stopping, or the best model, without validation data.
        """
        if self.keep_best is not None:
            self.keep_best.check(validates=self.validates)
        if self.early_stopping is not None:
            self.early_stopping.check(validates=self.validates)

    def why_over(self, updates: int) -> str:
        """Why training ends after so many updates of the job's own; nothing while it may go on."""
        if not self.max_steps or updates < self.max_steps:
            return ""
        return f"max_steps reached: {self.max_steps} updates"

    def evaluation_due(self, updates: int, evaluated: int) -> bool:
        """Whether an evaluation within an epoch is due.

        Args:
            updates: of the job's own so far, as for ``max_steps``.
            evaluated: after how many of them the last evaluation was; less than 0 if there was none.
        """
        return bool(self.evaluation_steps) and updates >= self.next_evaluation(evaluated)

    def next_evaluation(self, evaluated: int) -> int:
        """The number of updates at which the next evaluation within an epoch is due; 0 for none.

        Args:
            evaluated: as for ``evaluation_due``.
        """
        every = self.evaluation_steps
        return (max(0, evaluated) // every + 1) * every if every else 0

    def observe(self, metrics: Mapping[str, Any]) -> str:
        """Takes in an evaluation. Returns why training shall end, or nothing.

        Raises:
            UserCodeError: early stopping watches a metric that the evaluation does not give.
        """
        return "" if self.early_stopping is None else self.early_stopping.observe(metrics)


def check_trained(records: int, updates: int) -> None:
    """Refuses the success of a job that has trained on nothing.

    Raises:
        UserCodeError: there were records, and none of them led to an update.
    """
    if records and not updates:
        raise UserCodeError(
            f"nothing was trained: none of the {records} records that were processed led to an update of the model",
            fix="let feed() give the records of its minibatch, and look at what was passed over",
        )


def export_formats(asked: Sequence[str], declared: DeclaredRules) -> tuple[str, ...]:
    """The formats to export: those that are asked for, and a SavedModel where a callback adds it."""
    return tuple(dict.fromkeys([*filter(None, asked), *([SAVED_MODEL] if declared.saved_model else [])]))


def success_reason(stopped: str, records_done: int, records_total: int, skipped: Sequence[Mapping[str, Any]]) -> str:
    """Why a job succeeded, for people.

    Args:
        stopped: why training ended before all records were processed; empty if it did not.
        records_done: records that were processed, those that were passed over included.
        records_total: records of all epochs.
        skipped: one mapping for each reason that records were passed over for, as the status has them.
    """
    left = records_total - records_done
    if left <= 0:
        stopped = ""  # it ended with the last record
    if not stopped and not skipped:
        return "every record was processed"
    if not stopped:
        return "all records were processed, but for those that were passed over"
    reason = f"{stopped}; {left} of {records_total} records were left out on purpose"
    return f"{reason}, and {_passed_over(skipped)}" if skipped else reason


def _passed_over(skipped: Sequence[Mapping[str, Any]]) -> str:
    """The number of records that were passed over, as far as that is known."""
    main = [entry["records"] for entry in skipped if entry.get("of") == "main"]
    if not main:
        return "records of the validation data were passed over"
    known = sum(records or 0 for records in main)
    if None in main:
        return f"more than {known} were passed over" if known else "some were passed over"
    return f"{known} {'was' if known == 1 else 'were'} passed over"
