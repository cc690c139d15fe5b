"""The compiled functions of a model: which ids, gradients of one or more minibatches, predictions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from elasticdl.layers import lookup
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_worker.parameters import Origin, StateChange
from elasticdl_worker.trainers.framework import Lookups, StepResult
from elasticdl_worker.trainers.loss_denominators import FlatLossError, any_rows, at_places, on_first_rows
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel, call_model
from elasticdl_worker.trainers.tensorflow.model.constraints import forbid_assignments
from elasticdl_worker.trainers.tensorflow.model.embeddings import ROWS_NAME, RangeScope, RowsScope
from elasticdl_worker.trainers.tensorflow.model.label_shapes import refuse_outer
from elasticdl_worker.trainers.tensorflow.model.optimizers import Clipping
from elasticdl_worker.trainers.tensorflow.model.untracked import refuse_untracked
from elasticdl_worker.trainers.tensorflow.step.added_losses import TermsOf, check_added, part_of
from elasticdl_worker.trainers.tensorflow.step.denominators import KerasDenominators, OfAddedAlone
from elasticdl_worker.trainers.tensorflow.step.local_updates import LocalUpdates
from elasticdl_worker.trainers.tensorflow.step.lookups import LookupCollector
from elasticdl_worker.trainers.tensorflow.step.step_choice import StepChoice
from elasticdl_worker.trainers.tensorflow.step.straight_backward import require_straight_backward, variables_kept
from elasticdl_worker.trainers.tensorflow.step.xla import ChosenStep, StepFunction, StepOutputs, XlaStep
from elasticdl_worker.trainers.tensorflow.types import (
    Array,
    Batches,
    Features,
    Inverse,
    Labels,
    LossFunction,
    NestedSpec,
    Predictions,
    RowTensors,
    Tensor,
    TypeSpec,
    Variable,
)

_Forward = Callable[[Features, RowTensors, Inverse], Predictions]


class Programs:
    """The compiled functions of a prepared model.

    Args:
        model: the model.
        loss: the user's loss function; None where there is no training.
        labels_spec: nested ``tf.TypeSpec`` of the labels; None where there are none.
        clipping: applied to the gradients.
        eager: run without compilation.
        choice: chooses between the plain step and the one of XLA; None is always plain.
        minibatch_size: number of records in a full-size minibatch; needed for a choice.
        group: minibatches that are computed in one call; the choice is for calls of so many.
        local: updates the parameters from one minibatch of a call to the next; needed if ``group`` is over 1.
        keeps_predictions: whether a step also gives the predictions of its minibatches. It computes them anyway.
    """

    def __init__(
        self,
        model: PreparedModel,
        loss: LossFunction | None = None,
        labels_spec: NestedSpec | None = None,
        clipping: Clipping | None = None,
        *,
        eager: bool = False,
        choice: StepChoice | None = None,
        minibatch_size: int = 0,
        group: int = 1,
        local: LocalUpdates | None = None,
        keeps_predictions: bool = False,
    ) -> None:
        self.model = model
        self._keeps_predictions = keeps_predictions
        self._clipping = clipping or Clipping()
        self._labels_spec = labels_spec
        self._eager = eager
        self._choice = choice
        self._minibatch_size = minibatch_size
        # As in Keras: version 2 translates control flow in a loss (AutoGraph), version 3 does not.
        self._loss = tf.function(loss) if loss is not None and is_legacy() and not eager else loss
        self._compared = False
        self._group = group
        self._local = local
        self._collector = LookupCollector(model, self.call, eager=eager)
        self._steps: dict[tuple[int, tuple[str, ...]], StepFunction] = {}
        self._forwards: dict[bool, _Forward] = {}
        self._gradient_names: list[str] = []
        self._row_names: list[str] = []
        self._keeps: dict[int, dict[str, float]] = {}
        self._denominators: KerasDenominators | None = None

    def collect(self, *batches: Features, training: bool) -> Lookups:
        """Finds the rows that minibatches need together, from the features of each.

        Raises:
            DataError: an id outside the range of a closed table.
            UserCodeError: ids that depend on rows.
        """
        return self._collector.collect(batches, training=training) if self.model.tables else Lookups()

    def prepare_collect(self, *, training: bool) -> None:
        """Traces the program of ``collect``, so that another thread can run it."""
        if self.model.tables:
            self._collector.prepare(training=training)

    def gradients(
        self, features: Features, labels: Labels, rows: Mapping[str, NDArray[np.float32]], lookups: Lookups
    ) -> StepResult:
        """Runs the model forward and backward on one minibatch, with the parameters that it has."""
        return self.steps([(features, labels)], {}, rows, lookups)

    def steps(
        self,
        batches: Batches,
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        lookups: Lookups,
    ) -> StepResult:
        """Runs the model forward and backward on minibatches, one after the other, in one compiled call.

        Each minibatch finds the parameters that the local updates of those before it made.

        Args:
            batches: features and labels of each minibatch.
            dense: the trainable parameters to begin with, by name; empty begins with those that the model has.
            rows: for each table float32 ``[unique ids, dim]``.
            lookups: what ``collect`` gave for the same features.
        """
        kind = len(batches), tuple(dense)
        if kind not in self._steps:
            self._steps[kind] = self._make_step(kind[0], kind[1], lookups)
        with self.explaining(*(features for features, _ in batches)):
            losses, found, row_gradients, (added, changed), predictions, measured = self._steps[kind](
                list(batches), dict(dense), rows, lookups.inverse
            )
        keeps = self._keeps[len(batches)]
        state = zip(self.model.state, added, _view(changed).tolist(), strict=True)
        return StepResult(
            losses=tuple(_view(losses).tolist()),
            dense={name: _view(g) for name, g in zip(self._gradient_names, found, strict=True)},
            # What comes after the rows is padding.
            rows={
                name: _rows_of(g)[: len(rows[name])] for name, g in zip(self._row_names, row_gradients, strict=True)
            },
            state={name: StateChange(keeps[name], _view(add)) for name, add, has_changed in state if has_changed},
            origin=Origin(dense, rows),
            predictions=predictions if self._keeps_predictions else (),
            denominator=None if measured is None else self._denominator(measured, batches[-1][1], predictions[-1]),
        )

    def forward(self, features: Features, rows: Mapping[str, NDArray[np.float32]], lookups: Lookups) -> Predictions:
        """The model's outputs for a minibatch, in inference mode, as tensors."""
        if False not in self._forwards:
            self._forwards[False] = self._make_forward(lookups)
        with self.explaining(features):
            return self._forwards[False](features, _tensors(rows), lookups.inverse)

    @property
    def denominators(self) -> KerasDenominators | None:
        """The denominators that ``measure_denominators`` has found; None before."""
        return self._denominators

    def measure_denominators(self, look: Callable[[int, float], Minibatch | None]) -> None:
        """Finds by the first records what denominator the loss has: rounds of several minibatches go by it.

        Args:
            look: gives so many records of the data from a place on, as part of it, or fewer.

        Raises:
            UserCodeError: no denominator makes the losses of minibatches that of the round.
        """
        made, first = self.find_denominators(look)
        lookups = self.collect(first.features, training=False)
        rows = self._any_rows(lookups)

        def loss() -> Tensor:
            scope = RowsScope(_tensors(rows), lookups.inverse) if rows else None
            return self.compute(first.features, first.labels, scope)[0]

        with self.explaining(first.features):
            require_straight_backward(loss, self.model.trainable, self._held())
        if made.note_added(self.model.keras_model):
            at_places(look, partial(self.require_alike_terms, denominators=made))
        self._denominators, self._keeps_predictions = made, True

    def find_denominators(
        self, look: Callable[[int, float], Minibatch | None]
    ) -> tuple[KerasDenominators, Minibatch]:
        """The denominators of the loss, and the records that show them, which are the same for all workers.

        Args:
            look: gives so many records of the data from a place on, as part of it, or fewer.

        Raises:
            UserCodeError: there are none.
        """

        def measure(first: Minibatch) -> tuple[KerasDenominators, Minibatch]:
            lookups = self.collect(first.features, training=False)
            rows = self._any_rows(lookups)
            with self.explaining(first.features):
                scope = RowsScope(_tensors(rows), lookups.inverse) if rows else None
                predictions = self.infer(first.features, scope)
                return KerasDenominators(self.evaluation_loss, first.labels, predictions, first.records), first

        try:
            return on_first_rows(look, measure)
        except FlatLossError as flat:
            return on_first_rows(look, partial(self._of_added_alone, flat))

    def _of_added_alone(self, flat: FlatLossError, first: Minibatch) -> tuple[KerasDenominators, Minibatch]:
        """The denominators of a loss that no output changes, where the model adds what it computes of records.

        Raises:
            FlatLossError: it adds nothing of the kind.
            UserCodeError: it adds neither means nor sums.
        """
        terms = self._terms_of(first)
        if np.array_equal(terms(0, 1, True, 1), terms(0, first.records, True, 1)):
            raise flat
        made = OfAddedAlone(self.evaluation_loss, sums=True)
        try:
            check_added(terms, first.records, sums=True, close=made.close)
        except UserCodeError:
            made = OfAddedAlone(self.evaluation_loss, sums=False)
            check_added(terms, first.records, sums=False, close=made.close)
        return made, first

    def require_alike_terms(self, first: Minibatch, denominators: KerasDenominators) -> None:
        """Refuses what the model adds to the loss of some records, if it is otherwise over records than the loss.

        Raises:
            UserCodeError: parts of an update would train another objective.
        """
        check_added(self._terms_of(first), first.records, sums=denominators.adds, close=denominators.close)

    def _terms_of(self, first: Minibatch) -> TermsOf:
        """A function that gives the values that the model adds to the loss of some of these records."""
        whole = self.collect(first.features, training=False)
        places = {table: {one: at for at, one in enumerate(ids.tolist())} for table, ids in whole.unique.items()}
        rows = self._any_rows(whole)

        def terms(start: int, end: int, training: bool, calls: int) -> NDArray[np.float64]:
            features = part_of(first.features, start, end)
            found = self.collect(features, training=False)
            own = {
                table: rows[table][[places[table][one] for one in ids.tolist()]]
                for table, ids in found.unique.items()
            }
            with variables_kept(self._held()), self.explaining(features):
                for _ in range(calls):
                    self.call(features, RowsScope(_tensors(own), found.inverse) if own else None, training=training)
                return np.array([float(tf.reduce_sum(one)) for one in self.model.keras_model.losses])

        return terms

    def _any_rows(self, lookups: Lookups) -> dict[str, NDArray[np.float32]]:
        return any_rows({table: (len(ids), self.model.tables[table].dim) for table, ids in lookups.unique.items()})

    def _held(self) -> list[Variable]:
        return [raw_variable(one) for one in self.model.keras_model.variables]

    def _denominator(self, measured: Tensor, labels: Labels, predictions: Predictions) -> Callable[[int], float]:
        denominators = self._denominators
        assert denominators is not None

        def measure(rows: int) -> float:
            found = denominators.of(measured, rows, labels, predictions)
            return math.inf if denominators.adds else found

        return measure

    @contextlib.contextmanager
    def explaining(self, *batches: Features) -> Iterator[None]:
        """A context for computing minibatches: names an id for which a layer in the graph has no row.

        Raises:
            DataError: there is one, in the words that embeddings on parameter servers have for it.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            for features in batches:
                scope = RangeScope(self.model.registry.in_graph)
                with contextlib.suppress(Exception):  # what failed may fail here too, after the ids were noted
                    self.call(features, scope, training=False)
                try:
                    scope.check()
                except DataError as found:
                    raise found from error
            raise

    def compute(self, features: Features, labels: Labels, scope: lookup.Scope | None) -> tuple[Tensor, Predictions]:
        """Loss and predictions in training mode, to be called under a tape.

        Raises:
            UserCodeError: there is no loss function, the model assigns to its trained weights, or it or the loss uses
                a variable that is none of its weights.
        """
        rows = scope.rows if isinstance(scope, RowsScope) else ()
        with refuse_untracked(self.model.keras_model, self.model.roots, rows):
            with forbid_assignments(self.model.trainable):
                predictions = self.call(features, scope, training=True)
            return self.loss_of(labels, predictions), predictions

    def call(self, features: Features, scope: lookup.Scope | None, *, training: bool) -> Predictions:
        """Calls the model."""
        if scope is None:
            return call_model(self.model.keras_model, features, training=training)
        with lookup.looking_up(scope):
            return call_model(self.model.keras_model, features, training=training)

    def infer(self, features: Features, scope: lookup.Scope | None) -> Predictions:
        """Calls the model in inference mode, and undoes what that does to its variables.

        Each minibatch is computed by the same model. Weights that are frozen are left alone: only an optimizer would
        change them.
        """
        counted = [variable for variable in self.model.state.values() if not variable.trainable]
        before = [tf.identity(variable) for variable in counted]
        predictions = self.call(features, scope, training=False)
        for variable, value in zip(counted, before, strict=True):
            variable.assign(value)
        return predictions

    def loss_of(self, labels: Labels, predictions: Predictions, *, regularised: bool = True) -> Tensor:
        """The loss of predictions as a float32 scalar; the mean if the user's function gives one for each record."""
        if self._loss is None:
            raise UserCodeError("the model module has no loss", fix="add `def loss(labels, predictions)`")
        if not self._compared:
            refuse_outer("the loss", self._loss, labels, predictions)
            self._compared = True
        loss = tf.cast(tf.reduce_mean(self._loss(labels, predictions)), tf.float32)
        if regularised and (extra := self.model.keras_model.losses):
            loss += tf.add_n([tf.cast(value, tf.float32) for value in extra])
        return loss

    def evaluation_loss(self, labels: Labels, predictions: Predictions) -> Tensor:
        """The loss of predictions without regularisation."""
        return self.loss_of(labels, predictions, regularised=False)

    def _lookup_signature(self, lookups: Lookups) -> tuple[dict[str, TypeSpec], dict[str, list[TypeSpec]]]:
        rows = {table: tf.TensorSpec([None, self.model.tables[table].dim], tf.float32) for table in lookups.unique}
        inverse = {
            table: [tf.TensorSpec([None] * len(index.shape), tf.int32) for index in calls]
            for table, calls in lookups.inverse.items()
        }
        return rows, inverse

    def _make_step(self, count: int, dense: tuple[str, ...], lookups: Lookups) -> StepFunction:
        if self._eager:
            return lambda batches, dense, rows, inverse: self._steps_now(
                batches, _tensors(dense), _tensors(rows), inverse
            )
        rows, inverse = self._lookup_signature(lookups)
        batches = [(self.model.features_spec, self._labels_spec)] * count
        values = {name: tf.TensorSpec(self.model.trainable[name].shape, tf.float32) for name in dense}
        plain = CompiledFunction(self._steps_now, (batches, values, rows, inverse))
        if self._choice is None or self._choice.mode == "off" or count != self._group:
            return lambda batches, dense, rows, inverse: plain(batches, _tensors(dense), _tensors(rows), inverse)
        return ChosenStep(plain, XlaStep(self._steps_now, (batches, values), self._minibatch_size), self._choice)

    def _steps_now(
        self, batches: Batches, dense: Mapping[str, Tensor], rows: RowTensors, inverse: Inverse
    ) -> StepOutputs:
        for name, value in dense.items():
            self.model.trainable[name].assign(value)
        state = self.model.merging
        before = state.read_values()
        losses: list[Tensor] = []
        total: dict[str, Tensor] = {}
        moved = dict(rows)
        predictions: list[Predictions] = []
        measured: Tensor | None = None
        with state.count_updates() as keeps:
            for number, (features, labels) in enumerate(batches):
                calls = {table: len(found) // len(batches) for table, found in inverse.items()}
                mine = {table: inverse[table][number * n : (number + 1) * n] for table, n in calls.items()}
                loss, found, outputs = self._step_now(features, labels, moved, mine)
                predictions.append(outputs)
                if self._denominators is not None:
                    measured = self._denominators.measure(labels, outputs)
                losses.append(loss)
                total = {name: self._decay_total(name, total[name]) + g if total else g for name, g in found.items()}
                if number + 1 < len(batches) and self._local is not None:
                    self._local.apply({name: found[name] for name in self._gradient_names})
                    moved = moved | self._local.update_rows(moved, found)
            self._keeps[len(batches)] = keeps()
        return (
            tf.stack(losses),
            [total[name] for name in self._gradient_names],
            [total[name] for name in self._row_names],
            state.compute_changes(before, self._keeps[len(batches)]),
            predictions if self._keeps_predictions else [],
            measured,
        )

    def _decay_total(self, name: str, total: Tensor) -> Tensor:
        return total if self._local is None else self._local.decay_total(name, total)

    def _step_now(
        self, features: Features, labels: Labels, rows: Mapping[str, Tensor], inverse: Inverse
    ) -> tuple[Tensor, dict[str, Tensor], Predictions]:
        """Loss, clipped gradients and predictions of one minibatch."""
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss, predictions = self.compute(features, labels, RowsScope(rows, inverse) if rows else None)
        dense, tables = self.model.trainable, [name for name in self.model.trained_tables() if name in rows]
        sources = [*dense.values(), *(rows[table] for table in tables)]
        found = tape.gradient(loss, sources)
        names = [*dense, *tables]
        used = [(name, _merged(g, s)) for name, g, s in zip(names, found, sources, strict=True) if g is not None]
        if not used:
            raise UserCodeError(
                "the loss depends on no trainable parameter",
                fix="compute the loss from the model's predictions with differentiable operations",
            )
        clipped = self._clipping.apply([gradient for _, gradient in used])
        by_name = dict(zip([name for name, _ in used], clipped, strict=True))
        self._gradient_names = [name for name in dense if name in by_name]
        self._row_names = [name for name in tables if name in by_name]
        return loss, by_name, predictions

    def _make_forward(self, lookups: Lookups) -> _Forward:
        def forward(features: Features, rows: RowTensors, inverse: Inverse) -> Predictions:
            return self.infer(features, RowsScope(rows, inverse) if rows else None)

        if self._eager:
            return forward
        rows, inverse = self._lookup_signature(lookups)
        return CompiledFunction(forward, (self.model.features_spec, rows, inverse))


def sum_duplicates(gradient: Tensor) -> Tensor:
    """A gradient in which the parts of equal ids are one: what ``_merged`` does, without the rows that have none.

    Keras 3 on TensorFlow leaves them apart, and its optimizers then square and clip each by itself.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
    return tf.IndexedSlices(values, ids, gradient.dense_shape)


def _merged(gradient: Tensor, source: Tensor) -> Tensor:
    """A gradient as a dense tensor; the parts of rows that occur more than once are summed."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    count = tf.shape(source)[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, count, name=ROWS_NAME)


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: tf.convert_to_tensor(values) for name, values in arrays.items()}


def _rows_of(tensor: Tensor) -> NDArray[np.float32]:
    return np.asarray(memoryview(tensor), np.float32)


def _view(tensor: Tensor) -> Array:
    """A tensor's memory as a read-only array, without a copy."""
    return np.asarray(memoryview(tensor))
