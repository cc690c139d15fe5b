"""Compiled kernels of embedding tables: the map from id to row, and copies of rows.

A map is an array of cache lines of twelve entries; ``lines`` says how it lies in memory and how it grows. The tag, a
byte, comes from the high half of the hash. Ids themselves lie in ``keys[row]``, so that an entry takes little
whatever the id. An entry whose row has another key by now is stale and does no harm, because keys are compared.

All kernels release the GIL and trust their arguments: bounds, shapes and dtypes are checked where requests come in.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
# (numba infers the types of what it compiles.)

from __future__ import annotations

import numpy as np
from numba import njit

from elasticdl_core.model import NO_ID
from elasticdl_ps.kernels.compiled.intrinsics import (
    empty_words,
    equal_bytes,
    lowest_bit,
    prefetch,
    read_long,
    read_word,
    write_byte,
    write_long,
    write_word,
)
from elasticdl_ps.kernels.compiled.lanes import eight, read, write
from elasticdl_ps.kernels.lines import SLOTS, WORDS

_AHEAD = 12
"""How many rows ahead memory is asked for: about its latency over the time a row takes."""
_LINE = 64
_MOST_BYTES = 4096
_U32 = np.uint64(0xFFFFFFFF)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NONE, _ONE, _TWO, _SIX = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(6)
_NO_ID = np.int64(NO_ID)
_EMPTY = np.uint32(0)
_LOW_BYTE = np.uint64(0xFF)
_LAST_SLOT_AT = 4 * (SLOTS - 1)
_LAST_BIT = np.uint64(1 << (SLOTS - 1))
_ALL_SLOTS = np.uint64((1 << SLOTS) - 1)
_TAGS_AT = 4 * SLOTS
_FAR = 2 * _AHEAD
_FAR_U = np.uint64(_FAR)
_EXPONENT = np.uint32(0x7F800000)
_EIGHT_BYTES = 32
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
def line_of(base, before, after, grown_from, code):
    """Address of the line that an id with this hash belongs to."""
    low = code & _U32
    lines = after if low >= grown_from else before
    return base + np.int64(((low * lines) >> _S32) << _SIX)


@njit(nogil=True, cache=True, inline="always")
def tag_of(code):
    """The byte that tells most ids of a line apart."""
    return np.uint8((code >> _S32) & _LOW_BYTE)


@njit(nogil=True, cache=True, inline="always")
def _probe(line, keys_base, key, tag):
    """Row of a key, or -1, from the address of its line on."""
    while True:
        found = equal_bytes(line + _TAGS_AT, tag) & _ALL_SLOTS
        while found != _NONE:
            entry = read_word(line + np.int64(lowest_bit(found) << _TWO))
            # With tag 0 an empty slot is found; its entry names the key before the first, which is never read.
            if entry != _EMPTY and read_long(keys_base + (np.int64(entry) - 1) * 8) == key:
                return np.int64(entry) - 1
            found &= found - _ONE
        if read_word(line + _LAST_SLOT_AT) == _EMPTY:
            return np.int64(-1)
        line += _LINE


@njit(nogil=True, cache=True, inline="always")
def place(line, tag, row):
    """Enters a row whose key is not in the map, from the address of its line on."""
    while read_word(line + _LAST_SLOT_AT) != _EMPTY:
        line += _LINE
    slot = np.int64(lowest_bit(empty_words(line)))
    write_word(line + 4 * slot, np.uint32(row + 1))
    write_byte(line + _TAGS_AT + slot, tag)


@njit(nogil=True, cache=True, inline="always")
def _ask_line(base, before, after, grown_from, id_at, codes, i):
    """Prefetches the line of id ``i``, which is at an address, and keeps the id's hash."""
    code = hash_id(read_long(id_at))
    write_long(codes + i * 8, np.int64(code))
    prefetch(line_of(base, before, after, grown_from, code))


@njit(nogil=True, cache=True, inline="always")
def _ask_key(base, before, after, grown_from, keys_base, codes, i):
    """Prefetches the key that the line of id ``i`` names."""
    code = np.uint64(read_long(codes + i * 8))
    line = line_of(base, before, after, grown_from, code)
    found = equal_bytes(line + _TAGS_AT, tag_of(code)) & _ALL_SLOTS
    if found == _NONE:
        # Most likely in the next line, if at all.
        line += _LINE
        found = equal_bytes(line + _TAGS_AT, tag_of(code)) | _LAST_BIT
    prefetch(keys_base + (np.int64(read_word(line + np.int64(lowest_bit(found) << _TWO))) - 1) * 8)


@njit(nogil=True, cache=True, inline="always")
def _look_up(base, before, after, grown_from, keys_base, ids, step, codes, n, i):
    """Line, tag and row (-1: none) of id ``i``; asks for what later ones need."""
    if i + _FAR < n:
        _ask_line(base, before, after, grown_from, ids + (i + _FAR) * step, codes, i + _FAR)
    if i + _AHEAD < n:
        _ask_key(base, before, after, grown_from, keys_base, codes, i + _AHEAD)
    code = np.uint64(read_long(codes + i * 8))
    line, tag = line_of(base, before, after, grown_from, code), tag_of(code)
    return line, tag, _probe(line, keys_base, read_long(ids + i * step), tag)


@njit(nogil=True, cache=True)
def find(table, shape, keys, query, out):
    """Looks ids up; ``out`` gets rows, -1 where missing. Returns the number missing."""
    missing = 0
    base, keys_base = np.int64(table.ctypes.data), np.int64(keys.ctypes.data)
    before, after, grown_from = shape[0], shape[1], shape[2]
    n = query.shape[0]
    # Until a row is known its place has the hash of the id.
    ids, step, codes = np.int64(query.ctypes.data), query.strides[0], np.int64(out.ctypes.data)
    for i in range(min(_FAR, n)):
        _ask_line(base, before, after, grown_from, ids + i * step, codes, i)
    for i in range(n):
        _, _, row = _look_up(base, before, after, grown_from, keys_base, ids, step, codes, n, i)
        write_long(codes + i * 8, row)
        missing += row < 0
    return missing


@njit(nogil=True, cache=True)
def find_or_insert(table, shape, keys, query, out, count):
    """Looks ids up and gives missing ones rows ``count``, ``count + 1``, ...; returns the new count.

    ``keys`` and the map have room for ``len(query)`` more. A missing id that comes twice gets one row.
    """
    base, keys_base = np.int64(table.ctypes.data), np.int64(keys.ctypes.data)
    before, after, grown_from = shape[0], shape[1], shape[2]
    n = query.shape[0]
    ids, step, codes = np.int64(query.ctypes.data), query.strides[0], np.int64(out.ctypes.data)
    for i in range(min(_FAR, n)):
        _ask_line(base, before, after, grown_from, ids + i * step, codes, i)
    for i in range(n):
        line, tag, row = _look_up(base, before, after, grown_from, keys_base, ids, step, codes, n, i)
        if row < 0:
            row = np.int64(count)
            write_long(keys_base + row * 8, read_long(ids + i * step))
            place(line, tag, row)
            count += 1
        write_long(codes + i * 8, row)
    return count


@njit(nogil=True, cache=True)
def grow(table, shape, keys, lines, stale):
    """Goes on with a map's growth by about so many lines; returns the number of stale entries, which are dropped.

    ``stale`` says whether there may be any.

    All entries of these lines are taken out and entered anew. So that none is cut off that a full line made go on,
    the lines up to the first that is not full are taken along.
    """
    base, keys_base = table.ctypes.data, keys.ctypes.data
    before, after = shape[0], shape[1]
    stop = np.int64((shape[2] * before) >> _S32)
    start = max(stop - lines, 0)
    while stop == start or read_word(base + (stop - 1) * _LINE + _LAST_SLOT_AT) != _EMPTY:
        stop += 1
    rows = np.empty((stop - start) * SLOTS, np.uint32)
    taken = 0
    for line in range(start, stop):
        for word in range(line * WORDS, line * WORDS + SLOTS):
            if table[word] == _EMPTY:
                break
            rows[taken] = table[word]
            taken += 1
        table[line * WORDS : (line + 1) * WORDS] = 0
    grown_from = (np.uint64(start << 32) + before - _ONE) // before
    shape[2] = grown_from
    dropped = 0
    for i in range(taken):
        if i + _AHEAD < taken:
            prefetch(keys_base + (np.int64(rows[i + _AHEAD]) - 1) * 8)
        row = np.int64(rows[i]) - 1
        key = read_long(keys_base + row * 8)
        code = hash_id(key)
        line = line_of(base, before, after, grown_from, code)
        # A row that was given to another id has an entry of that id too, and a free row needs none.
        if stale and (key == _NO_ID or _probe(line, keys_base, key, tag_of(code)) >= 0):
            dropped += 1
        else:
            place(line, tag_of(code), row)
    return dropped


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
    # Signed, because a uint64 that an int64 is added to becomes a float64.
    value, first = np.int64(values.ctypes.data), np.int64(out_values.ctypes.data)
    table = np.int64(seen.ctypes.data)
    count = np.uint64(0)
    n = np.uint64(ids.shape[0])
    for i in range(n):
        if i + _FAR_U < n:
            # Only of the table: to ask for the sums as well takes longer than it saves.
            prefetch(table + np.int64(hash_id(ids[i + _FAR_U]) & mask) * 4)
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
    target, target_stride = np.int64(out.ctypes.data), out.strides[0]
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
