"""Nested tensors: dicts, lists, tuples with or without names and dataclasses of them, also of kinds of one's own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from elasticdl_worker.trainers.minibatch import Tensors


def leaves(values: Tensors) -> list[torch.Tensor]:
    """The tensors of nested ones, in order."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [leaf for one in _members(values) for leaf in leaves(one)]


def map_tensors(function: Callable[[torch.Tensor], Any], values: Tensors) -> Tensors:
    """Nested tensors with a function applied to each; containers keep their kind, and what else they hold."""
    if isinstance(values, torch.Tensor):
        return function(values)
    return map_members(partial(map_tensors, function), values)


def map_members(function: Callable[[Any], Any], values: Any) -> Any:
    """A container of the same kind with a function applied to each member; what is no container as it is."""
    if isinstance(values, Mapping):
        return _with_items(values, {key: function(value) for key, value in values.items()})
    if isinstance(values, tuple | list):
        return _with_elements(values, [function(value) for value in values])
    if is_record(values):
        twin = copy.copy(values)
        for field in dataclasses.fields(values):
            object.__setattr__(twin, field.name, function(getattr(values, field.name)))
        return twin
    return values


def is_record(values: object) -> bool:
    """Whether a value is an object of a dataclass."""
    return dataclasses.is_dataclass(values) and not isinstance(values, type)


def field_names(values: Any) -> tuple[str, ...]:
    """The names of the members of a named tuple or a dataclass; none of anything else."""
    if is_record(values):
        return tuple(field.name for field in dataclasses.fields(values))
    return tuple(getattr(values, "_fields", ()))


def _members(values: Any) -> Sequence[Any]:
    if isinstance(values, Mapping):
        return list(values.values())
    if isinstance(values, tuple | list):
        return values
    return [getattr(values, name) for name in field_names(values)] if is_record(values) else ()


def _with_items(values: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    if type(values) is dict:
        return made
    twin: Any = copy.copy(values)  # what a library made of a ``dict`` has attributes
    for key, value in made.items():
        twin[key] = value
    return twin


def _with_elements(values: tuple[Any, ...] | list[Any], made: list[Any]) -> Any:
    kind: Any = type(values)
    if isinstance(values, list):
        if kind is list:
            return made
        twin = copy.copy(values)
        twin[:] = made
        return twin
    if kind is tuple or hasattr(kind, "n_sequence_fields"):  # the latter are what torch.max and others return
        return kind(made)
    twin_of_tuple = tuple.__new__(kind, made)  # its own ``__new__`` may take something else
    if hasattr(values, "__dict__"):
        twin_of_tuple.__dict__.update(vars(values))
    return twin_of_tuple
