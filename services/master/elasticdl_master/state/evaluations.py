"""Evaluations: tasks at a pinned version, metric states merged by addition, one summary."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.best_evaluation import BEST, BestEvaluation, mark_of
from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import UserCodeError
from elasticdl_core.skips import Skips, doublings
from elasticdl_core.task import TaskId, TaskType
from elasticdl_core.training_rules import DeclaredRules, TrainingRules
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_master.state.checkpoints import Checkpoints
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.ledger import EpochLedger
from elasticdl_master.state.metric_states import merge, metrics_of, records_of, states_of
from elasticdl_master.state.record import EvaluationRecord
from elasticdl_master.state.told import metrics_told, version_told
from elasticdl_master.state.version import ModelVersion

_LOST = -1
"""In place of the version of the last evaluation: it had begun, and the PS lost its pin."""


class Stage(enum.StrEnum):
    """Stages of an evaluation."""

    PINNING = "pinning"
    RUNNING = "running"
    SUMMARY = "summary"
    KEEPING = "keeping"


@dataclass
class EvaluationRun:
    """One evaluation in flight.

    Attributes:
        number: its number; also the number of its pin, and in its tasks' ids. 1, 2, 3, ...
        training_epoch: how many epochs were complete when it began.
        boundary: whether it stands at the end of an epoch; one that does is repeated if the PS lose its pin.
        progress: which of its tasks are done.
        stage: where it stands.
        model_version: the version that it evaluates; -1 before it is pinned.
        results: what was reported with each task.
        value: of the metric by which it is the best so far, while its model is being kept.
    """

    number: int
    training_epoch: int
    boundary: bool
    progress: EpochLedger
    stage: Stage = Stage.PINNING
    model_version: int = -1
    results: dict[TaskId, bytes] = field(default_factory=dict)
    value: float | None = None

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
        return sum((RecordAccount.of_result(self.results[task]).skips for task in sorted(self.results)), Skips())

    def pending(self) -> list[TaskId]:
        """The tasks of it that are to do; its summary is one of the single tasks."""
        return self.progress.remaining(range(self.progress.plan.ready)) if self.stage is Stage.RUNNING else []

    def payload(self, task: TaskId) -> dict[str, Any]:
        """The facts that a worker needs for one of its tasks."""
        if task.type is TaskType.EVALUATION:
            return {"pin": self.number}
        return {
            "states": self.merged(),
            "number": self.number,
            "model_version": self.model_version,
            "training_epoch": self.training_epoch,
        }

    def to_record(self) -> EvaluationRecord:
        """The facts that the next master needs."""
        return EvaluationRecord(
            self.number, self.training_epoch, self.boundary, str(self.stage), self.model_version, self.value
        )


class Evaluations:
    """Evaluates: pins, adds tasks, merges states, publishes, has the model of the best one kept.

    One that is the best so far is over when its model is saved: no other evaluation begins before, and it keeps its
    pin, for which a group stands still.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        version: the model version.
        checkpoints: take the checkpoints.

    Attributes:
        keep_best: the rule by which the best is kept; None for none.
        running: the evaluations in flight, by number.
        latest_number: the number of the evaluation that began last.
        metrics: of the last one that was published.
        metrics_version: the model version that these are of.
        published: whether there was one at all.
        empty: whether it had no records.
        skips: what it passed over.
    """

    def __init__(self, job: JobContext, epochs: Epochs, version: ModelVersion, checkpoints: Checkpoints) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self.keep_best: BestEvaluation | None = None
        self._epochs = epochs
        self._version = version
        self._rules = TrainingRules.of(job.spec, DeclaredRules())  # callbacks change nothing of the cadence
        self.running: dict[int, EvaluationRun] = {}
        self.latest_number = job.setup.evaluations
        self.metrics = metrics_told(job.setup.measured, "metrics")
        self.metrics_version = version_told(job.setup.measured, "metrics_version")
        self.published = False
        self.empty = False
        self.skips = Skips()
        self.epochs_evaluated = set(job.setup.evaluated_epochs)
        self.latest_version = _LOST
        self._unjudged: dict[str, float] = {}
        self._forgettable: list[TaskId] = []

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes in pins, results of tasks, and summaries."""
        match event:
            case ev.Pinned(number, version):
                return self._pinned(number, version)
            case ev.Saved(manifest=manifest):
                return self._saved(manifest)
            case ev.TaskReported(task=TaskId(type=TaskType.EVALUATION) as task, result=result):
                run = self.of(task)
                if run is not None and run.progress.plan.holds(task):
                    run.progress.mark(task)
                    run.results[task] = result
            case ev.TaskReported(task=TaskId(type=TaskType.EVALUATION_SUMMARY) as task, result=result):
                if self._job.single_tasks.finish(task):
                    return self._publish(task, result)
        return []

    # -- questions -------------------------------------------------------------------------------------------------

    def of(self, task: TaskId) -> EvaluationRun | None:
        """The evaluation that a task is of."""
        if task.type in (TaskType.EVALUATION, TaskType.EVALUATION_SUMMARY):
            return self.running.get(task.epoch)
        return None

    def is_due(self, version: int) -> bool:
        """Whether an update of this job after the last evaluation was one in so many, at a model version."""
        return 0 < self._next_version <= version

    @property
    def pause_at(self) -> int:
        """The model version past which a group makes no update before it is evaluated; 0 for none.

        While an evaluation is under way it is the one that is evaluated: also before the group is told of the pin,
        which a new master makes anew.
        """
        return self.latest_version if self.running else self._next_version

    @property
    def _next_version(self) -> int:
        """The model version at which the next evaluation within an epoch is due; 0 for none."""
        epochs, start = self._epochs, self._version.start
        # At the end of an epoch there is one evaluation, not two of the same version.
        if self._job.plans.validation is None or epochs.trained or epochs.complete:
            return 0
        due = self._rules.next_evaluation(self.latest_version - start)
        return start + due if due else 0

    @property
    def at_present_version(self) -> bool:
        """Whether the model was evaluated as it is now."""
        return self.latest_version == self._version.present

    def is_pinning(self, number: int) -> bool:
        """Whether an evaluation waits for its pin."""
        return number in self.running and self.running[number].stage is Stage.PINNING

    def pending(self) -> list[TaskId]:
        """The tasks of those in flight that are to do."""
        return [task for run in self.running.values() for task in run.pending()]

    def done(self) -> list[TaskId]:
        """The tasks of those in flight that are done."""
        return [task for run in self.running.values() for task in run.progress.done()]

    def results(self) -> dict[TaskId, bytes]:
        """The results that were reported with the done tasks of those in flight."""
        return {task: data for run in self.running.values() for task, data in run.results.items()}

    # -- what is done ----------------------------------------------------------------------------------------------

    def begin(self, *, boundary: bool, training_epoch: int) -> list[do.Instruction]:
        """Begins an evaluation of the present version."""
        assert self._job.plans.validation is not None
        self.latest_number += 1
        ledger = EpochLedger(self._job.plans.validation, self.latest_number)
        self.running[self.latest_number] = EvaluationRun(self.latest_number, training_epoch, boundary, ledger)
        self.latest_version = self._version.present
        return [do.Pin(self.latest_number)]

    def adopt(self, training_epoch: int) -> int | None:
        """Lets an evaluation that fell due with the last update of an epoch stand for the end of the epoch.

        It falls due when the update is heard of, which may be before the task is reported that completes the epoch.

        Returns:
            Its number; None if there is none of the model as it is at the end.
        """
        job = self._job
        if not (job.spec.by_group or (job.spec.use_async and len(job.servers.servers) == 1)):
            return None  # the parts of the model may have been pinned apart
        for run in self.running.values():
            if run.stage is Stage.PINNING or run.model_version == self._version.present:
                run.boundary, run.training_epoch = True, training_epoch
                return run.number
        if not self.running and self.published and self.at_present_version:
            self.epochs_evaluated.add(training_epoch)
            return self.latest_number
        return None

    def begin_due(self, now: float) -> list[do.Instruction]:
        """Begins an evaluation if so many updates were made since the last one."""
        validation = self._job.plans.validation
        if self.running or validation is None or not validation.listed or not self.is_due(self._version.present):
            return []
        if self.keep_best is not None and not self._job.spec.by_group and self._job.workers.training_in_hand():
            return []  # what is kept must be what was evaluated: updates of servers end first, a group stands still
        return self.begin(boundary=False, training_epoch=self._epochs.epochs_done)

    def merge_complete(self, now: float) -> list[do.Instruction]:
        """Adds the summary of each evaluation whose tasks are done."""
        out: list[do.Instruction] = []
        for run in list(self.running.values()):
            if run.stage is not Stage.RUNNING or not run.progress.complete:
                continue
            try:
                run.merged()
            except UserCodeError as error:
                self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")
                return out
            run.stage = Stage.SUMMARY
            self._job.single_tasks.add(run.summary)
            out.append(do.AddTasks([run.summary], front=True))
        return out

    def keep(self, now: float) -> list[do.Instruction]:
        """Has the model of the best evaluation saved."""
        run = next((one for one in self.running.values() if one.stage is Stage.KEEPING), None)
        if run is None or self.keep_best is None or run.value is None:
            return []
        kept = mark_of(self._checkpoints.book.best)
        if kept is not None and kept["evaluation"] == run.number:
            return self._end(run)
        if self._checkpoints.book.saving or self._checkpoints.must_wait(now):
            return []
        self._checkpoints.candidate = self.keep_best.mark(run.value, run.model_version, run.number)
        return self._checkpoints.save(BEST, now)

    def take_unjudged(self) -> dict[str, float]:
        """The metrics of an evaluation that was published, the first time that they are asked for."""
        metrics, self._unjudged = self._unjudged, {}
        return metrics

    def go_back(self, version: int) -> None:
        """The PS went back to an earlier version."""
        self.latest_version = min(self.latest_version, version)

    def abandon(self) -> set[int]:
        """Gives up those in flight, whose pins are lost. Returns the epochs at whose end some of them stood."""
        lost = {run.training_epoch for run in self.running.values() if run.boundary}
        for run in self.running.values():
            self._job.single_tasks.drop(run.summary)
        if self.running:
            self.latest_version = _LOST
        self.running.clear()
        self._checkpoints.candidate = None
        return lost

    def restore(
        self,
        records: Collection[EvaluationRecord],
        *,
        latest_number: int,
        latest_version: int,
        published: bool,
        epochs_evaluated: Collection[int],
        results: Mapping[TaskId, bytes],
    ) -> list[do.Instruction]:
        """Goes on where an earlier master was; ``results`` are of the done tasks that the queue knows."""
        self.latest_number = max(self.latest_number, latest_number)
        self.latest_version = latest_version
        self.published = published
        self.epochs_evaluated |= set(epochs_evaluated)
        return [one for record in records for one in self._revive(record, results)]

    def _revive(self, record: EvaluationRecord, results: Mapping[TaskId, bytes]) -> list[do.Instruction]:
        plan = self._job.plans.validation
        if plan is None or not plan.listed:
            return []
        run = EvaluationRun(
            record.number,
            record.training_epoch,
            record.boundary,
            EpochLedger(plan, record.number),
            Stage(record.stage),
            record.model_version,
        )
        run.value = record.value
        for task, result in results.items():
            if task.type is TaskType.EVALUATION and task.epoch == run.number and plan.holds(task):
                run.progress.mark(task)
                run.results[task] = result
        self.running[run.number] = run
        # A group stands still for as long as its master says so.
        return [do.Pin(run.number)] if run.stage is Stage.PINNING or self._job.spec.by_group else []

    def _pinned(self, number: int, version: int) -> list[do.Instruction]:
        run = self.running.get(number)
        if run is None:
            return [do.Unpin(number)]
        if run.stage is not Stage.PINNING:
            return self._evaluate_anew(run) if version != run.model_version else []
        run.stage, run.model_version = Stage.RUNNING, version
        self.latest_version = max(self.latest_version, version)
        return [do.AddTasks(run.pending(), front=True)]

    def _publish(self, task: TaskId, result: bytes) -> list[do.Instruction]:
        run = self.running.get(task.epoch)
        if run is None or run.stage is not Stage.SUMMARY:
            return []
        out: list[do.Instruction] = []
        # Replays of reports may still come for a while: forget the evaluation before this one.
        if self._forgettable:
            out.append(do.ForgetTasks(self._forgettable))
        self._forgettable = run.progress.done()
        self.empty = run.empty
        before, self.skips = self.skips, run.skips
        out += [do.tell("skipped", f"validation: {news}") for news in doublings(before, run.skips)]
        if run.empty:
            out.append(
                do.tell(
                    "evaluation_empty",
                    f"evaluation {run.number} has no metrics: no record of the validation data came out of feed",
                    fix="look at what feed filters in mode evaluation, and at on_corrupt",
                )
            )
        try:
            metrics = {} if run.empty else metrics_of(result)
            run.value = self._improvement(metrics)
        except UserCodeError as error:
            self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")
            return out
        self.metrics, self.published, self._unjudged = metrics, True, metrics
        self.metrics_version = run.model_version
        out.append(do.PostEvaluation(run.number, run.model_version, run.training_epoch, metrics))
        if run.value is None:
            return [*self._end(run), *out]
        run.stage = Stage.KEEPING
        return out

    def _improvement(self, metrics: Mapping[str, float]) -> float | None:
        """The value by which an evaluation is the best so far, if it is."""
        if self.keep_best is None:
            return None
        return self.keep_best.improved(metrics, mark_of(self._checkpoints.book.best))

    def _saved(self, manifest: Manifest) -> list[do.Instruction]:
        """A checkpoint exists: it may hold the model of the best evaluation, or of what came after it."""
        mark, best = self._checkpoints.candidate, manifest.get("best")
        run = self.running.get(mark["evaluation"]) if mark is not None else None
        if run is None or mark is None:
            return []
        if best is not None and best["evaluation"] == mark["evaluation"]:
            words = f"{mark['metric']} {mark['value']:g} is the best so far: version {mark['version']} is kept"
            return [do.tell("best_model", words, **mark), *self._end(run)]
        return self._evaluate_anew(run) if manifest["version"] != mark["version"] else []

    def _evaluate_anew(self, run: EvaluationRun) -> list[do.Instruction]:
        """The model moved on while it was evaluated, or before it was saved: evaluates what it is now."""
        self.running.pop(run.number)
        self._job.single_tasks.drop(run.summary)
        self._checkpoints.candidate = None
        self.latest_version = _LOST
        words = f"the model moved on from version {run.model_version} before evaluation {run.number} was over"
        again = self.begin(boundary=run.boundary, training_epoch=run.training_epoch)
        return [do.tell("evaluated_again", words), do.Unpin(run.number), *again, do.RebuildQueue()]

    def _end(self, run: EvaluationRun) -> list[do.Instruction]:
        """An evaluation is over."""
        self.running.pop(run.number)
        self._checkpoints.candidate = None
        if run.boundary:
            self.epochs_evaluated.add(run.training_epoch)
        return [do.Unpin(run.number)]
