"""Evaluations and early stopping."""

from __future__ import annotations

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobType
from elasticdl_core.skips import doublings
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.core import MachineCore
from elasticdl_master.state.evaluations import Evaluation, Stage, metrics_of
from elasticdl_master.state.ledger import Round


class Evaluating(MachineCore):
    """Evaluates: pins, adds tasks, merges states, publishes, and stops training that no longer helps."""

    def _evaluation_due(self, version: int) -> bool:
        """Whether an update after the last evaluation was one in so many, at a model version."""
        every = self.spec.evaluation_steps
        due = bool(every) and version // every > max(0, self._evaluated_version) // every
        # At the end of an epoch there is one evaluation, not two of the same version.
        return due and self.work.validation is not None and not self.work.trained and not self.work.round.complete

    def _awaits_verdict(self, version: int) -> bool:
        """Whether an evaluation is due or open whose result may end training."""
        if self.early_stopping is None or self.spec.type is not JobType.TRAINING or self.work.trained:
            return False
        return bool(self.work.evaluations) or self._evaluation_due(version)

    def about_to_hold(self, version: int) -> bool:
        """Whether training tasks are in the queue that must not be leased once a worker tells of a model version."""
        unknown = version > self.version and not self.work.held and not self.work.round.complete
        return unknown and self._awaits_verdict(version)

    @property
    def _updates_in_hand(self) -> int:
        """How many updates the training tasks that workers hold can make from now on, at most."""
        spec, size = self.spec, self.spec.minibatch_size * max(1, self.spec.get_model_steps)
        tasks = [task for worker in self.workers.living for task in worker.leases.values()]
        pushes = sum(-(-task.records // size) for task in tasks if task.type is TaskType.TRAINING)
        return pushes if spec.use_async else -(-pushes // max(1, spec.grads_to_wait))

    def _too_early(self, task: TaskId) -> bool:
        """Whether a training task must wait: what workers hold already makes the next evaluation due."""
        if task.type is not TaskType.TRAINING or self.early_stopping is None:
            return False
        return self._awaits_verdict(self.version + self._updates_in_hand)

    def _hold_training(self) -> None:
        """Keeps training tasks out of the queue until a result that may end training is in."""
        coming = self._updates_in_hand if self.work.held else 0
        held = self._awaits_verdict(self.version + coming) and not self.work.round.complete
        if held == self.work.held:
            return
        self.work.held = held
        if self.work.todo():
            self._emit(do.RebuildQueue(self.contents()))

    def _begin_evaluation(self, *, boundary: bool, training_epoch: int) -> Evaluation:
        assert self.work.validation is not None
        self._number += 1
        one = Evaluation(self._number, training_epoch, boundary, Round(self.work.validation, self._number))
        self.work.evaluations[one.number] = one
        self._evaluated_version = self.version
        self._emit(do.Pin(one.number))
        return one

    def _on_pinned(self, event: ev.Pinned, now: float) -> None:
        one = self.work.evaluations.get(event.number)
        if one is None or one.stage is not Stage.PINNING:
            self._emit(do.Unpin(event.number))
            return
        one.stage, one.model_version = Stage.RUNNING, event.version
        self._evaluated_version = max(self._evaluated_version, event.version)
        plan = one.progress.plan
        self._emit(do.AddTasks(one.progress.remaining(range(plan.ready)), front=True))
        if self._boundary == event.number:
            self._boundary = None

    def _evaluation_task_done(self, task: TaskId, result: bytes) -> None:
        one = self.work.evaluation_of(task)
        if one is None or not one.progress.plan.holds(task):
            return
        one.progress.mark(task)
        one.results[task] = result

    def _advance_evaluations(self) -> None:
        for one in list(self.work.evaluations.values()):
            if one.stage is not Stage.RUNNING or not one.progress.complete:
                continue
            try:
                one.merged()
            except UserCodeError as error:
                self._fail(error.message, fix=error.fix, kind="user_code")
                return
            one.stage = Stage.SUMMARY
            self.work.singles.add(one.summary)
            self._emit(do.AddTasks([one.summary], front=True))

    def _summarised(self, task: TaskId, result: bytes, now: float) -> None:
        one = self.work.evaluations.pop(task.round, None)
        if one is None:
            return
        self._emit(do.Unpin(one.number))
        # Replays of reports may still come for a while: forget the evaluation before this one.
        if self._forgettable:
            self._emit(do.ForgetTasks(self._forgettable))
        self._forgettable = one.progress.done()
        self.evaluated_nothing = one.empty
        before, self.validation_skips = self.validation_skips, one.skips
        for news in doublings(before, one.skips):
            self._tell("skipped", f"validation: {news}")
        if one.empty:
            self._tell(
                "evaluation_empty",
                f"evaluation {one.number} has no metrics: no record of the validation data came out of feed",
                fix="look at what feed filters in mode evaluation, and at on_corrupt",
            )
        try:
            metrics = {} if one.empty else metrics_of(result)
        except UserCodeError as error:
            self._fail(error.message, fix=error.fix, kind="user_code")
            return
        self.metrics, self.evaluated = metrics, True
        if one.boundary:
            self._evaluated_epochs.add(one.training_epoch)
        self._emit(do.PostEvaluation(one.number, one.model_version, one.training_epoch, metrics))
        if metrics and self.early_stopping is not None and self.spec.type is JobType.TRAINING:
            try:
                why = self.early_stopping.observe(metrics)
            except UserCodeError as error:
                self._fail(error.message, fix=error.fix, kind="user_code")
                return
            if why and not self.work.trained:
                self._stop_training(why, now)

    def _stop_at_limit(self, why: str, now: float) -> None:
        """The PS take no more updates: what workers have in hand comes back, with the front of it that is done."""
        self.work.stopped = why
        self._returns_until = now + self.limits.drain_s
        self._tell("training_stopped", why)
        self._emit(do.RebuildQueue(self.contents()))

    def _training_comes_back(self, now: float) -> bool:
        """Whether workers still have training tasks in hand that they are about to return."""
        if not self.work.stopped or not any(
            task.type is TaskType.TRAINING for worker in self.workers.living for task in worker.leases.values()
        ):
            return False
        if now >= self._returns_until:
            self._take_training_back()
            return False
        return True

    def _take_training_back(self) -> None:
        for worker in self.workers.living:
            for token, task in list(worker.leases.items()):
                if task.type is TaskType.TRAINING:
                    worker.leases.pop(token)
        self._emit(do.RebuildQueue(self.contents()))

    def _stop_training(self, why: str, now: float) -> None:
        self.work.stopped = why
        # Workers hear with their next heartbeat that their leases are gone; until then they may still push.
        self._retry_save_at = now + 2.0 * self.limits.heartbeat_s
        self._tell("training_stopped", why)
        self._take_training_back()
