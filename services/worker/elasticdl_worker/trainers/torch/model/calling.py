"""Calls a model with what ``feed`` gives, and checks what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from elasticdl_worker.trainers.framework import Outputs
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.nested import field_names, is_record, leaves, map_tensors

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TorchModelCall:
    """Calls a model with a minibatch of features.

    A dict goes by its keys to the arguments of ``forward``, a tuple or list by its places, where ``forward`` takes
    more than one argument; else the features are its argument as they are.

    Args:
        net: the model.
        run: what to call instead of it, such as a compiled one.
    """

    def __init__(self, net: nn.Module, run: Callable[..., Any] | None = None) -> None:
        self._run = net if run is None else run
        parameters = list(inspect.signature(net.forward).parameters.values())
        positional = [one for one in parameters if one.kind in _POSITIONAL]
        open_ended = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
        named = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_POSITIONAL}
        self._several = open_ended or len(positional) > 1
        self._names = named if len(named) > 1 else set()
        self._any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)

    def __call__(self, features: Tensors) -> Tensors:
        arguments, named = self.arguments(features)
        return self._run(*arguments, **named)

    def arguments(self, features: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of ``forward`` for a minibatch of features, by place and by name."""
        if isinstance(features, Mapping) and (self._any_name or (self._names and features.keys() <= self._names)):
            return (), dict(features)
        if isinstance(features, tuple | list) and self._several:
            return tuple(features), {}
        return (features,), {}

    def written(self, features: Tensors) -> str:
        """The written form of the call for such features: with ``features``, ``*features`` or ``**features``."""
        arguments, named = self.arguments(features)
        if named:
            return "**features"
        return "features" if len(arguments) == 1 and arguments[0] is features else "*features"


def output_names(predictions: Tensors) -> Outputs:
    """Names of a model's outputs."""
    if isinstance(predictions, Mapping):
        return tuple(str(name) for name in predictions)
    if isinstance(predictions, tuple | list) or is_record(predictions):
        return field_names(predictions) or None
    return ()


def describe(values: Tensors) -> str:
    """Nested tensors in short, e.g. ``{image: float32[8, 28, 28]}``."""
    if isinstance(values, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in values.items()) + "}"
    if isinstance(values, tuple | list):
        return "(" + ", ".join(describe(value) for value in values) + ")"
    if is_record(values):
        inside = ", ".join(f"{name}: {describe(getattr(values, name))}" for name in field_names(values))
        return f"{type(values).__name__}({inside})"
    if isinstance(values, torch.Tensor):
        return f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
    return type(values).__name__


def aligned(labels: Tensors, predictions: Tensors) -> Tensors:
    """Labels ``[N]`` as ``[N, 1]`` for predictions of that shape, for feeds that are not the user's own."""
    both = isinstance(labels, torch.Tensor) and isinstance(predictions, torch.Tensor)
    if both and predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        return labels[..., None]
    return labels


def join(parts: Sequence[Tensors]) -> Tensors:
    """Nested tensors of several minibatches as those of one; None if they cannot be joined."""
    flat = [leaves(part) for part in parts]
    kinds = {tuple((one.dtype, one.device, one.layout, one.ndim, one.shape[1:]) for one in each) for each in flat}
    plain = all(one.ndim and one.layout is torch.strided and not one.is_quantized for one in flat[0])
    if len(kinds) > 1 or not flat[0] or not plain:
        return None
    joined = iter([torch.cat(list(column)) for column in zip(*flat, strict=True)])
    return map_tensors(lambda _: next(joined), parts[0])


def cut(values: Tensors, start: int, end: int) -> Tensors:
    """Some of the records of nested tensors; None if they cannot be cut."""
    if any(not leaf.ndim for leaf in leaves(values)):
        return None
    return map_tensors(lambda tensor: tensor[start:end], values)
