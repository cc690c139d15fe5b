"""A PyTorch model in one member of a group: what ``elasticdl_worker.group`` asks of a replica."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from elasticdl.data import Shard
from elasticdl_core.errors import DataError
from elasticdl_core.skips import Skips
from elasticdl_core.task import Task
from elasticdl_worker.device import device_turn
from elasticdl_worker.group.replica import (
    HOST_MEMORY,
    Contribution,
    Flat,
    Measure,
    Memory,
    MicrobatchData,
    ModelLayout,
    ReplicaState,
)
from elasticdl_worker.trainers.framework import Metrics, Outputs, Preparation
from elasticdl_worker.trainers.learning_rates import checked_rate
from elasticdl_worker.trainers.loss_denominators import CLOSE, CLOSE_OF_HALF, all_masked, on_first_rows
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.not_finite import NanPolicy
from elasticdl_worker.trainers.replica_rules import (
    bits_of,
    check_same_model,
    describe_bad_parts,
    reading_seed,
    step_seed,
)
from elasticdl_worker.trainers.torch.device import (
    HOST,
    arrays_of,
    finish_on,
    finite_flag,
    place,
    run_backward,
    settle_flags,
)
from elasticdl_worker.trainers.torch.input.pipeline import TorchInputPipeline
from elasticdl_worker.trainers.torch.model.build import BuiltModel, as_tensor
from elasticdl_worker.trainers.torch.model.optimizers import MadeOptimizer, TorchOptimizerPlan, set_rates
from elasticdl_worker.trainers.torch.model.own_changes import OwnChanges
from elasticdl_worker.trainers.torch.model.state_rules import changing_state, learn_rules
from elasticdl_worker.trainers.torch.model.trials import find_generators
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors
from elasticdl_worker.trainers.torch.replica.buckets import TorchBuckets
from elasticdl_worker.trainers.torch.replica.memory import as_flat, choose_memory
from elasticdl_worker.trainers.torch.replica.randomness import SharedRandomness
from elasticdl_worker.trainers.torch.replica.slots import TorchSlots
from elasticdl_worker.trainers.torch.replica.state_changes import TorchStateChanges
from elasticdl_worker.trainers.torch.step.denominators import TorchDenominators
from elasticdl_worker.trainers.torch.step.programs import ForwardPass, StepOptions, clip
from elasticdl_worker.trainers.training_step import training_step

_OF_LOSS = 2
"""Numbers of a contribution: the denominator of its loss, and whether it is NaN for having none."""
_SMALL = 1024
"""Numbers of a buffer that is told in each step, whether or not the first records changed it."""


class TorchReplica:
    """The whole model of one member.

    Args:
        preparation: of the job.
        model: the model, all of it in this process.
        sample: features of a few records.
        made: the user's optimizer.
        plan: what became of it in the words of parameter servers, for checkpoints and for its schedule.
        options: how steps are computed.
        metrics: what is shown of training microbatches; None if that is nothing.

    Attributes:
        version: updates that were applied.
        model: the model.
        sample: features of a few records.
    """

    def __init__(
        self,
        preparation: Preparation,
        model: BuiltModel,
        sample: Tensors,
        made: MadeOptimizer,
        plan: TorchOptimizerPlan,
        options: StepOptions,
        metrics: Metrics | None = None,
    ) -> None:
        spec = preparation.spec
        self.version = 0
        self.model = self._model = model
        self.sample = sample
        self._module = preparation.module
        self._source = cast(TorchInputPipeline, preparation.source)
        self._metrics = metrics
        self._nan = NanPolicy(spec.on_nan)
        self._seed = spec.seed
        self._fuses = spec.fuses
        self._plan = plan
        self._optimizer = made.optimizer
        self._forward = ForwardPass(model, self._module, replace(options, compiled=False))
        # Members must compute a shape the same way whatever they saw before: so one shape is compiled, no other.
        self._compiled = ForwardPass(model, self._module, options) if options.compiled else self._forward
        self._compiled_shape = [(spec.microbatch_size, *leaf.shape[1:]) for leaf in leaves(sample)]
        self._randomness = SharedRandomness(find_generators(model.net, self._module.roots), model.device)
        # Walking through the layers for them takes longer than to forget their gradients.
        self._parameters = list(model.net.parameters())
        self._memory = choose_memory(spec.collective, model.device)
        self._leaves = HOST if self._memory is HOST_MEMORY else model.device
        self._buckets = TorchBuckets(model.trainable, device=model.device, leaves=self._leaves)
        self._own_changes = OwnChanges(model)
        learn_rules(model, sample)
        self._state = TorchStateChanges(
            model.merging, self._find_changing(sample), self._leaves, spec.microbatches_per_step
        )
        self._slots = TorchSlots(made.optimizer, model.trainable)
        self._layout = ModelLayout(
            model.dense_specs(plan.groups),
            plan.spec,
            self._slots.names,
            frozenset(model.looked_up()),
            closed=tuple(model.closed),
        )
        self._lengths = [*self._buckets.lengths, self._buckets.marks + self._state.length + _OF_LOSS]
        self._denominators: TorchDenominators | None = None
        if spec.microbatches_per_step > 1:
            close = CLOSE_OF_HALF if options.autocast else CLOSE
            self._denominators = self._measured(close)

    @property
    def memory(self) -> Memory:
        """The host's, or that of the device if the job asks for sums there."""
        return self._memory

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each array of a contribution: the buckets, then marks of gradients, denominator, state."""
        return self._lengths

    @property
    def layout(self) -> ModelLayout:
        """A checkpoint's layout of the model."""
        return self._layout

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self._model.outputs

    def read(self, task: Task, start: int, end: int) -> MicrobatchData:
        """Reads the records at positions ``[start, end)`` of a training task."""
        shard = Shard(task.shard.name, start, end)
        with self._randomness.seeded(reading_seed(self._seed, task, start, end)):
            batches = list(self._source.minibatches(shard, task.reading))
        intake = self._source.intake
        if len(batches) > 1:
            raise DataError(
                f"feed made {len(batches)} minibatches of the {end - start} records of a microbatch",
                fix="let feed give samples, or minibatches of at least --minibatch_size records",
            )
        return MicrobatchData(intake.fed, intake.skips, batches[0] if batches else None)

    def compute(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Runs the model forward and backward on one microbatch, at the present parameters."""
        batch, rows = data.content, data.fed
        forward = self._forward_of(batch.features)
        self._forget_gradients()
        self._state.begin()
        self._own_changes.begin()
        try:
            with (
                self._randomness.seeded(step_seed(step, microbatch, self._seed)),
                training_step(self._module, [batch]),
            ):
                denominators, before_loss = self._denominators, None
                if denominators is not None:
                    before_loss = denominators.keeping(batch.labels, batch.features)
                loss, predictions = forward.train(batch.features, batch.labels, None, before_loss)
                weight = float(rows) if denominators is None else denominators.of(rows, float(loss.detach()))
                if weight:  # else all rows are masked, and the loss of the update goes by other parts
                    run_backward(loss)
            self._own_changes.check(loss)
            value = float(loss.detach())
            void = not weight and not math.isfinite(value)
            if not weight and not (void and self._nan.skips):
                value = 0.0
            tensors = self._gathered(rows, weight, microbatch, void=void)
        finally:
            self._state.undo()
            self._forget_gradients()
        finite = settle_flags([finite_flag(one) for one in tensors])
        what = describe_bad_parts(value, finite, len(self._buckets.lengths), self._buckets)
        if what:
            return Contribution(0, (), value, self._nan.handle(what, batch.where, rows, self.version))
        self._nan.reset()
        measure = None if self._metrics is None else self._measure(self._metrics, batch, predictions, rows, epoch)
        arrays = [one.numpy() if self._memory is HOST_MEMORY else as_flat(one) for one in tensors]
        adds = self._denominators is not None and self._denominators.adds
        return Contribution(rows, arrays, value, Skips(), measure, 0.0 if adds else weight)

    def _measure(self, metrics: Metrics, batch: Minibatch, predictions: Tensors, rows: int, epoch: int) -> Measure:
        detached = map_tensors(torch.Tensor.detach, predictions)
        return lambda due: metrics.of_epoch(epoch, batch.labels, detached, rows, due=due)

    def _forget_gradients(self) -> None:
        for one in self._parameters:
            one.grad = None

    def _gathered(self, rows: int, weight: float, microbatch: int, *, void: bool) -> list[torch.Tensor]:
        """The tensors of a contribution."""
        buckets, marks = self._buckets.pack(weight)
        first = torch.cat([marks, torch.tensor([weight, float(void)])])
        return [*buckets, torch.cat([first.to(self._leaves), self._state.take(rows, microbatch)])]

    def apply(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        """Makes one update by the loss of all rows."""
        optimizer = self._optimizer
        if self._plan.learning_rate is not None:
            rates = self._plan.learning_rate(self.version, epoch)
            name = type(optimizer).__name__
            each = rates if isinstance(rates, tuple) else (rates,) * len(optimizer.param_groups)
            set_rates(optimizer, [checked_rate(rate, self.version, name) for rate in each])
        with device_turn(partial(finish_on, self._model.device)):
            self._update(sums, rows)
        self.version += 1

    def _update(self, sums: Sequence[Flat], rows: int) -> None:
        *buckets, rest = [as_tensor(total) for total in sums]
        marks, of_loss, changes = torch.split(rest, [self._buckets.marks, _OF_LOSS, self._state.length])
        denominator, void = of_loss.tolist()
        if void and not denominator:
            raise all_masked()
        if self._denominators is not None and self._denominators.adds:
            denominator = 1.0
        # Without a denominator all gradients are 0.
        self._buckets.set_gradients([total / (denominator or 1.0) for total in buckets], marks)
        gradients = [one.grad for one in self._model.trainable.values() if one.grad is not None]
        clip(self._plan.clipping, gradients)
        with self._module.guard("the optimizer"):
            self._optimizer.step()
        self._forget_gradients()
        self._state.apply(changes, rows)

    def learning_rate(self) -> float:
        """The rate of the latest update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def digest(self) -> bytes:
        """16 bytes of all parameters: a hash of two sums of each."""
        found = hashlib.blake2b(digest_size=16)
        for array in arrays_of([*self._model.trainable.values(), *self._model.state.values()], self._model.device):
            found.update(bits_of(array))
        return found.digest()

    def state(self) -> ReplicaState:
        """The present state."""
        slots = self._slots
        return ReplicaState(self.version, self._model.values(), slots.values(), slots.extra(), slots.steps())

    def load(self, state: ReplicaState) -> None:
        """Takes over a state, of another member or of a checkpoint.

        Raises:
            DataError: it is of another model or optimizer.
        """
        check_same_model(self._layout.dense, state.values)
        self._slots.assign(state.slots, state.steps, state.extra)
        self._model.assign(state.values)
        self.version = state.version

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""
        return self._forward.predict(features, None)

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> torch.Tensor:
        """The loss of predictions without regularisation."""
        return self._forward.evaluation_loss(labels, predictions)

    def _measured(self, close: float) -> TorchDenominators:
        """Sees by the first records what denominator the loss has; all members see the same."""
        device = self._model.device

        def outputs(few: Minibatch) -> Tensors:
            return self._forward.try_out(few.features, None)

        def measure(first: Minibatch) -> TorchDenominators:
            with training_step(self._module, [first]):
                made = self._forward.denominators(first, self._source.first, outputs, close, whole=True)
                self._forward.require_straight_backward(first.features, place(first.labels, device), None)
                return made

        with self._randomness.seeded(0):
            return on_first_rows(self._source.first, measure)

    def _forward_of(self, features: Tensors) -> ForwardPass:
        if self._fuses:
            return self._compiled
        shapes = [tuple(leaf.shape) for leaf in leaves(features)]
        return self._compiled if shapes == self._compiled_shape else self._forward

    def _find_changing(self, sample: Tensors) -> list[str]:
        """The tensors of the state that a training step may change: small buffers, and what the sample changes.

        Infinite numbers that the sample leaves as they are mask something, and would have no rule.
        """
        merging, net = self._model.merging, self._model.net
        untrained = {name for name, _ in net.named_parameters()}
        tensors = merging.tensors
        try:
            with self._randomness.seeded(0):
                changed = changing_state(self._model, sample)
        except Exception:
            # A layer that needs more records than the sample has: then all may change.
            changed = set(tensors)
        return [
            name
            for name, old in tensors.items()
            if name in changed or (name not in untrained and old.numel() <= _SMALL and bool(old.isfinite().all()))
        ]
