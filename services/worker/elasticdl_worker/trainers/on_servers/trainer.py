"""Trains on parameter servers: pull, compute, push; the push of one step overlaps with the next one.

A step is a minibatch, or a group of ``get_model_steps`` minibatches: their rows are pulled together, they are
computed one after the other in one compiled call that moves the parameters locally in between, and the sum of their
gradients is pushed as one update. With asynchronous SGD the parameters of a step miss at most the last ``staleness``
updates of this worker: one for the push on its way, the others for pulls that run ahead. The pull of the step that is
read next goes along with a push in the same message, after it, so that strictly in order, too, a step takes one
message a parameter server. With synchronous SGD no pull runs ahead of a push, the one that goes along waits for the
end of the round, and a refused gradient is computed anew on fresh parameters.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from elasticdl_core.errors import ElasticDLError, UnavailableError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.model import RowPolicy, UpdateClipping, UpdateMode
from elasticdl_runtime.telemetry.spans import span, traced
from elasticdl_worker.device import device_turn
from elasticdl_worker.parameters import LIMIT, Gradients, ParameterClient, PulledParameters, PullOutcome, PushResult
from elasticdl_worker.reporting.accounts import TaskAccounts
from elasticdl_worker.reporting.progress import StepParts, WorkerProgress
from elasticdl_worker.trainers.framework import (
    Array,
    Lookups,
    LookupsChangedError,
    LossOf,
    Metrics,
    Outputs,
    PreparedJob,
    StepResult,
)
from elasticdl_worker.trainers.learning_rates import checked_rate
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.not_finite import NanPolicy, find_not_finite
from elasticdl_worker.trainers.on_servers.read_ahead import TrainingStep
from elasticdl_worker.trainers.on_servers.remaining_steps import RemainingSteps
from elasticdl_worker.trainers.training_step import training_step
from elasticdl_worker.user_code import ModelModule

T = TypeVar("T")
_MAX_REFUSALS = 1000


class Runner(Protocol):
    """Runs coroutines on the event loop from the training thread."""

    def call(self, coroutine: Coroutine[object, None, T]) -> T:
        """Runs one and waits for its result."""

    def submit(self, coroutine: Coroutine[object, None, T]) -> Future[T]:
        """Runs one."""


class _Outcome(Protocol):
    """The outcome of a push."""

    def result(self) -> PushResult:
        """Waits for it."""


@dataclass(frozen=True)
class _PushPart:
    """The push's part of a message that has a pull besides."""

    both: Future[tuple[PushResult, PullOutcome]]

    def result(self) -> PushResult:
        """Waits for it."""
        return self.both.result()[0]


@dataclass(frozen=True)
class _PullPart:
    """The pull's part of such a message."""

    both: Future[tuple[PushResult, PullOutcome]]

    def result(self) -> PulledParameters | None:
        """Waits for it; None if the push came after the job's last update. Raises what a pull raises."""
        pulled = self.both.result()[1]
        if isinstance(pulled, ElasticDLError):
            raise pulled
        return pulled


@dataclass(frozen=True)
class _Push:
    """A push on its way."""

    step: TrainingStep
    outcome: _Outcome
    following: TrainingStep | None = None
    """The step whose pull went along."""


def round_clipping(spec: JobSpec, clipping: UpdateClipping) -> UpdateClipping:
    """The clipping that parameter servers do: that of rounds, which are one update; a worker clips all others.

    Args:
        spec: the job.
        clipping: what the user asks for.

    Raises:
        UserCodeError: it is by a norm that no server knows.
    """
    if not spec.rounds_of_several or not clipping.by:
        return UpdateClipping()
    if clipping.needs_whole and spec.num_ps > 1:
        raise UserCodeError(
            f"gradients are clipped by their norm, that of a round of {spec.grads_to_wait} minibatches "
            f"(--grads_to_wait), of which each of {spec.num_ps} parameter servers has only a part",
            fix="give --num_ps 1, clip by value, or train with --distribution_strategy AllReduceStrategy or "
            "--grads_to_wait 1",
        )
    return clipping


def update_mode(spec: JobSpec, stop_at: int = 0, clipping: UpdateClipping | None = None) -> UpdateMode:
    """The job's rules for when a pushed gradient becomes an update, and for rows."""
    rows = RowPolicy(spec.table_admission, spec.table_eviction, spec.table_max_rows)
    return UpdateMode(
        spec.use_async,
        spec.grads_to_wait,
        spec.sync_version_tolerance,
        spec.lr_staleness_modulation,
        rows,
        spec.delay_compensation,
        stop_at,
        clipping or UpdateClipping(),
    )


def _weighed(result: StepResult, records: int) -> StepResult:
    """A result with its denominator measured, once; without loss and gradients where none of its records counts."""
    if result.denominator is None:
        return result
    weight = result.denominator(records)
    result = replace(result, denominator=lambda _: weight)
    if weight:
        return result
    return replace(
        result,
        losses=(0.0,) * len(result.losses),
        dense={name: np.zeros_like(gradient) for name, gradient in result.dense.items()},
        rows={table: np.zeros_like(gradient) for table, gradient in result.rows.items()},
    )


class Trainer:
    """The steps of one worker.

    Args:
        spec: the job.
        module: the user's module.
        job: the prepared model and its programs.
        parameters: the parameter servers.
        runner: runs the client's coroutines.
        progress: hears of steps and losses.
        remaining_steps: hears of each step.
        metrics: what is shown of training minibatches; None if that is nothing.

    Attributes:
        version: the highest model version seen.
        at_limit: whether the job has made its last update.
        accounts: what became of the records of the tasks in work.
    """

    def __init__(
        self,
        spec: JobSpec,
        module: ModelModule,
        job: PreparedJob,
        parameters: ParameterClient,
        runner: Runner,
        progress: WorkerProgress,
        remaining_steps: RemainingSteps | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.version = 0
        self.at_limit = False
        self.accounts = TaskAccounts()
        self._spec = spec
        self._module = module
        self._model = job.model
        self._programs = job.programs
        self._optimizer = job.optimizer
        self._parameters = parameters
        self._runner = runner
        self._progress = progress
        progress.set_loss_interval(spec.log_loss_steps)
        self._group_updates = job.group_updates
        self._remaining_steps = remaining_steps
        self._metrics = metrics
        self._latest: dict[str, Array] = {}
        self._pushes: deque[_Push | Callable[[], None]] = deque()
        self._nan = NanPolicy(spec.on_nan)
        self._steps = 0
        self._upcoming: TrainingStep | None = None
        self._announced: deque[TrainingStep] = deque()
        self._left_out: dict[str, int] = {}
        self._pull_lock = threading.Lock()

    @property
    def depth(self) -> int:
        """Number of steps whose pull may run ahead; with 0 a step pulls when it is due."""
        return max(self.staleness - 1, 0)

    @property
    def staleness(self) -> int:
        """The number of this worker's own last updates that a step may miss."""
        return self._spec.max_staleness if self._spec.use_async and not self._spec.eager else 0

    @property
    def read_ahead(self) -> Callable[[TrainingStep, Callable[[], bool]], bool] | None:
        """The function that the reading thread calls for each step before the trainer takes it; None for none."""
        if self.depth:
            return self.prefetch
        return None if self._spec.eager else self.announce

    def prefetch(self, step: TrainingStep, permit: Callable[[], bool]) -> bool:
        """Starts the pull of a step, on the reading thread; False if the reading was stopped meanwhile."""
        unique = self._lookups(step).unique
        with self._pull_lock:
            self._upcoming = step
        permitted = permit()
        with self._pull_lock:
            self._upcoming = None
            if permitted and step.pulled is None:
                step.pulled = self._runner.submit(self._parameters.pull(unique))
        return permitted

    def announce(self, step: TrainingStep, permit: Callable[[], bool]) -> bool:
        """Finds the ids of a step, on the reading thread, so that its pull can travel with a push."""
        self._lookups(step)
        with self._pull_lock:
            self._announced.append(step)
        return True

    def train(self, step: TrainingStep) -> None:
        """Trains on the minibatches of a step; its push may still be on its way when this returns.

        Raises:
            UserCodeError: the user's code raised, or a loss or gradient is no number and ``on_nan`` is to fail.
            UnavailableError: the parameter servers are away.
        """
        started = time.monotonic()
        self._drop_announced(step)
        pulled = None if self.at_limit else self._pulled(step)
        if pulled is None:
            # What the last update of the job was asked for along with never came.
            self.wait_for_pushes()
        if self.at_limit:
            self._leave_out(step)
            return
        if pulled is None:
            pulled = self._pull(step)
        has_pulled = time.monotonic()
        self._steps += len(step.batches)
        if self._remaining_steps is not None:
            self._remaining_steps.record(step.lease.task.id.epoch, pulled.version)
        self._compute_and_push(step, pulled)
        has_computed = time.monotonic()
        while sum(isinstance(entry, _Push) for entry in self._pushes) > min(self.staleness, 1):
            self._finish_first()
        ended = time.monotonic()
        parts = StepParts(pull=has_pulled - started, compute=has_computed - has_pulled, push=ended - has_computed)
        self._progress.record_step(step.records, ended - started, self.version, len(step.batches), parts)

    def call_after_pushes(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when every push so far was accepted; at once if none is on its way."""
        self._pushes.append(action)
        while self._pushes and not isinstance(self._pushes[0], _Push):
            self._finish_first()

    def take_untrained(self, token: str) -> int:
        """Records of a task that came after the job's last update; they are its last ones. Forgets them."""
        return self._left_out.pop(token, 0)

    def wait_for_pushes(self) -> None:
        """Waits for every push; what was refused is computed anew."""
        while self._pushes:
            self._finish_first()

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self._model.outputs

    @property
    def evaluation_loss(self) -> LossOf:
        """The loss of labels and predictions, without regularisation."""
        return self._programs.evaluation_loss

    def infer(self, minibatches: Iterable[Minibatch], pin: int) -> Iterator[tuple[Minibatch, Tensors]]:
        """The predictions of minibatches, one after the other.

        Args:
            minibatches: these.
            pin: number of the pinned parameters to take; 0 for the present ones.
        """
        self.wait_for_pushes()
        try:
            dense = True
            for batch in minibatches:
                lookups = self._lookups_of(batch)
                pulled = self._runner.call(self._parameters.pull(lookups.unique, dense=dense, pin=pin))
                if dense:
                    self._model.assign(self._latest | dict(pulled.dense) if not pin else pulled.dense)
                    if not pin:
                        self._latest.update(pulled.dense)
                    dense = False
                try:
                    predictions = self._forward(batch, pulled, lookups)
                except LookupsChangedError:
                    lookups = self._lookups_of(batch)
                    pulled = self._runner.call(self._parameters.pull(lookups.unique, dense=False, pin=pin))
                    predictions = self._forward(batch, pulled, lookups)
                yield batch, predictions
        finally:
            self._model.assign(self._latest)

    def _lookups_of(self, batch: Minibatch) -> Lookups:
        with self._module.guard("the model"):
            return self._programs.collect(batch.features, training=False)

    def _forward(self, batch: Minibatch, pulled: PulledParameters, lookups: Lookups) -> Tensors:
        with self._module.guard("the model"), device_turn():
            return self._programs.forward(batch.features, pulled.rows, lookups)

    def _drop_announced(self, step: TrainingStep) -> None:
        """Removes a step from the announced ones, and those before it, which the loop left out."""
        with self._pull_lock:
            if any(one is step for one in self._announced):
                while self._announced.popleft() is not step:
                    pass

    def _lookups(self, step: TrainingStep) -> Lookups:
        if step.lookups is None:
            with self._module.guard("the model"):
                step.lookups = self._programs.collect(*(batch.features for batch in step.batches), training=True)
        return step.lookups

    def _pulled(self, step: TrainingStep) -> PulledParameters | None:
        """The parameters of a step, which may be on their way; None if they do not come."""
        coming, step.pulled = step.pulled, None
        if coming is None:
            return self._pull(step)
        with traced("pull", "step"):
            return coming.result()

    def _pull(self, step: TrainingStep) -> PulledParameters:
        unique = self._lookups(step).unique
        with span("pull", "step"):
            pulled: PulledParameters = self._runner.call(self._parameters.pull(unique))
        return pulled

    def _gradients(self, step: TrainingStep, pulled: PulledParameters) -> tuple[StepResult, int]:
        """The gradients of a step, and the model version that they are of."""
        try:
            return self._computed(step, pulled), pulled.version
        except LookupsChangedError:
            step.lookups = None
            pulled = self._pull(step)
            return self._computed(step, pulled), pulled.version

    def _computed(self, step: TrainingStep, pulled: PulledParameters) -> StepResult:
        self.version = max(self.version, pulled.version)
        self._latest.update(pulled.dense)
        model = self._model
        # All of them, whether or not the PS had news: a group begins with what the PS hold.
        dense = {name: self._latest[name] for name in model.trainable}
        model.assign({name: value for name, value in pulled.dense.items() if name not in dense})
        rates = self._rates(step, pulled.version)
        if self._group_updates is not None and rates is not None:
            self._group_updates.set_rates(rates)
        batches = [(batch.features, batch.labels) for batch in step.batches]
        with training_step(self._module, step.batches):
            lookups = self._lookups(step)
            told = {"version": pulled.version, "records": step.records, "minibatches": len(batches)}
            with device_turn(), span("compute", "step", details=told):
                result = _weighed(self._programs.steps(batches, dense, pulled.rows, lookups), step.records)
        constant = None if self._optimizer is None else self._optimizer.spec.params["learning_rate"]
        shown = constant if rates is None else rates[0]
        for loss in result.losses:
            self._progress.record_loss(pulled.version, loss, shown)
        return result

    def _compute_and_push(self, step: TrainingStep, pulled: PulledParameters) -> None:
        result, version = self._gradients(step, pulled)
        if self._is_finite(step, result, version):
            self._pushes.append(self._send(step, result, version))
            self._measure(step, result)

    def _measure(self, step: TrainingStep, result: StepResult) -> None:
        """Has the metrics take a step's minibatches, and tells their values when due; the push is on its way."""
        if self._metrics is None or not result.predictions:
            return
        epoch, values, due = step.lease.task.id.epoch, {}, self._progress.metrics_due
        for batch, predictions in zip(step.batches, result.predictions, strict=True):
            last = due and batch is step.batches[-1]
            values = self._metrics.of_epoch(epoch, batch.labels, predictions, batch.records, due=last)
        if due:
            self._progress.record_metrics(values)

    def _is_finite(self, step: TrainingStep, result: StepResult, version: int) -> bool:
        """Whether a result is finite. If not, the minibatches of a group are trained one by one."""
        gradients = {**result.dense, **result.rows}
        what = find_not_finite(result.losses, gradients, result.state, self._model.unset)
        if not what:
            self._nan.reset()
            return True
        # Nothing of this may stay: neither in moving averages nor in the memory of the local optimizer.
        self._model.assign({name: self._latest[name] for name in self._model.state if name in self._latest})
        if self._group_updates is not None:
            self._group_updates.reset()
        if len(step.batches) == 1:
            (batch,) = step.batches
            skips = self._nan.handle(what, batch.where, batch.records, version)
            self.accounts.add_skipped(step.lease.token, skips)
            return False
        for batch in step.batches:
            single = TrainingStep(step.lease, (batch,))
            self._train_until_accepted(single, self._pull(single))
        return False

    def _train_until_accepted(self, step: TrainingStep, pulled: PulledParameters) -> None:
        """Computes a step until the parameter servers accept it."""
        for _ in range(_MAX_REFUSALS):
            result, version = self._gradients(step, pulled)
            if not self._is_finite(step, result, version):
                return
            outcome: PushResult = self._runner.call(self._push(step, result, version))
            self.version = max(self.version, outcome.version)
            if outcome.reason == LIMIT:
                self._leave_out(step)
                return
            if outcome.accepted:
                self.accounts.add_applied(step.lease.token, step.records)
                return
            pulled = self._pull(step)
        raise UnavailableError(
            f"the parameter servers refused a gradient {_MAX_REFUSALS} times",
            fix="look at their logs; in synchronous mode, raise --sync_version_tolerance, or use fewer workers than "
            "--grads_to_wait allows",
        )

    def _rates(self, step: TrainingStep, version: int) -> tuple[float, ...] | None:
        """The learning rates of a step at a model version, by group; None where they are constant."""
        schedule = self._optimizer.learning_rate if self._optimizer else None
        if self._optimizer is None or schedule is None:
            return None
        given = schedule(version, step.lease.task.id.epoch)
        rates = given if isinstance(given, tuple) else (given,)
        return tuple(checked_rate(rate, version, self._optimizer.spec.name) for rate in rates)

    def _send(self, step: TrainingStep, result: StepResult, version: int) -> _Push:
        """Starts a push, with the pull of the step that the reading thread has ready, if any."""
        with self._pull_lock:
            following, self._upcoming = self._upcoming, None
            if following is None and self._announced:
                following = self._announced.popleft()
            if following is None:
                return _Push(step, self._runner.submit(self._push(step, result, version)))
            gradients, rates = self._changes(step, result), self._rates(step, version)
            ids = self._lookups(following).unique
            both = self._runner.submit(
                self._parameters.push_pull(gradients, ids, version=version, learning_rate=rates)
            )
            following.pulled = _PullPart(both)
            return _Push(step, _PushPart(both), following)

    def _push(self, step: TrainingStep, result: StepResult, version: int) -> Coroutine[object, None, PushResult]:
        changes, rates = self._changes(step, result), self._rates(step, version)
        return self._parameters.push(changes, version=version, learning_rate=rates)

    def _changes(self, step: TrainingStep, result: StepResult) -> Gradients:
        unique = self._lookups(step).unique
        rows = {table: (unique[table], gradient) for table, gradient in result.rows.items()}
        origin = result.origin if self._spec.delay_compensation else None
        task = step.lease.task.id
        steps = len(step.batches)
        weight = None if result.denominator is None else result.denominator(step.records)
        return Gradients(
            result.dense, rows, result.state, step.records, origin, (task.epoch, task.index), steps, weight
        )

    def _leave_out(self, step: TrainingStep) -> None:
        """Leaves out a step after the job's last update; all further steps are left out too."""
        self.at_limit = True
        token = step.lease.token
        self._left_out[token] = self._left_out.get(token, 0) + step.records

    def _finish_first(self) -> None:
        entry = self._pushes.popleft()
        if not isinstance(entry, _Push):
            entry()
            return
        # It may be another task's than that which the thread is at.
        with span("push", "step", details={"task": str(entry.step.lease.task.id)}):
            outcome = entry.outcome.result()
        self.version = max(self.version, outcome.version)
        if outcome.accepted:
            self.accounts.add_applied(entry.step.lease.token, entry.step.records)
        elif outcome.reason == LIMIT:
            self._leave_out(entry.step)
        else:
            if not self.depth and entry.following is not None:
                # It was read before the update that is made now.
                entry.following.pulled = None
            self._train_until_accepted(entry.step, self._pull(entry.step))
