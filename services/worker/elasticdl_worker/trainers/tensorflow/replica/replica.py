"""A Keras model in one member of a group: what ``elasticdl_worker.group`` asks of a replica."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import cast

import numpy as np
import structlog

from elasticdl.data import Shard
from elasticdl_core.errors import DataError
from elasticdl_core.skips import Skips
from elasticdl_core.task import Task
from elasticdl_worker.device import device_turn, own_turn
from elasticdl_worker.group.replica import (
    HOST_MEMORY,
    Contribution,
    Flat,
    Measure,
    Memory,
    MicrobatchData,
    ModelLayout,
    ReplicaState,
    copied,
)
from elasticdl_worker.trainers.framework import Metrics, Outputs, Preparation
from elasticdl_worker.trainers.learning_rates import checked_rate
from elasticdl_worker.trainers.loss_denominators import all_masked, at_places, on_first_rows
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.not_finite import NanPolicy
from elasticdl_worker.trainers.replica_rules import (
    bits_of,
    check_same_model,
    describe_bad_parts,
    describe_not_finite,
    reading_seed,
)
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.input.source import TypedSource
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.model.optimizers import TranslatedOptimizer, build_optimizer, with_rate
from elasticdl_worker.trainers.tensorflow.model.slots import OptimizerSlots
from elasticdl_worker.trainers.tensorflow.replica.randomness import SeededDraws
from elasticdl_worker.trainers.tensorflow.replica.state_rules import learn_rules
from elasticdl_worker.trainers.tensorflow.replica.steps import ComputeResult, GroupSteps
from elasticdl_worker.trainers.tensorflow.step.denominators import KerasDenominators
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.trainers.tensorflow.step.straight_backward import require_straight_backward
from elasticdl_worker.trainers.tensorflow.types import Features, KerasOptimizer, Labels, Predictions, Tensor
from elasticdl_worker.trainers.training_step import training_step

_ALONE_STEPS = 100
"""After so many of them alone, steps are made in one go: tracing that takes as long as tracing them at first did."""
_OF_LOSS = 2
"""Numbers of a contribution: the denominator of its loss, and whether it is NaN for having none."""
_log = structlog.get_logger(__name__)


class KerasReplica:
    """The whole model of one member.

    Args:
        preparation: of the job.
        model: the model, all of it in this process.
        programs: of the model.
        optimizer: the user's.
        translated: what became of it in the words of parameter servers, for checkpoints and for its schedule.
        metrics: what is shown of training microbatches; None if that is nothing.

    Attributes:
        version: updates that were applied.
        model: the model.
    """

    def __init__(
        self,
        preparation: Preparation,
        model: PreparedModel,
        programs: Programs,
        optimizer: KerasOptimizer,
        translated: TranslatedOptimizer,
        metrics: Metrics | None = None,
    ) -> None:
        spec = preparation.spec
        self.version = 0
        self.model = self._model = model
        self._programs = programs
        self._module = preparation.module
        self._source = cast(TypedSource, preparation.source)
        self._metrics = metrics
        self._nan = NanPolicy(spec.on_nan)
        self._eager = spec.eager
        self._seed = spec.seed
        self._translated = translated
        self._optimizer = optimizer
        if translated.learning_rate is not None:
            self._optimizer = with_rate(optimizer, float(translated.spec.params["learning_rate"]))
        trained = dict(zip(model.trainable, model.keras_model.trainable_variables, strict=True))
        build_optimizer(self._optimizer, list(trained.values()))
        self._slots = OptimizerSlots(self._optimizer, trained)
        self._denominators = self._measured() if spec.microbatches_per_step > 1 else None
        with training_step(self._module):
            self._steps = GroupSteps(
                model,
                programs,
                self._source.labels_spec,
                self._optimizer,
                eager=spec.eager,
                keeps_predictions=metrics is not None or self._denominators is not None,
                microbatches=spec.microbatches_per_step,
                learn=partial(learn_rules, model, programs, self._source),
                denominators=self._denominators,
            )
        if self._denominators is not None:
            if self._denominators.note_added(model.keras_model):
                at_places(self._source.first, self._require_alike_terms)
            if self._steps.has_own_gradients:
                on_first_rows(self._source.first, self._require_straight_backward)
        self._rate = float(translated.spec.params["learning_rate"])
        self._draws = SeededDraws(self._steps.generators)
        self._layout = ModelLayout(
            model.dense_specs(optimizer),
            translated.spec,
            self._slots.names,
            frozenset(model.looked_up()),
            model.layers,
            tuple(model.registry.closed),
        )
        self._forward: Callable[[Features], Predictions] | None = None
        self._all_values: CompiledFunction[list[Tensor]] | None = None
        self._given: tuple[Sequence[Flat], list[Tensor]] = ((), [])
        self._made: list[Flat] | None = None
        self._alone = 0
        # Where minibatches that are not finite are left out, they are looked at before the update. In a device's turn
        # it is one thing at a time.
        self._in_one_go = not (self._eager or self._nan.skips or own_turn() is not None)
        self._compares = not spec.fuses
        self._threads: ThreadPoolExecutor | None = None

    @property
    def memory(self) -> Memory:
        """The host's: TensorFlow and the collectives share no other."""
        return HOST_MEMORY

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each array of a contribution."""
        lengths, buckets = self._steps.lengths, len(self._steps.buckets.lengths)
        if self._denominators is None:
            return lengths
        return [*lengths[:buckets], sum(lengths[buckets:]) + _OF_LOSS]

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
        seed = reading_seed(self._seed, task, start, end)
        batches = list(self._source.seeded_minibatches(shard, task.reading, seed))
        intake = self._source.intake
        if len(batches) > 1:
            raise DataError(
                f"feed made {intake.fed} rows of the {end - start} records of a microbatch",
                fix="let feed give at most as many rows as there are records, or use parameter servers",
            )
        return MicrobatchData(intake.fed, intake.skips, batches[0] if batches else None)

    def compute(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Runs the model forward and backward on one microbatch, at the present parameters."""
        self._draws.seed(step, microbatch)
        try:
            computed = self._run(data, microbatch)
        except BaseException:
            self._steps.restore()
            raise
        given = self._contribution(step, data, computed, epoch)
        if self._denominators is None:
            self._given = (given.arrays, computed.arrays)
        return given

    @property
    def about_to_compile(self) -> bool:
        """Whether the next ``update`` is the first to be made in one go."""
        return self._in_one_go and self._alone == _ALONE_STEPS

    def update(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Computes as ``compute`` does; after some time alone, the update is made along with it."""
        self._alone += 1
        if not self._in_one_go or self._alone <= _ALONE_STEPS:
            return self.compute(step, microbatch, data, epoch)
        if self._compares:
            self._compares = False
            return self._update_both_ways(step, microbatch, data, epoch)
        return self._update(step, microbatch, data, epoch)

    def _update_both_ways(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """TensorFlow optimizes a function as a whole: what it makes of both parts must have the bits of each."""
        begin = copied(self.state())
        given = self.compute(step, microbatch, data, epoch)
        self.apply(given.arrays, given.rows, epoch)
        wanted = copied(self.state())
        self.load(begin)
        made = self._update(step, microbatch, data, epoch)
        self._in_one_go = _bits(self.state()) == _bits(wanted)
        if self._in_one_go:
            _log.info("updates are made in one go", version=begin.version)
        else:
            _log.info("updates are not made in one go", reason="that would give other bits", version=self.version)
            self.load(wanted)
            self.version = begin.version  # `apply` counts it
        return made

    def _update(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        self._draws.seed(step, microbatch)
        self._set_rate(epoch)
        batch, rows = data.content, data.fed
        with self._guarded(batch):
            made = self._steps.update(
                batch.features, batch.labels, tf.constant(rows, tf.float32), tf.constant(microbatch)
            )
        loss, buckets = float(made.loss), self._steps.buckets
        what = describe_bad_parts(loss, made.finite.numpy().tolist(), len(buckets.lengths), buckets)
        if what:
            self._nan.handle(what, batch.where, rows, self.version)
        self._made = []
        return Contribution(rows, self._made, loss, Skips(), self._measure(batch, made.predictions, rows, epoch))

    def most_at_once(self, members: int) -> int:
        """As many as there are cores for, if none of them changes a variable, be it for a moment."""
        if self._eager or not self._steps.is_pure:
            return 1
        threads = max(1, tf.config.threading.get_intra_op_parallelism_threads())
        return max(1, len(os.sched_getaffinity(0)) // (threads * members))

    def compute_at_once(
        self, step: int, microbatches: Sequence[tuple[int, MicrobatchData]], epoch: int
    ) -> list[Contribution]:
        """Computes each in a thread of its own: an operation lends its threads to one as to many."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="microbatch")
        (number, first), *others = microbatches
        running = [self._threads.submit(self._run, data, other) for other, data in others]
        try:
            computed = [self._run(first, number), *(one.result() for one in running)]
        finally:
            wait(running)
        pairs = zip(microbatches, computed, strict=True)
        return [self._contribution(step, data, one, epoch) for (_, data), one in pairs]

    def _run(self, data: MicrobatchData, microbatch: int) -> ComputeResult:
        batch = data.content
        with self._guarded(batch):
            return self._steps.compute(
                batch.features, batch.labels, tf.constant(data.fed, tf.float32), tf.constant(microbatch)
            )

    def _contribution(self, step: int, data: MicrobatchData, computed: ComputeResult, epoch: int) -> Contribution:
        batch, rows, loss = data.content, data.fed, float(computed.loss)
        arrays = [_view(array) for array in computed.arrays]
        denominator = None
        if self._denominators is not None:
            assert computed.measured is not None and computed.predictions is not None
            weight = self._denominators.of(computed.measured, rows, batch.labels, computed.predictions)
            void = not weight and not math.isfinite(loss)
            if not weight and not (void and self._nan.skips):
                loss = 0.0  # all rows are masked, and the loss of the update goes by other parts
            arrays = self._weighed(arrays, weight / rows, [weight, float(void)])
            denominator = 0.0 if self._denominators.adds else weight
        what = describe_not_finite(loss, arrays, len(self._steps.buckets.lengths), self._steps.buckets)
        if what:
            return Contribution(0, (), loss, self._nan.handle(what, batch.where, rows, self.version))
        self._nan.reset()
        measure = self._measure(batch, computed.predictions, rows, epoch)
        return Contribution(rows, arrays, loss, Skips(), measure, denominator=denominator)

    def _weighed(self, arrays: list[Flat], factor: float, of_loss: list[float]) -> list[Flat]:
        """Arrays whose gradients are times the rows, times a factor, and what of the loss is to be summed."""
        buckets, state = (arrays[: len(self._steps.buckets.lengths)], arrays[len(self._steps.buckets.lengths) :])
        if not factor:
            buckets = [np.zeros_like(one) for one in buckets]
        elif factor != 1.0:
            buckets = [one * np.float32(factor) for one in buckets]
        return [*buckets, np.concatenate([*state, np.array(of_loss, np.float32)])]

    def _measured(self) -> KerasDenominators:
        """Sees by the first records what denominator the loss has; all members see the same."""
        with training_step(self._module):
            return self._programs.find_denominators(self._source.first)[0]

    def _require_alike_terms(self, first: Minibatch) -> None:
        assert self._denominators is not None
        with training_step(self._module, [first]):
            self._programs.require_alike_terms(first, self._denominators)

    def _require_straight_backward(self, first: Minibatch) -> None:
        held = [*self._steps.generators, *map(raw_variable, self._model.keras_model.variables)]
        with training_step(self._module, [first]):
            require_straight_backward(
                lambda: self._programs.compute(first.features, first.labels, None)[0], self._model.trainable, held
            )

    @contextlib.contextmanager
    def _guarded(self, batch: Minibatch) -> Iterator[None]:
        with training_step(self._module, [batch]), self._programs.explaining(batch.features):
            yield

    def _measure(self, batch: Minibatch, predictions: Predictions | None, rows: int, epoch: int) -> Measure | None:
        metrics = self._metrics
        if metrics is None or predictions is None:
            return None
        return lambda due: metrics.of_epoch(epoch, batch.labels, predictions, rows, due=due)

    def apply(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        """Makes one update by the loss of all rows."""
        made, self._made = self._made, None
        if made is not None and sums is made:
            self._steps.remember()
        else:
            self._apply(sums, rows, epoch)
        self.version += 1

    def _apply(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        self._set_rate(epoch)
        given, tensors = self._given
        self._given = ((), [])
        denominator = float(rows)
        if self._denominators is not None:
            *buckets, rest = sums
            denominator, void = rest[-_OF_LOSS:].tolist()
            if void and not denominator:
                raise all_masked()
            # Without a denominator all gradients are 0.
            denominator = 1.0 if self._denominators.adds else denominator or 1.0
            sums = [*buckets, *([rest[:-_OF_LOSS]] if len(rest) > _OF_LOSS else [])]
        if sums is not given:  # who is alone applies what it computed
            tensors = [tf.convert_to_tensor(total) for total in sums]
        with device_turn(tf.test.experimental.sync_devices):
            with self._module.guard("the optimizer"):
                self._steps.apply(tensors, tf.constant(rows, tf.float32), tf.constant(denominator, tf.float32))
            self._steps.remember()

    def _set_rate(self, epoch: int) -> None:
        schedule, name = self._translated.learning_rate, self._translated.spec.name
        if schedule is not None:
            self._rate = checked_rate(schedule(self.version, epoch), self.version, name)
            self._optimizer.learning_rate = self._rate

    def learning_rate(self) -> float:
        """The rate of the latest update."""
        return self._rate

    def digest(self) -> bytes:
        """16 bytes of all parameters: a hash of two sums of each."""
        found = hashlib.blake2b(digest_size=16)
        if self._all_values is None:
            variables = [*self._model.trainable.values(), *self._model.state.values()]
            self._all_values = CompiledFunction(lambda: [tf.identity(variable) for variable in variables], ())
        for value in self._all_values():
            found.update(bits_of(np.asarray(memoryview(value))))
        return found.digest()

    def state(self) -> ReplicaState:
        """The present state."""
        slots = self._slots
        return ReplicaState(self.version, self._model.values(), slots.values(), steps=slots.steps())

    def load(self, state: ReplicaState) -> None:
        """Takes over a state, of another member or of a checkpoint.

        Raises:
            DataError: it is of another model or optimizer.
        """
        check_same_model(self._layout.dense, state.values)
        self._slots.assign(state.slots, state.steps.values())
        self._model.assign(state.values)
        self._steps.remember()
        self.version = state.version

    def predict(self, features: Features) -> Predictions:
        """The model's outputs, in inference mode."""
        if self._forward is None:

            def forward(features: Features) -> Predictions:
                return self._programs.infer(features, None)

            self._forward = forward if self._eager else CompiledFunction(forward, (self._model.features_spec,))
        with self._programs.explaining(features):
            return self._forward(features)

    def evaluation_loss(self, labels: Labels, predictions: Predictions) -> Tensor:
        """The loss of predictions without regularisation."""
        return self._programs.evaluation_loss(labels, predictions)


def _bits(state: ReplicaState) -> dict[str, list[bytes]]:
    """All that training goes on from, but for the number of updates."""
    return {
        name: [value.tobytes(), *(slot.tobytes() for slot in state.slots.get(name, ()))]
        for name, value in state.values.items()
    }


def _view(tensor: Tensor) -> Flat:
    return np.asarray(memoryview(tensor), np.float32)
