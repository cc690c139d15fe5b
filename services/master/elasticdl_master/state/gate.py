"""When training tasks may be leased: not while a result is awaited that may end training, and not once it is over.

Training is over before all records are processed when a limit of steps is reached, or when early stopping says so.
Whenever that changes what may be leased, the queue is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl_core.checkpoint_manifest import check_same_layers
from elasticdl_core.errors import InvalidInputError, UserCodeError
from elasticdl_core.job import JobType
from elasticdl_core.job.updates import words_of_rows
from elasticdl_core.model_description import ModelDescription
from elasticdl_core.task import Lease, TaskId, TaskType
from elasticdl_core.training_rules import DeclaredRules, TrainingRules
from elasticdl_master.state import events as ev
from elasticdl_master.state.checkpoints import Checkpoints
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.instructions import Instruction, RebuildQueue, tell
from elasticdl_master.state.version import ModelVersion


class TrainingGate:
    """Holds training tasks back, lets them go, or ends training.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.
        checkpoints: take the checkpoints.
        version: the model version.

    Attributes:
        description: what the workers said of the model; None before one did.
        rules: when training ends and what is exported, by the job and, once it is described, the model.
    """

    def __init__(
        self,
        job: JobContext,
        epochs: Epochs,
        evaluations: Evaluations,
        checkpoints: Checkpoints,
        version: ModelVersion,
    ) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self._checkpoints = checkpoints
        self._version = version
        self.description: ModelDescription | None = None
        self.rules = TrainingRules.of(job.spec, DeclaredRules())
        evaluations.keep_best = self.rules.keep_best
        self._returns_until = 0.0

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in the model's rules, leases, tasks that come back, and results of evaluations."""
        match event:
            case ev.ModelDescribed(description=description):
                first = self.description is None
                self.description = description
                if first:
                    self._read_rules()
                    self._compare_layers(description)
                    return self._tell_rows(description)
            case ev.TasksLeased(leases):
                return self._leased(leases, now)
            case ev.TaskReported(task=TaskId(type=TaskType.EVALUATION_SUMMARY)):
                return self._judge(now)
            case ev.TaskReturned(task=TaskId(type=TaskType.TRAINING)):
                return self._keep_back()
            case ev.WorkerFailed(task=TaskId(type=TaskType.TRAINING)):
                return self._keep_back()
            case ev.LeasesTaken(leases) if any(lease.task.type is TaskType.TRAINING for lease in leases):
                return self._keep_back()
        return []

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def step_limit(self) -> int:
        """The model version after which the job makes no more updates; 0 for none."""
        own = self.rules.max_steps
        return self._version.start + own if own else 0

    def awaits_verdict(self, version: int) -> bool:
        """Whether at a model version an evaluation is due, or in flight, past which nobody trains."""
        if not self._waits_for_results or self._epochs.trained:
            return False
        return bool(self._evaluations.running) or self._evaluations.is_due(version)

    def will_hold(self, version: int) -> bool:
        """Whether training tasks are in the queue that must not be leased once a worker tells of a model version."""
        unknown = version > self._version.present and not self._epochs.held and not self._epochs.complete
        return unknown and self.awaits_verdict(version)

    def awaits_returns(self, now: float) -> bool:
        """Whether training is over, and workers have tasks of it in hand that they are about to return."""
        return bool(self._epochs.stopped) and now < self._returns_until and bool(self._job.workers.training_in_hand())

    # -- what comes next -------------------------------------------------------------------------------------------

    def stop_at_limit(self, now: float) -> list[Instruction]:
        """Ends training at the limit of steps.

        The PS take no more updates: what workers have in hand comes back, with the front of it that is done.
        """
        why = self.rules.why_over(self._version.present - self._version.start)
        if not why or self._epochs.trained:
            return []
        self._epochs.stopped = why
        self._returns_until = now + self._job.limits.drain_s
        return [tell("training_stopped", self._epochs.stopped), RebuildQueue()]

    def hold(self, now: float) -> list[Instruction]:
        """Keeps training tasks out of the queue until a result that may end training is in."""
        coming = self._updates_in_hand if self._epochs.held else 0
        held = self.awaits_verdict(self._version.present + coming) and not self._epochs.complete
        if held == self._epochs.held:
            return []
        self._epochs.held = held
        return [RebuildQueue()] if self._epochs.remaining() else []

    def take_back_late_tasks(self, now: float) -> list[Instruction]:
        """Takes the training tasks that workers should have returned by now."""
        late = self._epochs.stopped and now >= self._returns_until and self._job.workers.training_in_hand()
        return self._take_training_back() if late else []

    def restore(self, description: ModelDescription | None, best: float | None, waited: int) -> None:
        """Goes on where an earlier master was."""
        self.description = description
        self._read_rules()
        if self.rules.early_stopping is not None:
            self.rules.early_stopping.best, self.rules.early_stopping.waited = best, waited

    @property
    def _waits_for_results(self) -> bool:
        """Whether training waits for evaluations: they may end it, or the model that they are of is to be kept.

        The model of a group stays as it is while it is evaluated, without that.
        """
        return self.rules.early_stopping is not None or (
            self.rules.keep_best is not None and not self._job.spec.by_group
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _updates_in_hand(self) -> int:
        """The number of updates that the training tasks in workers' hands can still make, at most."""
        spec = self._job.spec
        size = spec.minibatch_size * (1 if spec.by_group else max(1, spec.get_model_steps))
        pushes = sum(-(-task.records // size) for task in self._job.workers.training_in_hand())
        return pushes if spec.use_async else -(-pushes // max(1, spec.grads_to_wait))

    def _read_rules(self) -> None:
        declared = DeclaredRules.from_mapping(self.description["callbacks"] if self.description else {})
        try:
            self.rules = TrainingRules.of(self._job.spec, declared)
            self.rules.check()
            self._evaluations.keep_best = self.rules.keep_best
        except UserCodeError as error:
            self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")

    def _tell_rows(self, description: ModelDescription) -> list[Instruction]:
        """Says by which rule rows of tables move, where either rule does something else."""
        spec, optimizer = self._job.spec, description.get("optimizer")
        if spec.type is not JobType.TRAINING or optimizer is None:
            return []
        tables = [*(one["name"] for one in description.get("tables", [])), *description.get("closed", [])]
        groups = [optimizer["params"], *optimizer.get("groups", [])]
        words = words_of_rows(tables, optimizer["name"], groups, by_group=spec.by_group)
        return [tell("rows", words)] if words else []

    def _compare_layers(self, description: ModelDescription) -> None:
        """Ends a job whose checkpoint has other layers under the names of the model's."""
        initial = self._checkpoints.book.initial
        try:
            check_same_layers(initial.get("layers", {}) if initial else {}, description.get("layers", {}))
        except InvalidInputError as error:
            self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")

    def _leased(self, leases: Iterable[Lease], now: float) -> list[Instruction]:
        """Admits leases; those that come too early go back to the queue."""
        refused = False
        for lease in leases:
            if self._is_too_early(lease):
                refused = self._epochs.held = True
            else:
                self._job.workers.leased(lease, now)
        return self._keep_back() if refused else []

    def _is_too_early(self, lease: Lease) -> bool:
        """Whether a training task must wait: what workers hold already makes the next evaluation due."""
        if lease.task.type is not TaskType.TRAINING or not self._waits_for_results:
            return False
        return self.awaits_verdict(self._version.present + self._updates_in_hand)

    def _keep_back(self) -> list[Instruction]:
        """Training tasks came back to the queue: they may be not to be done, or not now."""
        return [RebuildQueue()] if self._epochs.stopped or self._epochs.held else []

    def _judge(self, now: float) -> list[Instruction]:
        """Lets early stopping see the metrics that were just published."""
        metrics = self._evaluations.take_unjudged()
        if not metrics:
            return []
        try:
            why = self.rules.observe(metrics)
        except UserCodeError as error:
            self._job.lifecycle.fail(error.message, fix=error.fix, kind="user_code")
            return []
        if not why or self._epochs.trained:
            return []
        self._epochs.stopped = why
        # Workers hear with their next heartbeat that their leases are gone; until then they may still push.
        self._checkpoints.wait_until(now + 2.0 * self._job.limits.heartbeat_s)
        return [tell("training_stopped", why), *self._take_training_back()]

    def _take_training_back(self) -> list[Instruction]:
        self._job.workers.take_training_back()
        return [RebuildQueue()]
