"""Metrics of Keras, as ``elasticdl_worker.trainers.metrics`` asks for them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.contract import Subject, find, refusal
from elasticdl_core.contract.argument_order import refuse_swapped
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.framework import LossOf, Outputs
from elasticdl_worker.trainers.metrics import (
    MetricKind,
    MetricObject,
    ModuleMetrics,
    one_array,
    require_sum,
    what_is_given,
)
from elasticdl_worker.trainers.plain_arrays import plain_array
from elasticdl_worker.trainers.tensorflow.compiled import mask_of, set_mask
from elasticdl_worker.trainers.tensorflow.framework import keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.label_shapes import align, refuse_outer
from elasticdl_worker.trainers.tensorflow.types import (
    KerasMean,
    KerasMetric,
    Labels,
    LossFunction,
    Nested,
    Predictions,
    Tensor,
)
from elasticdl_worker.user_code import ModelModule

_KERAS = ("keras.", "tf_keras.")


def make_metrics(module: ModelModule, loss: LossOf | None, outputs: Outputs = ()) -> ModuleMetrics:
    """The metrics of a module whose model is one of Keras."""
    return ModuleMetrics(KerasMetrics(), module, loss, outputs)


class KerasMetrics(MetricKind):
    """Keras' knowledge of metrics."""

    name = "keras"
    words = "a Keras metric"

    def find(self, name: str, wanted: str) -> object:
        """A Keras metric or function by its name."""
        if find(Subject.METRIC, wanted) is not None:
            raise refusal(Subject.METRIC, wanted, f"the metric {name} is {wanted!r}, which")
        try:
            return keras.metrics.get(wanted)
        except ValueError:
            raise UserCodeError(
                f"the metric {name} is {wanted!r}, which Keras does not know",
                fix="give a function (labels, predictions) -> values, or a Keras metric",
            ) from None

    def is_own(self, metric: object) -> bool:
        """Whether Keras brings the metric's class."""
        return type(metric).__module__.startswith(_KERAS)

    def adopt(self, name: str, metric: object) -> MetricObject | None:
        """A Keras metric with its state."""
        if isinstance(metric, keras.metrics.Metric):
            return _KerasObject(self, name, cast(KerasMetric, metric))
        if inspect.isclass(metric) and issubclass(metric, keras.metrics.Metric):
            raise UserCodeError(
                f"the metric {name} is the class {metric.__name__}", fix=f"give an object: {metric.__name__}()"
            )
        return None

    def align(self, labels: Labels, predictions: Predictions) -> Labels:
        """Labels ``[N]`` as ``[N, 1]`` where the predictions are ``[N, 1]``."""
        return align(labels, predictions)

    def in_order(self, what: str, function: LossOf) -> LossOf:
        """The function, whose arguments must not have each other's names."""
        refuse_swapped(what, function)
        return function

    def check_function(self, what: str, function: LossFunction, labels: Labels, predictions: Predictions) -> None:
        """Refuses a function in which each label meets the prediction of every record."""
        refuse_outer(what, function, labels, predictions)

    def cut(self, values: Nested, start: int, end: int) -> Nested | None:
        """Some of the records of nested tensors, with their masks; None if they cannot be cut."""
        return cut(values, start, end)

    def join(self, parts: Sequence[Nested]) -> Nested | None:
        """Nested tensors of several minibatches as those of one; None if they cannot be joined."""
        return join(parts)

    def count(self, values: Nested) -> int:
        """The number of values in nested tensors; of ragged ones as if all lengths were 1."""
        shapes = [value.shape for value in tf.nest.flatten(values) if hasattr(value, "shape")]
        return sum(int(np.prod([size or 1 for size in shape])) for shape in shapes)

    def numbers(self, values: object) -> NDArray[np.float64]:
        """A tensor of any type, an array or a number as an array."""
        return _array(values)


class _KerasObject:
    """A Keras metric."""

    def __init__(self, kind: MetricKind, name: str, metric: KerasMetric) -> None:
        self._kind = kind
        self._name = name
        self._metric = metric
        self._tried = kind.is_own(metric)
        self._tried_mean = False
        self._gives_one_value: bool | None = None

    def reset(self) -> None:
        """Begins anew."""
        self._metric.reset_state()

    def numbers(self) -> list[list[float]]:
        """The numbers of each variable."""
        return [np.ravel(value).astype(float).tolist() for value in self._values()]

    def rules(self) -> list[str]:
        """All are added up."""
        return ["sum"] * len(self._metric.variables)

    def result_of(self, numbers: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """The value of a state."""
        for variable, given in zip(self._metric.variables, numbers, strict=True):
            raw = raw_variable(variable)
            raw.assign(
                np.asarray(given, dtype=raw.dtype.as_numpy_dtype).reshape(tuple(cast(Iterable[int], raw.shape)))
            )
        return one_array(self._name, _array, self._metric.result())

    def update(self, labels: Labels, predictions: Predictions, records: int) -> None:
        """Takes a minibatch; a mean for which it is one value counts it once for each record.

        Keras' MeanSquaredError and its kin take the mean over the last axis, which of predictions ``[N]`` is that of
        the records: a minibatch of three would count as much as one of three hundred.
        """
        given = labels, predictions
        if not self._tried:
            self._tried = self._try(given, records)
        mean = records > 1 and isinstance(self._metric, keras.metrics.Mean)
        if not mean or self._gives_one_value is False:
            self._metric.update_state(*given)
            return
        sums = [raw_variable(variable) for variable in (_mean(self._metric).total, _mean(self._metric).count)]

        def measure(labels: Labels, predictions: Predictions) -> tuple[float, float]:
            self._metric.reset_state()
            self._metric.update_state(labels, predictions)
            return float(sums[0].numpy()), float(sums[1].numpy())

        before = [float(variable.numpy()) for variable in sums]
        total, count = measure(*given)
        self._gives_one_value = count == 1
        if count == 1:
            values, known = np.asarray(total), self._tried_mean
            shown = what_is_given(
                self._kind, self._name, lambda *part: measure(*part)[0], given, values, records, known=known
            )
            self._tried_mean = known or shown is not None
        weight = records if count == 1 else 1
        for variable, old, new in zip(sums, before, (total, count), strict=True):
            variable.assign(old + new * weight)

    def _try(self, given: tuple[Labels, Predictions], records: int) -> bool:
        """Refuses a metric whose state after two minibatches is not the sum of the states after each, or is not told.

        Returns:
            Whether the minibatch showed anything.
        """
        before = self._values()
        states = []
        self._metric.reset_state()
        for _ in range(2):
            self._metric.update_state(*given)
            states.append([value.astype(np.float64) for value in self._values()])
        if not self._metric.variables:
            raise self._refusal("keeps no variables, and")
        self._metric.reset_state()
        self._metric.update_state(*given)
        state, wanted = self.numbers(), one_array(self._name, _array, self._metric.result())
        # What else it keeps, it would keep from other records as well.
        parts = [self._kind.cut(value, 0, (records + 1) // 2) for value in given]
        self._metric.update_state(*(given if any(part is None for part in parts) else parts))
        if not np.allclose(self.result_of(state), wanted, rtol=1e-4, equal_nan=True):
            raise self._refusal("computes from more than its variables:")
        self._metric.reset_state()
        for variable, value in zip(self._metric.variables, before, strict=False):
            raw_variable(variable).assign(value)
        names = [variable.name for variable in self._metric.variables]
        return require_sum(self._name, type(self._metric).__name__, names, *states)

    def _refusal(self, what: str) -> UserCodeError:
        shown = f"the metric {self._name} ({type(self._metric).__name__}) {what} it"
        return refusal(Subject.METRIC, "state_outside_variables", shown)

    def _values(self) -> list[NDArray[np.generic]]:
        return [np.array(raw_variable(variable).numpy()) for variable in self._metric.variables]


def cut(values: Nested, start: int, end: int) -> Nested | None:
    """Some of the records of nested tensors, with their masks; None if they cannot be cut."""

    def part(value: Tensor) -> Tensor:
        found, mask = value[start:end], mask_of(value)
        if mask is not None:
            set_mask(found, mask[start:end])
        return found

    flat = tf.nest.flatten(values)
    if any(isinstance(value, tf.SparseTensor) or not getattr(value, "shape", ()) for value in flat):
        return None
    return tf.nest.map_structure(part, values)


def join(parts: Sequence[Nested]) -> Nested | None:
    """Nested tensors of several minibatches as those of one, with their masks; None if they cannot be joined."""
    flat = [tf.nest.flatten(part) for part in parts]
    columns = list(zip(*flat, strict=True)) if len({len(leaves) for leaves in flat}) == 1 else []
    joined = [_joined(column) for column in columns]
    if not joined or any(one is None for one in joined):
        return None
    return tf.nest.pack_sequence_as(parts[0], joined)


def _joined(column: Sequence[Tensor]) -> Tensor | None:
    shapes = [tuple(value.shape) for value in column if isinstance(value, tf.Tensor | np.ndarray)]
    masks = [mask for mask in map(mask_of, column) if mask is not None]
    alike = len(shapes) == len(column) and () not in shapes and len({shape[1:] for shape in shapes}) == 1
    if not alike or len({value.dtype for value in column}) > 1 or len(masks) not in (0, len(column)):
        return None
    found = tf.concat(column, 0)
    if masks:
        set_mask(found, tf.concat(masks, 0))
    return found


def _mean(metric: KerasMetric) -> KerasMean:
    return cast(KerasMean, metric)


def to_numpy(values: Nested) -> object:
    """A nested structure of tensors as arrays."""
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, values)


def _array(values: object) -> NDArray[np.float64]:
    return np.asarray(plain_array(values), np.float64)
