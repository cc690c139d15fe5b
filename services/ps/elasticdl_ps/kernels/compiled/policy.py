"""Compiled kernels of tables whose rows come and go: rows in given places, and sightings counted in little memory.

Sightings of ids without rows are counted by a count-min sketch (Cormode and Muthukrishnan 2005): ``[4, 2^k]`` bytes,
an id having one counter in each line and its count being the least of them. So a count is never too low, seldom too
high, and takes the same memory whatever the number of ids; a map from id to count would grow by every id that comes
once, which is what admission is to prevent.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
# (numba infers the types of what it compiles.)

from __future__ import annotations

import numpy as np
from numba import njit

from elasticdl_ps.kernels.compiled.initial import _fill
from elasticdl_ps.kernels.compiled.rows import hash_id, line_of, place, tag_of

_S32 = np.uint64(32)
_ONE = np.uint64(1)
_LARGEST = np.uint8(255)


@njit(nogil=True, cache=True)
def enter(table, shape, keys, ids, rows):
    """Gives ids that the map does not have the rows ``rows``, whose keys and entries it sets."""
    base = table.ctypes.data
    before, after, grown_from = shape[0], shape[1], shape[2]
    for i in range(ids.shape[0]):
        row = rows[i]
        keys[row] = ids[i]
        code = hash_id(ids[i])
        place(line_of(base, before, after, grown_from, code), tag_of(code), row)


@njit(nogil=True, cache=True, error_model="numpy")
def initialise_rows(arena, ids, rows, dim, kind, a, b, seed, slots):
    """Fills the rows ``rows`` of ids: values from the initialiser, slot ``s`` with ``slots[s]``."""
    for i in range(ids.shape[0]):
        record = arena[rows[i]]
        _fill(record, ids[i], dim, kind, a, b, seed)
        for s in range(slots.shape[0]):
            for j in range((s + 1) * dim, (s + 2) * dim):
                record[j] = slots[s]


@njit(nogil=True, cache=True)
def count_sightings(sketch, ids, out):
    """Counts one sighting of each id; ``out`` gets their counts with this one, up to 255.

    All counts are read before any is raised, so that the result does not depend on the order of ids.

    Args:
        sketch: uint8 ``[depth, 2^k]``.
        ids: int64 ``[n]``, all different.
        out: uint8 ``[n]``, set.
    """
    mask = np.uint64(sketch.shape[1] - 1)
    for i in range(ids.shape[0]):
        code = hash_id(ids[i])
        step = (code >> _S32) | _ONE
        at = code
        least = _LARGEST
        for line in range(sketch.shape[0]):
            least = min(least, sketch[line, at & mask])
            at += step
        out[i] = least + (least < _LARGEST)
    for i in range(ids.shape[0]):
        code = hash_id(ids[i])
        step = (code >> _S32) | _ONE
        at = code
        for line in range(sketch.shape[0]):
            sketch[line, at & mask] = max(sketch[line, at & mask], out[i])
            at += step
