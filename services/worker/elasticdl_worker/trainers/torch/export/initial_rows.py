"""First rows of open tables in exported programs, which have no parameter servers; in operations of PyTorch.

``elasticdl_runtime.initializers.initial_values`` says which rows: numbers follow from seed, id and column.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import (
    ATTEMPT,
    CONSTANT,
    GOLDEN,
    NORMAL,
    TRUNCATED_NORMAL,
    make_initializer,
    stream_of,
)

_ATTEMPTS = 24
"""Draws of a truncated normal number; that all are too far out happens to one number in 10^32."""


class TorchInitialRows:
    """Makes first rows of one table."""

    def __init__(self, spec: TableSpec) -> None:
        self._made = make_initializer(spec)
        self._dim = spec.dim
        self._stream = torch.from_numpy(stream_of(self._made.seed).view(np.int64).copy())
        columns = np.arange(1, spec.dim + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        self._columns = torch.from_numpy(columns.view(np.int64).copy())

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of int64 ids of any shape, ``[..., dim]``."""
        made = self._made
        if made.kind == CONSTANT:
            return torch.full((*ids.shape, self._dim), made.a, dtype=torch.float32)
        counters = _hash(ids + self._stream)[..., None] + self._columns
        if made.kind == NORMAL:
            numbers = _normal(_hash(counters))
        elif made.kind == TRUNCATED_NORMAL:
            numbers = _near(counters)
        else:
            fraction = _shifted(_hash(counters), 11).to(torch.float64) / float(1 << 53)
            return (made.a + (made.b - made.a) * fraction).to(torch.float32)
        return (made.a + made.b * numbers).to(torch.float32)


def _near(counters: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers, those over 2 drawn again."""
    numbers = _normal(_hash(counters))
    for _ in range(_ATTEMPTS):
        far = numbers.abs() > 2.0
        counters = torch.where(far, counters + _signed(ATTEMPT), counters)
        numbers = torch.where(far, _normal(_hash(counters)), numbers)
    return numbers


def _hash(values: torch.Tensor) -> torch.Tensor:
    """``elasticdl_runtime.partition.hash_ids`` in int64, whose products wrap around as those of uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ _shifted(values, shift)) * _signed(factor)
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """int64 shifted to the right without its sign."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _normal(bits: torch.Tensor) -> torch.Tensor:
    first = (_shifted(bits, 32).to(torch.float64) + 0.5) / float(1 << 32)
    second = (bits & 0xFFFFFFFF).to(torch.float64) / float(1 << 32)
    return torch.sqrt(-2.0 * torch.log(first)) * torch.cos(2.0 * math.pi * second)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
