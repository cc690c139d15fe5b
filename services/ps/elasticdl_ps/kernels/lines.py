"""Layout of a map from id to row in memory; ``compiled.rows`` says how it is used.

A map is uint32 ``[16 * lines]``, beginning at a cache line. A line is 12 row numbers plus one (0: empty), 12 tags of
one byte, and one spare word. A slot so takes 5 bytes and a third, which is less than a row number and a wide tag
would take, and the tags of a line are compared by one instruction. Slots of a line are used in order.

An id belongs to line ``low * lines >> 32``, ``low`` being the low half of its hash: so there may be any number of
lines, and lines are in the order of ``low``. From a line that is full an id goes on to the next, beyond the last if
need be. A map grows where it is, from its end to its beginning, a few lines at a time: ids with ``low`` from some
number on lie as in a map of the new number of lines, those below as before. What a map's shape says, uint64 ``[3]``:
lines before, lines after, and that number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORDS = 16
"""Words of four bytes in a line."""
SLOTS = 12
"""Entries in a line."""
LINE_BYTES = 64
BEFORE, AFTER, GROWN_FROM = 0, 1, 2
"""What lies where in a shape."""
NONE_GROWN = 1 << 32


def make_map(lines: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """An empty map, with as many lines again to grow and go on to, and its shape."""
    memory = np.zeros((2 * lines + 1) * WORDS, np.uint32)
    skipped = -memory.ctypes.data % LINE_BYTES // 4
    made: NDArray[np.uint32] = memory[skipped : skipped + 2 * lines * WORDS]
    return made, np.array([lines, lines, 0], np.uint64)
