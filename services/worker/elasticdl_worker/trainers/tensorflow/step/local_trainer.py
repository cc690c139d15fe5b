"""Trains a model in one process: embeddings in the graph, the user's own Keras optimizer, no parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar, cast

from elasticdl.callbacks import Callback
from elasticdl_worker.trainers.framework import LearningRate, LocalStep, Lookups, Outputs
from elasticdl_worker.trainers.learning_rates import checked_rate
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.not_finite import describe_bad_gradient
from elasticdl_worker.trainers.tensorflow.compiled import KerasMasks
from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.model.contract import check_optimizer, optimizer_name
from elasticdl_worker.trainers.tensorflow.model.embeddings import RowsScope
from elasticdl_worker.trainers.tensorflow.model.optimizers import (
    Guard,
    build_optimizer,
    learning_rate_of,
    rebuild_optimizer,
    with_rate,
)
from elasticdl_worker.trainers.tensorflow.step.denominators import KerasDenominators
from elasticdl_worker.trainers.tensorflow.step.local_rounds import KerasLocalRound, RoundPart
from elasticdl_worker.trainers.tensorflow.step.local_tables import LocalTables
from elasticdl_worker.trainers.tensorflow.step.programs import Programs, sum_duplicates
from elasticdl_worker.trainers.tensorflow.step.touched_rows import TouchedRows
from elasticdl_worker.trainers.tensorflow.types import (
    Features,
    Inverse,
    KerasOptimizer,
    KerasVariable,
    Labels,
    NestedSpec,
    Predictions,
    Tensor,
)

_Step = Callable[[Features, Labels, Inverse], tuple[Tensor, Tensor, Predictions]]
_Part = Callable[[Features, Labels, Inverse], RoundPart]
_Forward = Callable[[Features, Inverse], Predictions]
F = TypeVar("F", bound=Callable[..., object])


class LocalTrainer:
    """Steps of plain Keras training.

    Args:
        model: the prepared model.
        programs: its functions.
        optimizer: the user's Keras optimizer; None where nothing is trained.
        callbacks: the user's callbacks; a ``LearningRateScheduler`` sets the rate by step.
        labels_spec: nested ``tf.TypeSpec`` of labels; None where nothing is trained.
        guard: what the user's schedule runs in.
        eager: run without compilation.
        touched_rows: whether an update leaves the rows of tables alone that the minibatch does not have.

    Attributes:
        steps: number of updates so far.
        start_version: the model version that these began at: that of the checkpoint, or 0.
        epoch: which epoch the next minibatch is of, for schedules that go by epoch.
        tables: rows of the tables that have no layer weights.
    """

    def __init__(
        self,
        model: PreparedModel,
        programs: Programs,
        optimizer: KerasOptimizer | None = None,
        callbacks: Sequence[Callback] = (),
        labels_spec: NestedSpec | None = None,
        guard: Guard = nullcontext,
        *,
        eager: bool = False,
        touched_rows: bool = False,
    ) -> None:
        self.model = model
        self.tables = LocalTables(model)
        self.steps = 0
        self.start_version = 0
        self.epoch = 0
        self._programs = programs
        self._labels_spec = labels_spec
        self._eager = eager
        self._schedule: LearningRate | None = None
        self._optimizer: KerasOptimizer | None = None if optimizer is None else check_optimizer(optimizer)
        self._sources: list[str] = []
        self._touches = touched_rows
        self._touched: TouchedRows | None = None
        self._step: _Step | None = None
        self._part: _Part | None = None
        self._round = KerasLocalRound(model.merging)
        self._used: list[int] = []
        self._keeps: dict[str, float] = {}
        self._forward: _Forward | None = None
        if self._optimizer is not None:
            model.constraints()
            self._schedule = learning_rate_of(self._optimizer, callbacks, guard)
            if self._schedule is not None:
                self._optimizer = with_rate(self._optimizer, self._schedule(0, 0))
            build_optimizer(self._optimizer, self._trained())
            self._watch_rows(self._optimizer)

    def train(self, batch: Minibatch, *, closes: bool = True) -> LocalStep:
        """Updates the model by a minibatch, unless its loss or a gradient is not finite: then it changes nothing.

        Args:
            batch: the minibatch.
            closes: whether it is the last one of an update.
        """
        lookups = self._programs.collect(batch.features, training=True)
        indices, grown = self.tables.place(lookups)
        if grown:
            self.rebuild()
        if self._schedule is not None and self._optimizer is not None:
            name = optimizer_name(self._optimizer).lower()
            self._optimizer.learning_rate = checked_rate(self._schedule(self.version, self.epoch), self.version, name)
        if self._programs.denominators is not None:
            return self._train_in_round(batch, indices, self._programs.denominators, closes=closes)
        if self._step is None:
            self._step = self._compiled(self._step_now, indices, labels=True)
        with self._programs.explaining(batch.features):
            loss, bad, predictions = self._step(batch.features, batch.labels, indices)
        number = int(bad)
        if number < 0:
            self.steps += 1
            return LocalStep(float(loss), predictions=predictions)
        return self._not_finite(number, float(loss))

    def _train_in_round(
        self, batch: Minibatch, indices: Inverse, denominators: KerasDenominators, *, closes: bool
    ) -> LocalStep:
        if self._part is None:
            self._part = self._compiled(self._part_now, indices, labels=True)
        before = self.model.merging.read_values()
        with self._programs.explaining(batch.features):
            part = self._part(batch.features, batch.labels, indices)
        loss, number = float(part.loss), int(part.bad)
        weight = denominators.of(part.measured, batch.records, batch.labels, part.predictions)
        if number >= 0 and weight:
            for variable, value in zip(self.model.merging.variables.values(), before, strict=True):
                variable.assign(value)
            return self._not_finite(number, loss)
        self._round.add(batch.records, weight, part, before, self._keeps)
        if closes:
            self.close_round()
        return LocalStep(loss if weight else 0.0, predictions=part.predictions)

    def close_round(self) -> None:
        """Makes the update of the minibatches since the last one."""
        if not self._round.is_open:
            return
        denominators, trained = self._programs.denominators, self._trained()
        assert denominators is not None
        variables = [trained[at] for at in self._used]
        gradients = self._round.close([raw_variable(one) for one in variables], adds=denominators.adds)
        self._apply(list(zip(gradients, variables, strict=True)))
        self.steps += 1

    def _not_finite(self, number: int, loss: float) -> LocalStep:
        what = f"the loss is {loss}" if not number else describe_bad_gradient(self._sources[number - 1], loss)
        return LocalStep(loss, what)

    @property
    def optimizer(self) -> KerasOptimizer | None:
        """The optimizer that trains, built; None where nothing is trained."""
        return self._optimizer

    @property
    def version(self) -> int:
        """The model version: the number of updates that are in the model."""
        return self.start_version + self.steps

    @property
    def learning_rate(self) -> float | None:
        """The rate of the latest step; None where nothing is trained."""
        return None if self._optimizer is None else float(tf.convert_to_tensor(self._optimizer.learning_rate))

    def predict(self, features: Features) -> Predictions:
        """The model's outputs, in inference mode."""
        lookups: Lookups = self._programs.collect(features, training=False)
        indices, grown = self.tables.place(lookups)
        if grown:
            self.rebuild()
        if self._forward is None:
            self._forward = self._compiled(self._forward_now, indices, labels=False)
        with self._programs.explaining(features):
            return self._forward(features, indices)

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self.model.outputs

    def evaluation_loss(self, labels: Labels, predictions: Predictions) -> Tensor:
        """The loss of predictions, without regularisation."""
        return self._programs.evaluation_loss(labels, predictions)

    def _compiled(self, function: F, indices: Inverse, *, labels: bool) -> F:
        if self._eager:
            return function
        inverse = {
            table: [tf.TensorSpec([None] * len(index.shape), tf.int32) for index in calls]
            for table, calls in indices.items()
        }
        middle = (self._labels_spec,) if labels else ()
        masks = KerasMasks(function)
        signature = (self.model.features_spec, *middle, inverse)
        compiled = tf.function(masks.take, input_signature=signature, autograph=False)
        return cast(F, lambda *arguments: masks.give(compiled(*arguments)))

    def _step_now(self, features: Features, labels: Labels, indices: Inverse) -> tuple[Tensor, Tensor, Predictions]:
        """Loss, which of it and the gradients is not finite (-1 for none, 0 for the loss), and predictions."""
        before = [tf.identity(variable) for variable in self.model.state.values()]
        loss, predictions, pairs = self._computed(features, labels, indices)
        finite = _finite(loss, pairs)

        def apply() -> Tensor:
            self._apply(pairs)
            return tf.constant(-1, tf.int64)

        def undo() -> Tensor:
            for variable, value in zip(self.model.state.values(), before, strict=True):
                variable.assign(value)
            return tf.argmin(tf.cast(finite, tf.int32))

        return loss, tf.cond(tf.reduce_all(finite), apply, undo), predictions

    def _part_now(self, features: Features, labels: Labels, indices: Inverse) -> RoundPart:
        """A minibatch of an update that has others as well."""
        merging, denominators = self.model.merging, self._programs.denominators
        assert denominators is not None
        before = merging.read_values()
        with merging.count_updates() as keeps:
            loss, predictions, pairs = self._computed(features, labels, indices)
            self._keeps = keeps()
        finite = _finite(loss, pairs)
        bad = tf.where(tf.reduce_all(finite), tf.constant(-1, tf.int64), tf.argmin(tf.cast(finite, tf.int32)))
        measured, (added, _) = denominators.measure(labels, predictions), merging.compute_changes(before, self._keeps)
        return RoundPart(loss, bad, predictions, [gradient for gradient, _ in pairs], measured, added)

    def _computed(
        self, features: Features, labels: Labels, indices: Inverse
    ) -> tuple[Tensor, Predictions, list[tuple[Tensor, KerasVariable]]]:
        """Loss and predictions, and the gradient of each variable that has one."""
        with tf.GradientTape() as tape:
            scope = RowsScope(self.tables.rows(), indices) if indices else None
            loss, predictions = self._programs.compute(features, labels, scope)
        trained = self._trained()
        gradients = tape.gradient(loss, [raw_variable(variable) for variable in trained])
        self._used = [at for at, gradient in enumerate(gradients) if gradient is not None]
        self._sources = [trained[at].name for at in self._used]
        return loss, predictions, [(sum_duplicates(gradients[at]), trained[at]) for at in self._used]

    def _apply(self, pairs: Sequence[tuple[Tensor, KerasVariable]]) -> None:
        optimizer = self._optimizer
        assert optimizer is not None
        with self._touched.updating(pairs) if self._touched is not None else nullcontext():
            optimizer.apply_gradients(pairs)

    def _forward_now(self, features: Features, indices: Inverse) -> Predictions:
        scope = RowsScope(self.tables.rows(), indices) if indices else None
        return self._programs.infer(features, scope)

    def _trained(self) -> list[KerasVariable]:
        trained = set(self.model.trained_tables())
        tables = [table.variable for name, table in self.tables.tables.items() if name in trained]
        return [*self.model.keras_model.trainable_variables, *tables]

    def rebuild(self) -> None:
        """Makes the optimizer and the compiled functions anew around larger tables, keeping the slots."""
        self._step = self._part = self._forward = None
        if self._optimizer is None:
            return
        old = self._optimizer
        new = rebuild_optimizer(old)
        build_optimizer(new, self._trained())
        for before, after in zip(_variables(old), _variables(new), strict=True):
            source, target = raw_variable(before), raw_variable(after)
            if source.shape == target.shape:
                target.assign(source)
            else:
                target.scatter_update(tf.IndexedSlices(source.read_value(), tf.range(source.shape[0])))
        self._optimizer = new
        self._watch_rows(new)

    def _watch_rows(self, optimizer: KerasOptimizer) -> None:
        if not self._touches:
            return
        closed = [self.model.registry.in_graph[name].weights[0] for name in self.model.registry.closed]
        tables = [*closed, *self.tables.variables]
        self._touched = TouchedRows(optimizer, self._trained(), tables) if tables else None


def _finite(loss: Tensor, pairs: Sequence[tuple[Tensor, KerasVariable]]) -> Tensor:
    values = [loss, *(g.values if isinstance(g, tf.IndexedSlices) else g for g, _ in pairs)]
    return tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def _variables(optimizer: KerasOptimizer) -> list[KerasVariable]:
    found = optimizer.variables
    return list(found() if callable(found) else found)
