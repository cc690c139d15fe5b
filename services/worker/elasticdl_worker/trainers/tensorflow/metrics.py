"""Evaluation metrics whose states add up over minibatches, tasks and workers.

The states of a set of metrics are JSON: ``{name: {"kind": ..., "sum": [...]}}``. Two states of a metric merge by
adding the numbers of ``sum`` at equal places. ``kind`` is ``mean`` for a function, with ``[sum, count]``; it is
``keras`` for a Keras metric, with one flat list for each of its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.tensorflow.framework import keras, raw_variable, tf
from elasticdl_worker.user_code import ModelModule

LOSS = "loss"


class Metrics:
    """The metrics of a model module.

    Args:
        module: the user's module.
        loss: gives the loss of ``(labels, predictions)``; it becomes the metric ``loss`` unless there is one of
            that name. None leaves it out.

    Raises:
        UserCodeError: ``eval_metrics_fn`` is missing while there is no loss either, or gives something else than
            functions and Keras metrics.
    """

    def __init__(self, module: ModelModule, loss: Callable[[Any, Any], Any] | None) -> None:
        self._module = module
        self._functions: dict[str, tuple[str | None, Callable[[Any, Any], Any]]] = {}
        self._keras: dict[str, tuple[str | None, Any]] = {}
        self._sums: dict[str, tuple[float, float]] = {}
        given: Any = {}
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

    def update(self, labels: Any, predictions: Any, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        if self._loss is not None:
            self._add(LOSS, float(self._loss(labels, predictions)) * records, records)
        for name, (output, function) in self._functions.items():
            with self._module.guard(f"the metric {name}"):
                picked = _pick(labels, output, optional=True), _pick(predictions, output)
                values = np.asarray(function(*picked), dtype=np.float64)
            self._add(name, float(values.sum()), values.size)
        for name, (output, metric) in self._keras.items():
            with self._module.guard(f"the metric {name}"):
                metric.update_state(_pick(labels, output, optional=True), _pick(predictions, output))

    def state(self) -> dict[str, Any]:
        """The states as JSON data."""
        states: dict[str, Any] = {n: {"kind": "mean", "sum": list(pair)} for n, pair in self._sums.items()}
        for name, (_, metric) in self._keras.items():
            numbers = [np.ravel(raw_variable(v).numpy()).astype(float).tolist() for v in metric.variables]
            states[name] = {"kind": "keras", "sum": numbers}
        return states

    def results(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of merged states; a metric of several values gives ``name[0]``, ``name[1]``, ...

        Raises:
            UserCodeError: the states are of other metrics.
        """
        values: dict[str, float] = {}
        for name, state in states.items():
            if name in self._keras:
                values |= self._keras_result(name, state["sum"])
            elif name in self._sums:
                total, count = state["sum"]
                values[name] = total / count if count else float("nan")
            else:
                raise UserCodeError(f"there is no metric {name}", fix="do not change the module while a job runs")
        return values

    def _keras_result(self, name: str, parts: list[list[float]]) -> dict[str, float]:
        metric = self._keras[name][1]
        for variable, numbers in zip(metric.variables, parts, strict=True):
            raw = raw_variable(variable)
            raw.assign(np.asarray(numbers, dtype=raw.dtype.as_numpy_dtype).reshape(raw.shape))
        with self._module.guard(f"the result of the metric {name}"):
            result = np.asarray(metric.result(), dtype=float)
        if result.ndim == 0:
            return {name: float(result)}
        return {f"{name}[{place}]": float(value) for place, value in enumerate(result.ravel())}

    def _add(self, name: str, value: float, count: int) -> None:
        total, seen = self._sums[name]
        self._sums[name] = (total + value, seen + count)

    def _collect(self, given: Any) -> None:
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

    def _take(self, name: str, output: str | None, metric: Any) -> None:
        if isinstance(metric, keras.metrics.Metric):
            self._keras[name] = (output, metric)
        elif isinstance(metric, str):
            self._keras[name] = (output, keras.metrics.get(metric))
        elif callable(metric):
            self._functions[name] = (output, metric)
        else:
            raise UserCodeError(
                f"the metric {name} is a {type(metric).__name__}",
                fix="give a function (labels, predictions) -> values, or a Keras metric",
            )


def _pick(values: Any, output: str | None, *, optional: bool = False) -> Any:
    """One output of several, by name; labels need not be split by output."""
    if output is None or not isinstance(values, Mapping):
        return values
    if output not in values:
        if optional:
            return values
        raise KeyError(f"the model has no output {output!r}; it has {sorted(values)}")
    return values[output]


def to_numpy(values: Any) -> Any:
    """A nested structure of tensors as arrays."""
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, values)
