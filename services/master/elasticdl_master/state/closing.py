"""The way from the last record to success: last evaluation, last checkpoint, export, audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from elasticdl_core.best_evaluation import BEST
from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobState, JobType
from elasticdl_core.path_policy import join_place
from elasticdl_core.task import TaskId, TaskType
from elasticdl_core.training_rules import check_trained, success_reason
from elasticdl_master.state import events as ev
from elasticdl_master.state.artifacts import artifacts_in
from elasticdl_master.state.auditing import RecordAudit
from elasticdl_master.state.checkpoints import FINAL, Checkpoints
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.gate import TrainingGate
from elasticdl_master.state.instructions import AddTasks, Instruction
from elasticdl_master.state.schedule import EpochSequence
from elasticdl_master.state.version import ModelVersion

EXPORT_TASK = TaskId(TaskType.EXPORT, 0, 0, 0, 0)
BEST_TASK = TaskId(TaskType.EXPORT, 0, 1, 0, 0)
"""The export of the best evaluation's model, beside the last one."""


class Closing:
    """Closes a job whose work is done, or was stopped for a reason.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.
        schedule: goes from epoch to epoch.
        gate: says when training tasks may be leased, and when training is over.
        checkpoints: take the checkpoints.
        audit: compares what is in the model with the plan.
        version: the model version that the job began at.

    Attributes:
        final: the manifest of the last checkpoint, once it exists.
        exported: whether the model was exported, and the best one.
        last_evaluation_begun: whether the evaluation after training was stopped has begun.
    """

    def __init__(
        self,
        job: JobContext,
        epochs: Epochs,
        evaluations: Evaluations,
        schedule: EpochSequence,
        gate: TrainingGate,
        checkpoints: Checkpoints,
        audit: RecordAudit,
        version: ModelVersion,
    ) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self._schedule = schedule
        self._gate = gate
        self._checkpoints = checkpoints
        self._audit = audit
        self._version = version
        self.final: Manifest | None = None
        self.exported = False
        self.last_evaluation_begun = False

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in the last checkpoint, the export, and the audit."""
        match event:
            case ev.Saved(kind, manifest) if kind == FINAL and self._epochs.trained:
                self.final = manifest
                return self._export() if self._is_trained(self.final) else []
            case ev.TaskReported(task=TaskId(type=TaskType.EXPORT) as task, result=result):
                if self._job.single_tasks.finish(task):
                    self.exported = self._job.single_tasks.done.issuperset(self._exports)
                    folder = f"{BEST}/" if task == BEST_TASK else ""
                    return [replace(one, name=f"{folder}{one.name}") for one in artifacts_in(result)]
            case ev.TalliesRead(tallies) if self.final is not None and not self._job.lifecycle.ending:
                return self._audit.compare(tallies)
        return []

    def advance(self, now: float) -> list[Instruction]:
        """Does the next step of closing, if all work is done."""
        if self._job.spec.type is JobType.EVALUATION:
            return self._close_evaluation()
        if not self._epochs.trained or self._schedule.waits:
            return []
        if self._job.spec.type is JobType.PREDICTION:
            return self._succeed()
        return self._close_training(now)

    def payload(self, task: TaskId) -> dict[str, Any]:
        """The facts that a worker needs for an export."""
        manifest, output = self.final, self._job.setup.output
        if task == BEST_TASK:
            manifest = self._checkpoints.book.best
            # In the folder that the user named, else beside the job's own.
            output = join_place(output if self._job.spec.output else str(PurePath(output).parent), BEST)
        if manifest is None:
            return {}
        return {
            "checkpoint_directory": manifest["directory"],
            "manifest": {key: value for key, value in manifest.items() if key != "done"},
            "output": output,
            "formats": self._formats,
        }

    def interrupt(self) -> None:
        """The PS went back: what comes after training is to be seen to again."""
        self.last_evaluation_begun = False

    def restore(self, *, exported: bool, last_evaluation_begun: bool) -> None:
        """Goes on where an earlier master was."""
        self.exported = exported
        self.last_evaluation_begun = last_evaluation_begun
        manifests = self._checkpoints.book.manifests
        self.final = next((m for m in manifests if m.get("kind") == FINAL), None)

    @property
    def _formats(self) -> list[str]:
        return list(self._gate.rules.export_formats)

    def _close_evaluation(self) -> list[Instruction]:
        evaluations = self._evaluations
        if evaluations.running:
            return []
        if evaluations.published:
            return self._succeed()
        ready = self._job.plans.main.listed and self._job.servers.initialized
        return evaluations.begin(boundary=True, training_epoch=0) if ready else []

    def _close_training(self, now: float) -> list[Instruction]:
        if self._checkpoints.must_wait(now) or self._gate.awaits_returns(now):
            return []
        out = self._gate.take_back_late_tasks(now)
        if not self._job.plans.listed:
            # Training can stop (a limit of steps) before the listing is complete; what follows needs it.
            return out
        out += self._evaluate_last()
        saving = bool(self._checkpoints.book.saving)
        if self.final is None:
            keeping = self._gate.rules.keep_best is not None and bool(self._evaluations.running)
            return out if saving or keeping else [*out, *self._checkpoints.save(FINAL, now)]
        if not self._is_trained(self.final):
            return out
        out += self._export()
        if (self.exported or not self._formats) and not self._evaluations.running and not saving:
            out += self._succeed() if self._audit.outcome is not None else self._audit.request()
        return out

    def _is_trained(self, final: Mapping[str, Any]) -> bool:
        """Whether the job has made an update; one that has made none fails."""
        try:
            check_trained(self._epochs.records_done, int(final["version"]) - self._version.start)
        except UserCodeError as error:
            self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")
            return False
        return True

    def _evaluate_last(self) -> list[Instruction]:
        """Training that was stopped is evaluated once more, unless it just was."""
        if not self._epochs.stopped or self._job.plans.validation is None or self.last_evaluation_begun:
            return []
        self.last_evaluation_begun = True
        if self._evaluations.at_present_version:
            return []
        return self._evaluations.begin(boundary=True, training_epoch=self._epochs.epochs_done)

    def _export(self) -> list[Instruction]:
        tasks = self._job.single_tasks
        new = [one for one in self._exports if one not in tasks.pending and one not in tasks.done]
        if not self._formats or self.exported or not new:
            return []
        tasks.add(*new)
        return [AddTasks(new, front=True)]

    @property
    def _exports(self) -> list[TaskId]:
        return [EXPORT_TASK] if self._checkpoints.book.best is None else [EXPORT_TASK, BEST_TASK]

    def _succeed(self) -> list[Instruction]:
        out = self._job.lifecycle.start_running("all work is done already")
        epochs, skipped = self._epochs, self._audit.skipped
        reason = success_reason(epochs.stopped, epochs.records_done, epochs.records_total, skipped)
        if skipped:
            self._job.lifecycle.end(JobState.SUCCEEDED_WITH_SKIPS, reason, {"skipped": skipped})
        else:
            self._job.lifecycle.end(JobState.SUCCEEDED, reason)
        return out
