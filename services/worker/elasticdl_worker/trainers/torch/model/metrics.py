"""What PyTorch adds to metrics: objects with ``update(predictions, labels)`` and ``compute()``, as torchmetrics has.

A state is told as the difference that updates made to what the object began with, so that the states of minibatches
and workers add up.
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
from elasticdl_worker.trainers.metrics import ModuleMetrics, require_sum
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.model.calling import aligned, leaves, map_tensors
from elasticdl_worker.user_code import ModelModule

_Numbers = NDArray[np.float64]


def make_metrics(module: ModelModule, loss: LossOf | None, outputs: Outputs) -> ModuleMetrics:
    """Makes the metrics of a module; a collection of torchmetrics is taken apart.

    Raises:
        UserCodeError: see ``ModuleMetrics``.
    """
    given = module.eval_metrics_fn
    if given is not None:
        module = replace(module, eval_metrics_fn=lambda: _apart(given()))
    return ModuleMetrics(TorchMetrics(), module, loss, outputs)


class TorchMetrics:
    """What PyTorch knows of metrics."""

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

    def check_function(self, what: str, function: LossOf, labels: Tensors, predictions: Tensors) -> None:
        """Refuses a function in which each label meets the prediction of every record."""
        both = isinstance(labels, torch.Tensor) and isinstance(predictions, torch.Tensor)
        if (
            not both
            or {labels.ndim, predictions.ndim} != {1, 2}
            or len(labels) != len(predictions)
            or len(labels) < 2
        ):
            return
        records = len(labels)
        values = function(labels, predictions)
        if isinstance(values, torch.Tensor) and values.shape == (records, records):
            raise UserCodeError(
                f"{what} gives {records} x {records} values for {records} records: labels are {list(labels.shape)}, "
                f"predictions {list(predictions.shape)}, and each label meets the prediction of every record",
                fix="give both the same shape, e.g. by predictions.squeeze(-1)",
            )

    def cut(self, values: Tensors, start: int, end: int) -> Tensors:
        """Some of the records of nested tensors; None if they cannot be cut."""
        if any(not leaf.ndim for leaf in leaves(values)):
            return None
        return map_tensors(lambda tensor: tensor[start:end], values)


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
        self._declared = hasattr(metric, "_defaults") and hasattr(metric, "_reductions")
        if hasattr(metric, "reset"):
            metric.reset()
        self._first = copy.deepcopy(self._values())
        if self._declared:
            self._check_reductions()
        self._tried = self._declared

    def reset(self) -> None:
        """Begins anew."""
        if hasattr(self._metric, "reset"):
            self._metric.reset()
        self._set(copy.deepcopy(self._first))

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        if not self._tried:
            self._try_sum(labels, predictions)
        self._metric.update(predictions, labels)

    def numbers(self) -> list[list[float]]:
        """The state: by how much each of its values has changed."""
        return [change.ravel().tolist() for change in self._changes()]

    def result_of(self, numbers: Sequence[Sequence[float]]) -> _Numbers:
        """What the metric computes of a merged state."""
        self.reset()
        for (key, first), part in zip(self._first.items(), numbers, strict=True):
            before = _array(first)
            setattr(self._metric, key, _like(first, before + np.asarray(part, np.float64).reshape(before.shape)))
        if hasattr(self._metric, "_update_count"):
            self._metric._update_count = 1  # or it would warn that nothing was taken in
        computed = self._metric.compute()
        self.reset()
        if isinstance(computed, Mapping):
            raise UserCodeError(
                f"the metric {self._name} computes a dict", fix="give an object for each of its values"
            )
        return np.stack([_array(one) for one in computed]) if isinstance(computed, list | tuple) else _array(computed)

    def _changes(self) -> list[_Numbers]:
        values = self._values()
        return [_array(values[key]) - _array(first) for key, first in self._first.items()]

    def _check_reductions(self) -> None:
        for key in self._first:
            reduction = getattr(self._metric._reductions.get(key), "__name__", "")
            if reduction != "dim_zero_sum" or not isinstance(self._first[key], torch.Tensor):
                shown = f"the metric {self._name} ({type(self._metric).__name__}): its {key}"
                raise refusal(Subject.TORCH_METRIC, "state_that_does_not_merge", shown)

    def _values(self) -> dict[str, Any]:
        """The parts of the state: those that torchmetrics declares, else all tensors and numbers of the object."""
        if self._declared:
            return {key: getattr(self._metric, key) for key in self._metric._defaults}
        kinds = (torch.Tensor, np.ndarray, float, int)
        return {
            key: value
            for key, value in vars(self._metric).items()
            if isinstance(value, kinds) and not isinstance(value, bool)
        }

    def _set(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            setattr(self._metric, key, value)

    def _try_sum(self, labels: Tensors, predictions: Tensors) -> None:
        """Refuses an object whose state after two minibatches is not the sum of the states after each."""
        before = copy.deepcopy(self._values())
        self.reset()
        states = []
        for _ in range(2):
            self._metric.update(predictions, labels)
            states.append(self._changes())
        self.reset()
        self._set(before)
        kind = type(self._metric).__name__
        if not self._first:
            shown = f"the metric {self._name} ({kind}) has no tensor or number as a state: it"
            raise refusal(Subject.TORCH_METRIC, "state_that_does_not_merge", shown)
        self._tried = require_sum(self._name, kind, list(self._first), *states)


def to_numpy(predictions: Tensors) -> object:
    """Nested tensors as arrays; bfloat16, which numpy does not know, as float32."""

    def array(tensor: torch.Tensor) -> NDArray[Any]:
        tensor = tensor.detach()
        return np.asarray((tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy())

    return map_tensors(array, predictions)


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
    if isinstance(value, torch.Tensor):
        value = value.detach().to(torch.float64).numpy()
    return np.asarray(value, np.float64)


def _like(first: Any, value: _Numbers) -> Any:
    """A value of the type of another."""
    if isinstance(first, torch.Tensor):
        return torch.from_numpy(np.array(value)).to(first.dtype)
    return np.asarray(value, first.dtype) if isinstance(first, np.ndarray) else type(first)(value)
