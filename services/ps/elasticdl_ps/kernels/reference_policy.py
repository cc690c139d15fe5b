"""The kernels of ``compiled.policy`` in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticdl_ps.kernels.reference import Floats, Ids, Map, Shape, initial_values, place
from elasticdl_runtime.partition import hash_ids

_S32 = np.uint64(32)
_ONE = np.uint64(1)


def enter(table: Map, shape: Shape, keys: Ids, ids: Ids, rows: Ids) -> None:
    """See ``compiled.policy.enter``."""
    keys[rows] = ids
    place(table, shape, ids, rows)


def initialise_rows(
    arena: Floats,
    ids: Ids,
    rows: Ids,
    dim: int,
    kind: int,
    a: float,
    b: float,
    seed: int,
    slots: Floats,
) -> None:
    """See ``compiled.policy.initialise_rows``."""
    values = np.empty((len(ids), dim), np.float32)
    initial_values(values, ids, dim, kind, a, b, seed)
    arena[rows, :dim] = values
    for index, value in enumerate(slots):
        arena[rows, (index + 1) * dim : (index + 2) * dim] = value


def count_sightings(sketch: NDArray[np.uint8], ids: Ids, out: NDArray[np.uint8]) -> None:
    """See ``compiled.policy.count_sightings``."""
    codes = hash_ids(ids)
    step = (codes >> _S32) | _ONE
    lines = np.arange(len(sketch), dtype=np.uint64)[:, None]
    at = ((codes + lines * step) & np.uint64(sketch.shape[1] - 1)).astype(np.int64)
    flat = sketch.reshape(-1)
    at += (lines * np.uint64(sketch.shape[1])).astype(np.int64)
    least = flat[at].min(axis=0)
    out[:] = np.minimum(least, 254) + 1
    np.maximum.at(flat, at.reshape(-1), np.tile(out, len(sketch)))
