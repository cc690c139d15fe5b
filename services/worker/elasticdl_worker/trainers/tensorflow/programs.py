"""The compiled functions of a model: which ids, gradients, predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.layers import lookup
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_worker.trainers.tensorflow.compiled import Compiled
from elasticdl_worker.trainers.tensorflow.embeddings import ROWS_NAME, ZEROS_NAME, CollectScope, RowsScope
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, tf
from elasticdl_worker.trainers.tensorflow.model import PreparedModel, call_model
from elasticdl_worker.trainers.tensorflow.optimizers import Clipping
from elasticdl_worker.trainers.tensorflow.step_choice import StepChoice
from elasticdl_worker.trainers.tensorflow.xla import ChosenStep, XlaStep


@dataclass(frozen=True)
class Lookups:
    """The rows that a minibatch needs.

    Attributes:
        unique: for each table, its ids without duplicates, int64.
        inverse: for each table and each of its lookups, an int32 tensor in the ids' shape that indexes ``unique``.
    """

    unique: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    inverse: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """What one minibatch gave.

    Attributes:
        loss: the loss, with regularisation.
        dense: gradients of the trainable variables that the loss depends on, by name.
        rows: gradients of the rows of each table, ``[unique ids, dim]``.
        state: by how much the other variables changed, by name.
    """

    loss: float
    dense: dict[str, NDArray[Any]]
    rows: dict[str, NDArray[np.float32]]
    state: dict[str, NDArray[Any]]


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
    """

    def __init__(
        self,
        model: PreparedModel,
        loss: Callable[[Any, Any], Any] | None = None,
        labels_spec: Any = None,
        clipping: Clipping | None = None,
        *,
        eager: bool = False,
        choice: StepChoice | None = None,
        minibatch_size: int = 0,
    ) -> None:
        self.model = model
        self._clipping = clipping or Clipping()
        self._labels_spec = labels_spec
        self._eager = eager
        self._choice = choice
        self._minibatch_size = minibatch_size
        # As in Keras: version 2 translates control flow in a loss (AutoGraph), version 3 does not.
        self._loss = tf.function(loss) if loss is not None and is_legacy() and not eager else loss
        self._collectors: dict[bool, Callable[[Any], list[Any]]] = {}
        self._tables: dict[bool, dict[str, int]] = {}
        self._step: Callable[..., Any] | None = None
        self._forwards: dict[bool, Callable[..., Any]] = {}
        self._gradient_names: list[str] = []
        self._row_names: list[str] = []

    def collect(self, features: Any, *, training: bool) -> Lookups:
        """Finds the rows that a minibatch needs.

        Raises:
            DataError: an id outside the range of a closed table.
            UserCodeError: ids that depend on rows.
        """
        if not self.model.tables:
            return Lookups()
        if training not in self._collectors:
            self._collectors[training] = self._make_collector(training)
        outputs = iter(self._collectors[training](features))
        found = Lookups()
        for table, calls in self._tables[training].items():
            found.unique[table] = np.asarray(next(outputs))
            found.inverse[table] = [next(outputs) for _ in range(calls)]
            self._check_range(table, found.unique[table])
        return found

    def prepare_collect(self, *, training: bool) -> None:
        """Traces the program of ``collect``, so that another thread can run it."""
        if not self._eager and training not in self._collectors:
            self._collectors[training] = self._make_collector(training)

    def gradients(self, features: Any, labels: Any, rows: Mapping[str, Any], lookups: Lookups) -> StepResult:
        """Runs the model forward and backward.

        Args:
            features: a minibatch of features.
            labels: its labels.
            rows: for each table float32 ``[unique ids, dim]``.
            lookups: what ``collect`` gave for the same features.
        """
        if self._step is None:
            self._step = self._make_step(lookups)
        loss, dense, row_gradients, state = self._step(features, labels, rows, lookups.inverse)
        changes = {name: _view(change) for name, change in zip(self.model.state, state, strict=True)}
        return StepResult(
            loss=float(loss),
            dense={name: _view(g) for name, g in zip(self._gradient_names, dense, strict=True)},
            # What comes after the rows is padding.
            rows={name: _view(g)[: len(rows[name])] for name, g in zip(self._row_names, row_gradients, strict=True)},
            state={name: change for name, change in changes.items() if change.any()},
        )

    def forward(self, features: Any, rows: Mapping[str, Any], lookups: Lookups) -> Any:
        """The model's outputs for a minibatch, in inference mode, as tensors."""
        if False not in self._forwards:
            self._forwards[False] = self._make_forward(lookups)
        return self._forwards[False](features, _tensors(rows), lookups.inverse)

    def compute(self, features: Any, labels: Any, scope: lookup.Scope | None) -> tuple[Any, Any]:
        """Loss and predictions in training mode, to be called under a tape.

        Raises:
            UserCodeError: there is no loss function.
        """
        predictions = self.call(features, scope, training=True)
        return self.loss_of(labels, predictions), predictions

    def call(self, features: Any, scope: lookup.Scope | None, *, training: bool) -> Any:
        """Calls the model."""
        if scope is None:
            return call_model(self.model.keras_model, features, training=training)
        with lookup.looking_up(scope):
            return call_model(self.model.keras_model, features, training=training)

    def loss_of(self, labels: Any, predictions: Any, *, regularised: bool = True) -> Any:
        """The loss of predictions as a float32 scalar; the mean if the user's function gives one for each record."""
        if self._loss is None:
            raise UserCodeError("the model module has no loss", fix="add `def loss(labels, predictions)`")
        loss = tf.cast(tf.reduce_mean(self._loss(labels, predictions)), tf.float32)
        if regularised and (extra := self.model.keras_model.losses):
            loss += tf.add_n([tf.cast(value, tf.float32) for value in extra])
        return loss

    def _check_range(self, table: str, ids: NDArray[np.int64]) -> None:
        limit = self.model.tables[table].input_dim
        if limit is None or not ids.size:
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= limit:
            raise DataError(
                f"embedding {table}: the id {low if low < 0 else high} is outside [0, {limit})",
                fix="raise the layer's input_dim, or map the ids in feed; elasticdl.layers.Embedding takes any id",
            )

    def _make_collector(self, training: bool) -> Callable[[Any], list[Any]]:
        if self._eager:
            return lambda features: self._collect_now(features, training)
        flat = tf.nest.flatten(self.model.features_spec, expand_composites=True)

        def trace(*tensors: Any) -> list[Any]:
            features = tf.nest.pack_sequence_as(self.model.features_spec, list(tensors), expand_composites=True)
            return self._collect_now(features, training)

        whole = tf.compat.v1.wrap_function(trace, [tf.TensorSpec(s.shape, s.dtype) for s in flat])
        feeds = whole.inputs[: len(flat)]
        # Only what the ids depend on is kept: no layer runs, no moving average is touched.
        pruned = whole.prune(feeds, whole.outputs)
        if any(ZEROS_NAME in operation.name for operation in pruned.graph.get_operations()):
            raise UserCodeError(
                "the ids of an embedding depend on the rows of another one",
                fix="compute ids from the features alone, or raise --embedding_threshold_bytes",
            )

        def run(features: Any) -> list[Any]:
            return list(pruned(*tf.nest.flatten(features, expand_composites=True)))

        return run

    def _collect_now(self, features: Any, training: bool) -> list[Any]:
        scope = CollectScope()
        self.call(features, scope, training=training and not self._eager)
        self._tables[training] = {table: len(calls) for table, calls in scope.ids.items()}
        outputs: list[Any] = []
        for calls in scope.ids.values():
            flat = tf.concat([tf.reshape(ids, [-1]) for ids in calls], 0)
            unique, index = tf.unique(flat, out_idx=tf.int32)
            parts = tf.split(index, [tf.size(ids) for ids in calls], num=len(calls))
            outputs.append(unique)
            outputs += [
                tf.ensure_shape(tf.reshape(part, tf.shape(ids)), ids.shape)
                for part, ids in zip(parts, calls, strict=True)
            ]
        return outputs

    def _lookup_signature(self, lookups: Lookups) -> tuple[Any, Any]:
        rows = {table: tf.TensorSpec([None, self.model.tables[table].dim], tf.float32) for table in lookups.unique}
        inverse = {
            table: [tf.TensorSpec([None] * len(index.shape), tf.int32) for index in calls]
            for table, calls in lookups.inverse.items()
        }
        return rows, inverse

    def _make_step(self, lookups: Lookups) -> Callable[..., Any]:
        if self._eager:
            return lambda features, labels, rows, inverse: self._step_now(features, labels, _tensors(rows), inverse)
        rows, inverse = self._lookup_signature(lookups)
        batch = (self.model.features_spec, self._labels_spec)
        plain = Compiled(self._step_now, (*batch, rows, inverse))
        if self._choice is None or self._choice.mode == "off":
            return lambda features, labels, rows, inverse: plain(features, labels, _tensors(rows), inverse)
        return ChosenStep(plain, XlaStep(self._step_now, batch, self._minibatch_size), self._choice)

    def _step_now(self, features: Any, labels: Any, rows: dict[str, Any], inverse: dict[str, Any]) -> Any:
        before = [tf.identity(variable) for variable in self.model.state.values()]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss, _ = self.compute(features, labels, RowsScope(rows, inverse) if rows else None)
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
        after = [variable - old for variable, old in zip(self.model.state.values(), before, strict=True)]
        return (
            loss,
            [by_name[name] for name in self._gradient_names],
            [by_name[name] for name in self._row_names],
            after,
        )

    def _make_forward(self, lookups: Lookups) -> Callable[..., Any]:
        def forward(features: Any, rows: dict[str, Any], inverse: dict[str, Any]) -> Any:
            return self.call(features, RowsScope(rows, inverse) if rows else None, training=False)

        if self._eager:
            return forward
        rows, inverse = self._lookup_signature(lookups)
        return Compiled(forward, (self.model.features_spec, rows, inverse))


def _merged(gradient: Any, source: Any) -> Any:
    """A gradient as a dense tensor; the parts of rows that occur more than once are summed."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    count = tf.shape(source)[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, count, name=ROWS_NAME)


def _tensors(rows: Mapping[str, Any]) -> dict[str, Any]:
    return {table: tf.convert_to_tensor(values) for table, values in rows.items()}


def _view(tensor: Any) -> NDArray[Any]:
    """A tensor's memory as a read-only array, without a copy."""
    return np.asarray(memoryview(tensor))
