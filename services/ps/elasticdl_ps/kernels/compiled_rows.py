"""Compiled kernels of embedding tables: the map from id to row, and copies of rows.

A map is an array of 2^k uint64 entries, open addressing with linear probing: ``tag << 32 | row + 1``, 0 where empty.
The tag is the high half of the id's hash, the bucket comes from the low half; ids themselves lie in ``keys[row]``, so
that an entry takes 8 bytes whatever the id. While a table grows it has two maps: ``new``, which takes all inserts,
and ``old`` (empty array: none), whose rows are moved over a few at a time.

All kernels release the GIL and trust their arguments: bounds, shapes and dtypes are checked where requests come in.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
# (numba infers the types of what it compiles.)

from __future__ import annotations

import numpy as np
from numba import njit

from elasticdl_ps.kernels.intrinsics import prefetch
from elasticdl_ps.kernels.lanes import eight, read, write

_AHEAD = 12
"""How many rows ahead memory is asked for: about its latency over the time a row takes."""
_LINE = 64
_MOST_BYTES = 4096
_U32 = np.uint64(0xFFFFFFFF)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_AHEAD_U, _FAR_U = np.uint64(_AHEAD), np.uint64(2 * _AHEAD)
_EXPONENT = np.uint32(0x7F800000)
_EIGHT_BYTES = 32
_LONG_ROW = 128
_ZERO = np.float32(0)


@njit(nogil=True, cache=True, inline="always")
def hash_id(key):
    """The hash of ``elasticdl_runtime.partition.hash_ids``."""
    x = np.uint64(key)
    x ^= x >> _S30
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


@njit(nogil=True, cache=True, inline="always")
def _probe(table, keys, key, code):
    """Row of a key, or -1."""
    mask = np.uint64(table.shape[0] - 1)
    tag = code >> _S32
    at = code & mask
    while True:
        entry = table[at]
        if entry == np.uint64(0):
            return np.int64(-1)
        if entry >> _S32 == tag:
            row = (entry & _U32) - _ONE
            if keys[row] == key:
                return np.int64(row)
        at = (at + _ONE) & mask


@njit(nogil=True, cache=True, inline="always")
def _place(table, code, row):
    """Enters a row whose key is not in the map."""
    mask = np.uint64(table.shape[0] - 1)
    at = code & mask
    while table[at] != np.uint64(0):
        at = (at + _ONE) & mask
    table[at] = ((code >> _S32) << _S32) | np.uint64(row + 1)


@njit(nogil=True, cache=True, inline="always")
def _ask(table, table_base, keys_base, query, i):
    """Prefetches the bucket of ``query[i + 2 * _AHEAD]``, and the key that the bucket of ``i + _AHEAD`` names.

    Addresses come from outside the loop: to ask an array for its own costs two atomic operations.
    """
    n = np.uint64(query.shape[0])
    mask = np.uint64(table.shape[0] - 1)
    if i + _FAR_U < n:
        at = hash_id(query[i + _FAR_U]) & mask
        prefetch(table_base + np.int64(at) * 8)
    if i + _AHEAD_U < n:
        entry = table[hash_id(query[i + _AHEAD_U]) & mask]
        if entry != np.uint64(0):
            prefetch(keys_base + (np.int64(entry & _U32) - 1) * 8)


@njit(nogil=True, cache=True)
def find(new, old, keys, query, out):
    """Looks ids up; ``out`` gets rows, -1 where missing. Returns the number missing."""
    missing = 0
    new_base, keys_base = new.ctypes.data, keys.ctypes.data
    for i in range(np.uint64(query.shape[0])):
        _ask(new, new_base, keys_base, query, i)
        key = query[i]
        code = hash_id(key)
        row = _probe(new, keys, key, code)
        if row < 0 and old.shape[0] > 0:
            row = _probe(old, keys, key, code)
        out[i] = row
        if row < 0:
            missing += 1
    return missing


@njit(nogil=True, cache=True)
def find_or_insert(new, old, keys, query, out, count):
    """Looks ids up and gives missing ones rows ``count``, ``count + 1``, ...; returns the new count.

    ``keys`` and ``new`` have room for ``len(query)`` more. A missing id that comes twice gets one row.
    """
    new_base, keys_base = new.ctypes.data, keys.ctypes.data
    for i in range(np.uint64(query.shape[0])):
        _ask(new, new_base, keys_base, query, i)
        key = query[i]
        code = hash_id(key)
        row = _probe(new, keys, key, code)
        if row < 0 and old.shape[0] > 0:
            row = _probe(old, keys, key, code)
        if row < 0:
            row = np.int64(count)
            keys[row] = key
            _place(new, code, row)
            count += 1
        out[i] = row
    return count


@njit(nogil=True, cache=True)
def migrate(new, keys, start, stop):
    """Enters rows ``[start, stop)``, which are in the old map only, into the new one."""
    mask = np.uint64(new.shape[0] - 1)
    base = new.ctypes.data
    for row in range(start, stop):
        if row + _AHEAD < stop:
            prefetch(base + np.int64(hash_id(keys[row + _AHEAD]) & mask) * 8)
        _place(new, hash_id(keys[row]), row)


@njit(nogil=True, cache=True)
def has_duplicates(ids):
    """Whether an id occurs twice."""
    size = 16
    while size < 2 * ids.shape[0]:
        size *= 2
    seen = np.zeros(size, np.uint32)
    mask = np.uint64(size - 1)
    for i in range(ids.shape[0]):
        at = hash_id(ids[i]) & mask
        while seen[at] != 0:
            if ids[seen[at] - 1] == ids[i]:
                return True
            at = (at + _ONE) & mask
        seen[at] = i + 1
    return False


@njit(nogil=True, cache=True)
def merge_rows(ids, values, out_ids, out_values):
    """Adds up the rows of equal ids, in order of first occurrence; returns the number of different ids.

    Args:
        ids: int64 ``[n]``.
        values: float32 ``[n, dim]``.
        out_ids: int64 ``[n]``; the first of them are set.
        out_values: float32 ``[n, dim]``; the first of them are set.
    """
    slots = 16
    while slots < 2 * ids.shape[0]:
        slots *= 2
    seen = np.zeros(slots, np.uint32)
    mask = np.uint64(slots - 1)
    size = values.shape[1] * 4
    wide = size // _EIGHT_BYTES * _EIGHT_BYTES
    value, first = values.ctypes.data, out_values.ctypes.data
    count = np.uint64(0)
    n = np.uint64(ids.shape[0])
    for i in range(n):
        if size >= _LONG_ROW and i + _AHEAD_U < n:
            # Sums of short rows stay in the cache.
            row = seen[hash_id(ids[i + _AHEAD_U]) & mask]
            if row != 0:
                total = first + np.int64(np.uint64(row) - _ONE) * size
                for line in range(0, min(size, _MOST_BYTES), _LINE):
                    prefetch(total + line)
        key = ids[i]
        at = hash_id(key) & mask
        while seen[at] != 0 and out_ids[np.uint64(seen[at]) - _ONE] != key:
            at = (at + _ONE) & mask
        if seen[at] == 0:
            out_ids[count] = key
            _copy(value, first + np.int64(count) * size, wide, size)
            count += _ONE
            seen[at] = count
        else:
            total = first + np.int64(np.uint64(seen[at]) - _ONE) * size
            for j in range(0, wide, _EIGHT_BYTES):
                write(total + j, read(total + j, eight()) + read(value + j, eight()))
            for j in range(wide, size, 4):
                write(total + j, read(total + j, _ZERO) + read(value + j, _ZERO))
        value += size
    return count


@njit(nogil=True, cache=True, inline="always")
def _copy(source, target, wide, size):
    """Copies ``size`` bytes of float32 numbers, ``wide`` of them eight numbers at a time."""
    for j in range(0, wide, _EIGHT_BYTES):
        write(target + j, read(source + j, eight()))
    for j in range(wide, size, 4):
        write(target + j, read(source + j, _ZERO))


@njit(nogil=True, cache=True)
def gather(arena, rows, out):
    """Copies the first ``out.shape[1]`` columns of rows; where a row is negative ``out`` stays as it is."""
    size = out.shape[1] * 4
    wide = size // _EIGHT_BYTES * _EIGHT_BYTES
    base, stride = arena.ctypes.data, arena.strides[0]
    target, target_stride = out.ctypes.data, out.strides[0]
    ahead = min(size, _MOST_BYTES)
    n = rows.shape[0]
    for i in range(n):
        if i + _AHEAD < n and rows[i + _AHEAD] >= 0:
            at = base + rows[i + _AHEAD] * stride
            for line in range(0, ahead, _LINE):
                prefetch(at + line)
        if rows[i] >= 0:
            _copy(base + rows[i] * stride, target, wide, size)
        target += target_stride


@njit(nogil=True, cache=True)
def scatter(arena, rows, values):
    """Sets the first ``values.shape[1]`` columns of rows."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(values.shape[1]):
            arena[row, j] = values[i, j]


@njit(nogil=True, cache=True)
def all_finite(bits):
    """Whether float32 numbers, given as uint32, hold neither infinity nor NaN."""
    bad = np.uint32(0)
    for i in range(bits.shape[0]):
        bad |= np.uint32((bits[i] & _EXPONENT) == _EXPONENT)
    return bad == 0
