"""PyTorch's metrics: objects with ``update(predictions, labels)`` and ``compute()``, as torchmetrics has.

A state is told as the difference that updates made to what the object began with, so that the states of minibatches
and workers add up; where torchmetrics says that the larger or smaller value counts, as the value itself.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.framework import LossOf, Outputs
from elasticdl_worker.trainers.metrics import ModuleMetrics, one_array, require_sum
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.device import HOST, host_array, place
from elasticdl_worker.trainers.torch.model.calling import aligned, cut, join
from elasticdl_worker.trainers.torch.model.losses import OuterProducts, by_labels_first
from elasticdl_worker.trainers.torch.nested import field_names, leaves, map_tensors
from elasticdl_worker.user_code import ModelModule

_Numbers = NDArray[np.float64]
_RULES = {"dim_zero_sum": "sum", "dim_zero_max": "max", "dim_zero_min": "min"}
"""How states merge, by the name of what torchmetrics reduces them with."""
_CLOSE = 1e-4
_CONTAINERS = (list, tuple, dict, set, str, bytes, bool, type(None))


def make_metrics(module: ModelModule, loss: LossOf | None, outputs: Outputs) -> ModuleMetrics:
    """Makes the metrics of a module; a collection of torchmetrics is taken apart.

    Raises:
        UserCodeError: see ``ModuleMetrics``.
    """
    given = module.eval_metrics_fn
    if given is not None:
        module = replace(module, eval_metrics_fn=lambda: _apart(given()))
    return HostMetrics(TorchMetrics(), module, loss, outputs)


class HostMetrics(ModuleMetrics):
    """Metrics of what a model gives, wherever it is computed; labels are on the host."""

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        super().update(labels, place(predictions, HOST), records)


class TorchMetrics:
    """PyTorch's knowledge of metrics."""

    name = "torch"
    words = "an object with update and compute"

    def find(self, name: str, wanted: str) -> object:
        """Refuses names: PyTorch has no metrics of its own."""
        raise UserCodeError(
            f"the metric {name} is {wanted!r}, and PyTorch has no metrics by name",
            fix=f"give a function (labels, predictions) -> values, or {self.words}",
        )

    def is_own(self, metric: object) -> bool:
        """Whether an object is of torchmetrics."""
        return type(metric).__module__.startswith("torchmetrics.")

    def adopt(self, name: str, metric: object) -> TorchMetric | None:
        """An object with ``update`` and ``compute``; None if it is something else."""
        if not callable(getattr(metric, "update", None)) or not callable(getattr(metric, "compute", None)):
            return None
        if inspect.isclass(metric):
            raise UserCodeError(
                f"the metric {name} is the class {metric.__name__}", fix=f"give an object: {metric.__name__}()"
            )
        return TorchMetric(name, copy.deepcopy(metric))

    def align(self, labels: Tensors, predictions: Tensors) -> Tensors:
        """Labels ``[N]`` in the shape of predictions ``[N, 1]``; others as they are."""
        return aligned(labels, predictions)

    def in_order(self, what: str, function: LossOf) -> LossOf:
        """A function as one of ``(labels, predictions)``: PyTorch's own take predictions first."""
        return by_labels_first(what, function)

    def check_function(self, what: str, function: LossOf, labels: Tensors, predictions: Tensors) -> None:
        """Refuses a function in which each label meets the prediction of every record."""
        OuterProducts(what, function)(labels, predictions)

    def cut(self, values: Tensors, start: int, end: int) -> Tensors:
        """Some of the records of nested tensors; None if they cannot be cut."""
        return cut(values, start, end)

    def join(self, parts: Sequence[Tensors]) -> Tensors:
        """Nested tensors of several minibatches as those of one; None if they cannot be joined."""
        return join(parts)

    def count(self, values: Tensors) -> int:
        """The number of values in nested tensors."""
        return sum(leaf.numel() for leaf in leaves(values))

    def numbers(self, values: Any) -> _Numbers:
        """A tensor of any type, an array or a number as an array."""
        return _array(values)


class TorchMetric:
    """One metric object.

    Args:
        name: of the metric.
        metric: the object, for this purpose alone.

    Raises:
        UserCodeError: it declares a state that cannot be merged.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self._name = name
        self._metric = metric
        self._parts = _declaring(metric)
        self._declared = bool(self._parts)
        if hasattr(metric, "reset"):
            metric.reset()
        self._first = copy.deepcopy(self._values())
        self._rules = self._declared_rules() if self._declared else dict.fromkeys(self._first, "sum")
        self._tried = False

    def reset(self) -> None:
        """Begins anew."""
        if hasattr(self._metric, "reset"):
            self._metric.reset()
        self._set(copy.deepcopy(self._first))

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        if not self._tried:
            self._try(labels, predictions)
        self._metric.update(predictions, labels)

    def numbers(self) -> list[list[float]]:
        """The state: by how much each of its values has changed, or the value."""
        return [change.ravel().tolist() for change in self._changes()]

    def rules(self) -> list[str]:
        """The rule by which each value merges."""
        return list(self._rules.values())

    def result_of(self, numbers: Sequence[Sequence[float]]) -> _Numbers:
        """The result that the metric computes of a merged state."""
        self.reset()
        for (key, first), part in zip(self._first.items(), numbers, strict=True):
            before = _array(first) if self._rules[key] == "sum" else np.zeros(_array(first).shape)
            self._set({key: _like(first, before + np.asarray(part, np.float64).reshape(before.shape))})
        for one in self._parts.values():
            one._update_count = 1  # or it would warn that nothing was taken in
        found = self._result()
        self.reset()
        return found

    def _result(self) -> _Numbers:
        return one_array(self._name, _array, self._metric.compute())

    def _changes(self) -> list[_Numbers]:
        values = self._values()
        return [
            _array(values[key]) - _array(first) if self._rules[key] == "sum" else _array(values[key])
            for key, first in self._first.items()
        ]

    def _declared_rules(self) -> dict[str, str]:
        found = {}
        for key, first in self._first.items():
            part, name = self._home(key)
            rule = _RULES.get(getattr(part._reductions.get(name), "__name__", ""))
            if rule is None or not isinstance(first, torch.Tensor):
                raise self._refusal(key)
            found[key] = rule
        return found

    def _home(self, key: str) -> tuple[Any, str]:
        """The object that keeps a part of the state, and its name there."""
        path, _, name = key.rpartition(".")
        return (self._parts[path] if self._declared else self._metric), name

    def _refusal(self, key: str) -> UserCodeError:
        shown = f"the metric {self._name} ({type(self._metric).__name__}): its {key}"
        return refusal(Subject.TORCH_METRIC, "state_that_does_not_merge", shown)

    def _held(self) -> dict[str, Any]:
        """Other attributes of an object that may be state: lists of tensors, or what is made when first needed."""
        return {key: value for key, value in vars(self._metric).items() if isinstance(value, _CONTAINERS)}

    def _values(self) -> dict[str, Any]:
        """The parts of the state: those that torchmetrics declares, else all tensors and numbers of the object."""
        if self._declared:
            return {
                f"{path}.{key}" if path else key: getattr(one, key)
                for path, one in self._parts.items()
                for key in one._defaults
            }
        kinds = (torch.Tensor, np.ndarray, float, int)
        return {
            key: value
            for key, value in vars(self._metric).items()
            if isinstance(value, kinds) and not isinstance(value, bool)
        }

    def _set(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            setattr(*self._home(key), value)

    def _try(self, labels: Tensors, predictions: Tensors) -> None:
        """Refuses an object whose result follows from more than the state that is told."""
        before = copy.deepcopy(self._values())
        self._tried = self._declared or self._try_sum(labels, predictions)
        self.reset()
        self._metric.update(predictions, labels)
        state, wanted = self.numbers(), self._result()
        # What else it keeps, it would keep from another minibatch as well.
        self._metric.update(_half_of(predictions), _half_of(labels))
        if not np.allclose(self.result_of(state), wanted, rtol=_CLOSE, equal_nan=True):
            kind = type(self._metric).__name__
            shown = f"the metric {self._name} ({kind}) computes from more than the tensors and numbers in it: it"
            raise refusal(Subject.TORCH_METRIC, "state_that_does_not_merge", shown)
        self._set(before)

    def _try_sum(self, labels: Tensors, predictions: Tensors) -> bool:
        """Refuses an object whose state after two minibatches is not the sum of the states after each.

        Returns:
            Whether the minibatch showed anything.
        """
        self.reset()
        states, held = [], copy.deepcopy(self._held())
        for _ in range(2):
            self._metric.update(predictions, labels)
            changed = [key for key, value in held.items() if _differs(value, getattr(self._metric, key, None))]
            if changed:
                raise self._refusal(changed[0])
            states.append(self._changes())
        kind = type(self._metric).__name__
        if not self._first:
            shown = f"the metric {self._name} ({kind}) has no tensor or number as a state: it"
            raise refusal(Subject.TORCH_METRIC, "state_that_does_not_merge", shown)
        return require_sum(self._name, kind, list(self._first), *states)


def _declaring(metric: Any) -> dict[str, Any]:
    """The parts of a metric that say what their states are, as torchmetrics has them, by their paths in it.

    What it is made of counts as well: ``precision + recall``, or a metric for each of several outputs.
    """
    modules = metric.named_modules() if isinstance(metric, nn.Module) else [("", metric)]
    return {path: one for path, one in modules if hasattr(one, "_defaults") and hasattr(one, "_reductions")}


def to_numpy(predictions: Tensors) -> object:
    """Nested tensors as arrays of types that numpy has."""
    if names := field_names(predictions):
        predictions = {name: getattr(predictions, name) for name in names}  # each is stored by its name
    return map_tensors(host_array, predictions)


def _apart(given: object) -> object:
    """The metrics of a module, those of collections one by one."""
    if isinstance(given, nn.ModuleDict):
        return dict(given.items())
    if not isinstance(given, Mapping):
        return given
    found: dict[str, object] = {}
    for name, value in given.items():
        if isinstance(value, nn.ModuleDict):
            found |= {f"{name}.{inner}": metric for inner, metric in value.items()}
        else:
            found[str(name)] = value
    return found


def _array(value: Any) -> _Numbers:
    return np.asarray(host_array(value) if isinstance(value, torch.Tensor) else value, np.float64)


def _differs(one: Any, other: Any) -> bool:
    """Whether nested containers, tensors and plain values are not equal; other objects are not compared."""
    if type(one) is not type(other):
        return True
    if isinstance(one, dict):
        return one.keys() != other.keys() or any(_differs(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) != len(other) or any(_differs(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.shape != other.shape or not np.array_equal(_array(one), _array(other), equal_nan=True)
    return isinstance(one, str | bytes | int | float | set) and bool(one != other)


def _half_of(values: Tensors) -> Tensors:
    return map_tensors(lambda tensor: tensor[: (len(tensor) + 1) // 2] if tensor.ndim else tensor, values)


def _like(first: Any, value: _Numbers) -> Any:
    """A value of the type of another."""
    if isinstance(first, torch.Tensor):
        return torch.from_numpy(np.array(value)).to(first.dtype)
    return np.asarray(value, first.dtype) if isinstance(first, np.ndarray) else type(first)(value)
