"""Placement on parameter servers: rows by a hash of the id, dense parameters in size-balanced slices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import DenseSpec

_SPLIT_ELEMENTS = 1 << 18
"""Parameters of at least this many elements (1 MB of float32) may be split over several PS."""

_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class DenseSlice:
    """Elements ``[start, stop)`` of a flattened dense parameter, held by PS ``ps``."""

    name: str
    start: int
    stop: int
    ps: int


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Mixes ids so that any pattern in them spreads evenly (the finaliser of SplitMix64, Steele et al. 2014).

    Args:
        ids: int64 of any shape.

    Returns:
        uint64 of the same shape.
    """
    mixed = ids.astype(np.uint64)
    mixed ^= mixed >> _30
    mixed *= _FIRST_FACTOR
    mixed ^= mixed >> _27
    mixed *= _SECOND_FACTOR
    mixed ^= mixed >> _31
    return mixed


def ps_of_ids(ids: NDArray[np.int64], num_ps: int) -> NDArray[np.int64]:
    """The PS that holds each id: the high bits of the hash, which no PS uses for its own table.

    Args:
        ids: int64 of any shape.
        num_ps: number of PS, at most 65,536.

    Returns:
        int64 of the same shape, in ``[0, num_ps)``.
    """
    high = hash_ids(ids)
    high >>= _32
    high *= np.uint64(num_ps)
    high >>= _32
    return high.view(np.int64)


def place_dense(specs: Sequence[DenseSpec], num_ps: int) -> list[DenseSlice]:
    """Places dense parameters: large ones in equal slices over all PS, others largest first on the lightest PS.

    Those that have to be ``whole`` are not cut, however large.

    The placement is a pure function of its arguments, so that every worker and a restore agree on it.

    Args:
        specs: the dense parameters, in any order.
        num_ps: number of PS.

    Returns:
        The slices, sorted by parameter name and start. An empty parameter gets one empty slice.
    """
    load = [(0, ps) for ps in range(num_ps)]
    heapq.heapify(load)
    slices: list[DenseSlice] = []
    for spec in sorted(specs, key=lambda s: (-s.size, s.name)):
        if num_ps > 1 and spec.size >= _SPLIT_ELEMENTS and not spec.whole:
            bounds = [spec.size * part // num_ps for part in range(num_ps + 1)]
            slices += [DenseSlice(spec.name, bounds[ps], bounds[ps + 1], ps) for ps in range(num_ps)]
            load = [(weight + bounds[ps + 1] - bounds[ps], ps) for weight, ps in load]
            heapq.heapify(load)
        else:
            weight, ps = heapq.heappop(load)
            slices.append(DenseSlice(spec.name, 0, spec.size, ps))
            heapq.heappush(load, (weight + spec.size, ps))
    return sorted(slices, key=lambda s: (s.name, s.start))
