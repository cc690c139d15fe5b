"""The axis along which a tensor has its records: not always the first, as in outputs of recurrent models by time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors

Axes = Sequence[int]
"""Of each leaf of nested tensors, in their order; empty for the first of all."""


def are_certain(values: Tensors, records: int) -> bool:
    """Whether nested tensors can have their records along the first axis only."""
    return all(leaf.ndim < 2 or (len(leaf) == records and records not in leaf.shape[1:]) for leaf in leaves(values))


def axes_by(values: Tensors, records: int, others: Tensors, other_records: int) -> Axes:
    """The axes that are as long as there are records, or many times that; the first one where none is.

    Args:
        values: of so many ``records``.
        records: of them.
        others: of another number of records.
        other_records: how many these are.
    """
    pairs = list(zip(leaves(values), leaves(others), strict=False))
    return [_axis_of(one.shape, records, other.shape, other_records) for one, other in pairs]


def records_first(values: Tensors, axes: Axes) -> Tensors:
    """Nested tensors with their records along the first axis."""
    return _moved(values, axes, lambda leaf, axis: leaf.movedim(axis, 0))


def as_they_were(values: Tensors, axes: Axes) -> Tensors:
    """Nested tensors whose records are along the first axis with records where they were."""
    return _moved(values, axes, lambda leaf, axis: leaf.movedim(0, axis))


def _axis_of(shape: torch.Size, records: int, other: torch.Size, other_records: int) -> int:
    if len(shape) != len(other):
        return 0
    for axis, (size, other_size) in enumerate(zip(shape, other, strict=True)):
        if size != other_size and size * other_records == other_size * records:
            return axis
    return 0


def _moved(values: Tensors, axes: Axes, move: Callable[[torch.Tensor, int], torch.Tensor]) -> Tensors:
    if not any(axes):
        return values
    left = iter(axes)

    def one(leaf: torch.Tensor) -> torch.Tensor:
        axis = next(left, 0)
        return move(leaf, axis) if 0 < axis < leaf.ndim else leaf

    return map_tensors(one, values)
