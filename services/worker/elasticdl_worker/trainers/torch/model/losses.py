"""Losses and metric functions: PyTorch's own take predictions first, and none may compare all records with all."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl_core.contract.argument_order import refuse_swapped, refuse_swapped_names
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.nested import leaves

_Function = Callable[[Any, Any], Any]
_OWN = ("torch.nn.modules.loss", "torch.nn.functional")
"""Where PyTorch's own losses are; they are called ``(input, target)``."""


def by_labels_first(what: str, function: _Function) -> _Function:
    """A loss or metric function as one of ``(labels, predictions)``, which PyTorch's own are not.

    Args:
        what: names the function for the message.
        function: the user's, a module or function of PyTorch, or a partial of one.

    Raises:
        UserCodeError: it is a class, takes something else than two arguments, or names the predictions first.
    """
    called = _called(function)
    if inspect.isclass(called) or getattr(called, "__module__", None) not in _OWN:
        refuse_swapped(what, called)
        if compiled := getattr(called, "schema", None):  # by torch.jit, which hides the signature
            refuse_swapped_names(what, [one.name for one in compiled.arguments])
        return function
    shown = getattr(type(function), "__name__", "") if isinstance(function, nn.Module) else called.__name__
    signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    needed = [one.name for one in signature.parameters.values() if one.default is one.empty]
    if needed != ["input", "target"]:
        raise UserCodeError(
            f"{what} is PyTorch's {shown}, which takes {', '.join(needed) or 'no argument'}, and is called with "
            "labels and predictions",
            fix=f"write a function of (labels, predictions) that calls {shown} with what it takes",
        )
    return functools.wraps(called)(lambda labels, predictions: function(predictions, labels))


def _called(function: Any) -> Any:
    """The function that says what the arguments are: behind partials and compilation, of a module its ``forward``."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, nn.Module) and isinstance(getattr(function, "_orig_mod", None), nn.Module):
            function = function._orig_mod
        elif isinstance(function, torch.jit.ScriptModule):
            return function.forward
        elif isinstance(function, nn.Module):
            return type(function).forward
        else:
            return function


class OuterProducts:
    """Refuses a function in which broadcasting has each label meet the prediction of every record.

    Args:
        what: names the function for the message.
        function: of ``(labels, predictions)``.
    """

    def __init__(self, what: str, function: _Function) -> None:
        self._what = what
        self._function = function
        self._watched: set[tuple[int, ...]] = set()

    def __call__(self, labels: Tensors, predictions: Tensors) -> Any:
        """Calls the function; follows its operations the first time that such shapes come.

        Raises:
            UserCodeError: a table of ``N x N`` values is made of labels ``[N]`` and predictions ``[N, 1]``, or the
                other way round.
        """
        given = leaves(labels), leaves(predictions)
        kinds = tuple(one.ndim for side in given for one in side)
        if kinds in self._watched or not any(len(one) > 1 for one in given[1] if one.ndim):
            return self._function(labels, predictions)
        low = {_LABELS for one in given[0] for other in given[1] if _may_spread(one, other)}
        low |= {_PREDICTIONS for one in given[1] for other in given[0] if _may_spread(one, other)}
        if not low:
            self._watched.add(kinds)
            return self._function(labels, predictions)
        with _Watch(given[0], given[1], low) as watch:
            result = self._function(labels, predictions)
        if watch.found is not None:
            shown = [", ".join(str(list(one.shape)) for one in side) for side in given]
            raise UserCodeError(
                f"{self._what} compares each label with the prediction of every record: labels have the shape "
                f"{shown[0]}, predictions {shown[1]}, and {watch.found} makes {watch.records} x {watch.records} "
                "values of them",
                fix="give both the same shape: predictions.squeeze(-1), or labels[:, None]",
            )
        self._watched.add(kinds)
        return result


_LABELS, _PREDICTIONS = "labels", "predictions"


def _may_spread(low: torch.Tensor, high: torch.Tensor) -> bool:
    """Whether records of one tensor come to lie along another axis than those of the other, by broadcasting."""
    return 0 < low.ndim < high.ndim and len(low) == len(high) and high.shape[high.ndim - low.ndim] == 1


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of PyTorch
    """Follows the two sides through operations, by the memory that tensors share.

    Attributes:
        found: name of the operation in which all records of one side met all of the other.
        records: how many these are.
    """

    def __init__(self, labels: list[torch.Tensor], predictions: list[torch.Tensor], low: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of PyTorch
        self.found: str | None = None
        self.records = max(len(one) for one in predictions if one.ndim)
        self._low = low
        self._sides: dict[int, frozenset[str]] = {}
        self._spread: set[tuple[Any, ...]] = set()
        self._kept: list[torch.Tensor] = []  # or memory would be another tensor's
        for side, tensors in ((_LABELS, labels), (_PREDICTIONS, predictions)):
            for tensor in tensors:
                self._note(tensor, frozenset({side}))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = list(_tensors_in([args, kwargs or {}]))
        result = func(*args, **(kwargs or {}))
        sides = frozenset[str]().union(*(self._side(one) for one in given))
        made = list(_tensors_in(result))
        for tensor in made:
            self._note(tensor, self._side(tensor) | sides)
        if len(given) == 1 and len(made) == 1 and func.overloadpacket is torch.ops.aten.expand:
            if made[0].ndim > given[0].ndim:
                self._spread.add(_key(made[0]))
        elif self.found is None and len(sides) == 2:
            for number, one in enumerate(given):
                if any(self._meet(one, other) or self._meet(other, one) for other in given[number + 1 :]):
                    self.found = func.overloadpacket.__name__
        return result

    def _meet(self, low: torch.Tensor, high: torch.Tensor) -> bool:
        """Whether one operand's records, of lower rank by itself, lie along another axis than the other's."""
        sides = self._side(low), self._side(high)
        if len(sides[0]) != 1 or len(sides[1]) != 1 or sides[0] == sides[1] or not sides[0] <= self._low:
            return False
        if low.ndim >= high.ndim and _key(low) not in self._spread:
            return False
        try:
            pair = torch.broadcast_tensors(low, high)  # type: ignore[no-untyped-call]  # of PyTorch
        except RuntimeError:
            return False
        axes = [
            {axis for axis, size in enumerate(one.shape) if size == self.records and one.stride(axis)} for one in pair
        ]
        return bool(axes[0] - axes[1]) and 0 in axes[1] - axes[0]

    def _side(self, tensor: torch.Tensor) -> frozenset[str]:
        return self._sides.get(_memory(tensor), frozenset())

    def _note(self, tensor: torch.Tensor, sides: frozenset[str]) -> None:
        self._kept.append(tensor)
        self._sides[_memory(tensor)] = sides


def _memory(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.layout is not torch.strided else int(tensor.untyped_storage()._cdata)


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return _memory(tensor), tuple(tensor.shape), tensor.stride()


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors_in(value)
    elif isinstance(values, tuple | list):
        for value in cast("list[Any]", values):
            yield from _tensors_in(value)
