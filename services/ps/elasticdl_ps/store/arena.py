"""Arenas: arrays of rows that grow without moving."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import psutil
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_HUGE_FROM = 8 << 20
"""Bytes after which an arena asks for huge pages; below, their rounding would waste more than it wins."""
_MAX_ROWS = (1 << 32) - 2


class Arena:
    """A two-dimensional array with room for as many rows as the machine has memory.

    The room is address space only: the kernel gives memory to a page when it is first written. So growing copies
    nothing, rows never move, and readers need not stop.

    Args:
        width: columns.
        dtype: float32, int64 or uint32.
        max_bytes: the room; the machine's memory by default.
    """

    def __init__(
        self, width: int, dtype: type[np.float32 | np.int64 | np.uint32], max_bytes: int | None = None
    ) -> None:
        self.row_bytes = width * np.dtype(dtype).itemsize
        wanted = psutil.virtual_memory().total if max_bytes is None else max_bytes
        memory = _reserve(max(wanted, self.row_bytes))
        self.max_rows = min(len(memory) // self.row_bytes, _MAX_ROWS)
        flat: NDArray[np.generic] = np.frombuffer(memory, dtype, self.max_rows * width)
        self.array: NDArray[np.generic] = flat.reshape(self.max_rows, width)
        """All rows, those never written being zero."""


def _reserve(size: int) -> mmap.mmap:
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    while True:
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            break
        except OSError as error:
            # A limit on address space, or strict overcommit: a smaller table is better than none.
            size = size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
            if size < 1 << 24:
                raise ElasticDLError(
                    f"cannot reserve address space for an embedding table: {error}",
                    fix="raise the limit on virtual memory (ulimit -v), or use more parameter servers",
                ) from None
    if size > 2 * _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE, _HUGE_FROM, size - _HUGE_FROM)
        except OSError:
            pass  # the kernel is built without huge pages: slower, not wrong
    return memory
