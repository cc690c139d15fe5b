"""Evaluation metrics whose states add up over minibatches, tasks and workers.

The states of a set of metrics are JSON: ``{name: {"kind": ..., "sum": [...]}}``. Two states of a metric merge by
adding the numbers of ``sum`` at equal places. ``kind`` is ``mean`` for a function, with ``[sum, count]``; it is
``keras`` for a Keras metric, with one flat list for each of its variables.

That states add up, and that a mean of means weighed by records is the mean, is true of some metrics only: where it
does not follow from the class it is tried on the first minibatch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypedDict, cast

import numpy as np

from elasticdl_core.contract import Subject, find, refusal
from elasticdl_core.errors import UserCodeError
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

LOSS = "loss"


class MeanState(TypedDict):
    """The state of a function: its sum over records, and how many these are."""

    kind: Literal["mean"]
    sum: list[float]


class KerasState(TypedDict):
    """The state of a Keras metric: the numbers of each of its variables."""

    kind: Literal["keras"]
    sum: list[list[float]]


MetricState = MeanState | KerasState
_KERAS = ("keras.", "tf_keras.")


class ModuleMetrics:
    """The metrics of a model module.

    Args:
        module: the user's module.
        loss: gives the loss of ``(labels, predictions)``; it becomes the metric ``loss`` unless there is one of
            that name. None leaves it out.
        outputs: names of the model's outputs; empty for a single one, None for a list without names.

    Raises:
        UserCodeError: ``eval_metrics_fn`` is missing while there is no loss either, gives something else than
            functions and Keras metrics, or a metric for an output that the model does not have.
    """

    def __init__(
        self,
        module: ModelModule,
        loss: LossFunction | None,
        outputs: tuple[str, ...] | None = (),
    ) -> None:
        self._module = module
        self._outputs = outputs
        self._tried: set[str] = set()
        self._tried_means: set[str] = set()
        self._functions: dict[str, tuple[str | None, LossFunction]] = {}
        self._keras: dict[str, tuple[str | None, KerasMetric]] = {}
        self._gives_one_value: dict[str, bool] = {}
        self._sums: dict[str, tuple[float, float]] = {}
        self._compared: set[str] = set()
        given: object = {}
        if module.eval_metrics_fn is not None:
            with module.guard("eval_metrics_fn"):
                given = module.eval_metrics_fn()
        elif loss is None:
            module.need("eval_metrics_fn")
        self._collect(given)
        self._loss = None if loss is None or LOSS in self._functions or LOSS in self._keras else loss
        self.reset()

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""
        return [*([LOSS] if self._loss else []), *self._functions, *self._keras]

    def reset(self) -> None:
        """Begins anew."""
        self._sums = dict.fromkeys([*([LOSS] if self._loss else []), *self._functions], (0.0, 0.0))
        for _, metric in self._keras.values():
            metric.reset_state()

    def update(self, labels: Labels, predictions: Predictions, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        if self._module.feed is None:
            labels = align(labels, predictions)
        if self._loss is not None:
            self._add(LOSS, float(self._loss(labels, predictions)) * records, records)
        for name, (output, function) in self._functions.items():
            with self._module.guard(f"the metric {name}"):
                picked = self._picked(labels, predictions, output)
                if name not in self._compared:
                    refuse_outer(f"the metric {name}", function, *picked)
                    self._compared.add(name)
                values = np.asarray(function(*picked), dtype=np.float64)
                if values.size == 1 and records > 1:
                    self._try_mean(name, function, picked, float(values.sum()), records)
                    values = np.broadcast_to(values.ravel(), [records])
            self._add(name, float(values.sum()), values.size)
        for name, (output, metric) in self._keras.items():
            with self._module.guard(f"the metric {name}"):
                picked = self._picked(labels, predictions, output)
                self._try_sum(name, metric, picked)
                self._update_keras(name, metric, picked, records)

    def of_minibatch(self, labels: Labels, predictions: Predictions, records: int) -> dict[str, float]:
        """The values for one minibatch alone; forgets all others."""
        self.reset()
        self.update(labels, predictions, records)
        return self.results(self.state())

    def state(self) -> dict[str, MetricState]:
        """The states as JSON data."""
        states: dict[str, MetricState] = {n: {"kind": "mean", "sum": list(pair)} for n, pair in self._sums.items()}
        for name, (_, metric) in self._keras.items():
            numbers = [np.ravel(raw_variable(v).numpy()).astype(float).tolist() for v in metric.variables]
            states[name] = {"kind": "keras", "sum": numbers}
        return states

    def results(self, states: Mapping[str, MetricState]) -> dict[str, float]:
        """The values of merged states; a metric of several values gives ``name[0]``, ``name[1]``, ...

        Raises:
            UserCodeError: the states are of other metrics.
        """
        values: dict[str, float] = {}
        for name, state in states.items():
            if name in self._keras and state["kind"] == "keras":
                values |= self._keras_result(name, state["sum"])
            elif name in self._sums and state["kind"] == "mean":
                total, count = state["sum"]
                values[name] = total / count if count else float("nan")
            else:
                raise UserCodeError(f"there is no metric {name}", fix="do not change the module while a job runs")
        return values

    def _keras_result(self, name: str, parts: list[list[float]]) -> dict[str, float]:
        metric = self._keras[name][1]
        for variable, numbers in zip(metric.variables, parts, strict=True):
            raw = raw_variable(variable)
            raw.assign(
                np.asarray(numbers, dtype=raw.dtype.as_numpy_dtype).reshape(tuple(cast(Iterable[int], raw.shape)))
            )
        with self._module.guard(f"the result of the metric {name}"):
            result = np.asarray(metric.result(), dtype=float)
        if result.ndim == 0:
            return {name: float(result)}
        return {f"{name}[{place}]": float(value) for place, value in enumerate(result.ravel())}

    def _update_keras(self, name: str, metric: KerasMetric, given: tuple[Labels, Predictions], records: int) -> None:
        """Updates a Keras metric; a mean for which a minibatch is one value counts it once for each record.

        Keras' MeanSquaredError and its kin take the mean over the last axis, which of predictions ``[N]`` is that of
        the records: a minibatch of three would count as much as one of three hundred.
        """
        is_mean = records > 1 and isinstance(metric, keras.metrics.Mean)
        if not is_mean or self._gives_one_value.get(name) is False:
            metric.update_state(*given)
            return
        mean = cast(KerasMean, metric)
        sums = [raw_variable(variable) for variable in (mean.total, mean.count)]

        def measure(labels: Labels, predictions: Predictions) -> tuple[float, float]:
            metric.reset_state()
            metric.update_state(labels, predictions)
            return float(sums[0].numpy()), float(sums[1].numpy())

        before = [float(variable.numpy()) for variable in sums]
        total, count = measure(*given)
        self._gives_one_value[name] = count == 1
        if count == 1:
            self._try_mean(name, lambda *part: measure(*part)[0], given, total, records)
        weight = records if count == 1 else 1
        for variable, old, new in zip(sums, before, (total, count), strict=True):
            variable.assign(old + new * weight)

    def _try_mean(
        self,
        name: str,
        function: Callable[[Labels, Predictions], Tensor | float],
        given: tuple[Labels, Predictions],
        whole: float,
        records: int,
    ) -> None:
        """Refuses a function whose number for a minibatch is not the mean over its records."""
        if name in self._tried_means or not np.isfinite(whole):
            return
        cut = records // 2
        halves = [half for half in (_part(given, 0, cut), _part(given, cut, records)) if half is not None]
        if len(halves) < 2:
            return
        first, second = (float(np.asarray(function(*half), dtype=np.float64).sum()) for half in halves)
        mean = (first * cut + second * (records - cut)) / records
        if not np.isfinite(mean):
            return
        if not np.isclose(whole, mean, rtol=1e-3, atol=1e-6):
            shown = (
                f"the metric {name} is {whole:.6g} on {records} records and {mean:.6g} on average on its halves: it"
            )
            raise refusal(Subject.METRIC, "function_of_no_mean", shown)
        self._tried_means.add(name)

    def _try_sum(self, name: str, metric: KerasMetric, given: tuple[Labels, Predictions]) -> None:
        """Refuses a metric whose state after two minibatches is not the sum of the states after each."""
        if name in self._tried or type(metric).__module__.startswith(_KERAS):
            return
        before = [np.array(raw_variable(v).numpy()) for v in metric.variables]
        states = []
        metric.reset_state()
        for _ in range(2):
            metric.update_state(*given)
            states.append([np.array(raw_variable(v).numpy(), dtype=np.float64) for v in metric.variables])
        metric.reset_state()
        for variable, value in zip(metric.variables, before, strict=False):
            raw_variable(variable).assign(value)
        for variable, once, twice in zip(metric.variables, *states, strict=True):
            if not np.allclose(twice, 2 * once, rtol=1e-3, atol=1e-6, equal_nan=True):
                place = np.unravel_index(np.argmax(np.abs(twice - 2 * once)), once.shape) if once.shape else ()
                shown = (
                    f"the metric {name} ({type(metric).__name__}): after the same minibatch twice its variable "
                    f"{variable.name} is {twice[place]:.6g}, not twice {once[place]:.6g}; it"
                )
                raise refusal(Subject.METRIC, "state_that_does_not_add", shown)
        if any(np.any(once) for once in states[0]):
            self._tried.add(name)

    def _picked(self, labels: Labels, predictions: Predictions, output: str | None) -> tuple[Labels, Predictions]:
        """The labels and predictions of an output; labels need not be split by output."""
        if output is None:
            return labels, predictions
        names = self._outputs or ()
        return _pick(labels, output, names, optional=True), cast(Predictions, _pick(predictions, output, names))

    def _add(self, name: str, value: float, count: int) -> None:
        total, seen = self._sums[name]
        self._sums[name] = (total + value, seen + count)

    def _collect(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise UserCodeError(
                f"eval_metrics_fn returned a {type(given).__name__}",
                fix='return a dict, e.g. {"accuracy": lambda labels, predictions: ...}',
            )
        for name, value in given.items():
            if isinstance(value, Mapping):
                for inner, metric in value.items():
                    self._take(f"{name}.{inner}", str(name), metric)
            else:
                self._take(str(name), None, value)

    def _check_output(self, name: str, output: str | None, metric: object) -> None:
        """Refuses a metric for an output that is not there, and one of Keras' for all outputs together."""
        if output is not None and self._outputs is None:
            raise refusal(Subject.METRIC, "output_without_name", f"the metric {name}")
        names = self._outputs or ()
        if output is not None and output not in names:
            has = f"outputs {', '.join(names)}" if names else "a single output, without a name"
            raise UserCodeError(
                f"the metric {name} is for the output {output!r}, but the model has {has}",
                fix="name one of these" if names else "give {name: metric} without the name of an output",
            )
        several = self._outputs is None or len(names) > 1
        if (
            output is None
            and several
            and type(metric).__module__.startswith(_KERAS)
            and not inspect.isfunction(metric)
        ):
            raise UserCodeError(
                f"the metric {name} takes one output, but the model has {', '.join(names) or 'several'}",
                fix="say of which output: {output: {name: metric}}",
            )

    def _take(self, name: str, output: str | None, metric: object) -> None:
        if isinstance(metric, str):
            metric = _by_name(name, metric)
        self._check_output(name, output, metric)
        if isinstance(metric, keras.metrics.Metric):
            self._keras[name] = (output, metric)
        elif inspect.isclass(metric) and issubclass(metric, keras.metrics.Metric):
            raise UserCodeError(
                f"the metric {name} is the class {metric.__name__}", fix=f"give an object: {metric.__name__}()"
            )
        elif callable(metric):
            self._functions[name] = (output, metric)
        else:
            raise UserCodeError(
                f"the metric {name} is a {type(metric).__name__}",
                fix="give a function (labels, predictions) -> values, or a Keras metric",
            )


def _by_name(name: str, wanted: str) -> object:
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


def _pick(values: Labels, output: str, names: Sequence[str], *, optional: bool = False) -> Labels:
    """One output of several, by name or by the place that its name has."""
    if isinstance(values, Mapping):
        if output in values or not optional:
            return values[output]
        return values
    if isinstance(values, list | tuple) and len(values) == len(names):
        return values[names.index(output)]
    return values


def _part(values: object, start: int, end: int) -> tuple[Labels, Predictions] | None:
    """Some of the records of nested tensors; None if they cannot be cut."""
    flat = tf.nest.flatten(values)
    if any(isinstance(value, tf.SparseTensor) or not getattr(value, "shape", ()) for value in flat):
        return None
    return tf.nest.map_structure(lambda value: value[start:end], values)


def to_numpy(values: Nested) -> object:
    """A nested structure of tensors as arrays."""
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, values)
