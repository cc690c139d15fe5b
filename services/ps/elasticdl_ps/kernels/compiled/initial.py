"""Compiled kernels that make the first values of rows.

Numbers come from a counter, not from a state: the SplitMix64 finaliser of (seed, id, column, attempt). So a row is
the same on whichever PS and in whichever order rows are made.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
# (numba infers the types of what it compiles.)

from __future__ import annotations

import math

import numpy as np
from numba import njit

from elasticdl_ps.kernels.compiled.rows import hash_id
from elasticdl_runtime.initializers import ATTEMPT, CONSTANT, GOLDEN, NORMAL, TRUNCATED_NORMAL

_GOLDEN, _ATTEMPT = np.uint64(GOLDEN), np.uint64(ATTEMPT)
_S11, _S32 = np.uint64(11), np.uint64(32)
_U32 = np.uint64(0xFFFFFFFF)
_2_53 = 1.0 / (1 << 53)
_2_32 = 1.0 / (1 << 32)


@njit(nogil=True, cache=True, inline="always")
def _normal(bits):
    """A standard normal number (Box and Muller 1958) from 64 random bits."""
    first = (np.float64(bits >> _S32) + 0.5) * _2_32
    second = np.float64(bits & _U32) * _2_32
    return math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(out, key, dim, kind, a, b, seed):
    """Sets ``out[:dim]`` to the first values of an id."""
    if kind == CONSTANT:
        for j in range(dim):
            out[j] = np.float32(a)
        return
    stream = hash_id(np.uint64(key) + hash_id(np.uint64(seed) + _GOLDEN))
    for j in range(dim):
        counter = stream + np.uint64(j + 1) * _GOLDEN
        bits = hash_id(counter)
        if kind == NORMAL:
            out[j] = np.float32(a + b * _normal(bits))
        elif kind == TRUNCATED_NORMAL:
            z = _normal(bits)
            while abs(z) > 2.0:
                counter += _ATTEMPT
                z = _normal(hash_id(counter))
            out[j] = np.float32(a + b * z)
        else:
            out[j] = np.float32(a + (b - a) * (np.float64(bits >> _S11) * _2_53))


@njit(nogil=True, cache=True, error_model="numpy")
def initialise(arena, keys, start, stop, dim, kind, a, b, seed, slots):
    """Fills rows ``[start, stop)``: values from the initialiser, slot ``s`` with ``slots[s]``."""
    for row in range(start, stop):
        _fill(arena[row], keys[row], dim, kind, a, b, seed)
        for s in range(slots.shape[0]):
            for j in range((s + 1) * dim, (s + 2) * dim):
                arena[row, j] = slots[s]


@njit(nogil=True, cache=True, error_model="numpy")
def initial_values(out, ids, dim, kind, a, b, seed):
    """Sets ``out[i, :dim]`` to the first values of ``ids[i]``, without a table."""
    for i in range(ids.shape[0]):
        _fill(out[i], ids[i], dim, kind, a, b, seed)
