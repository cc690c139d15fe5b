"""Arenas: arrays of rows that grow without copying them."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import psutil
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_FIRST_BYTES = 8 << 20
"""The room to begin with, without huge pages, whose rounding would waste more than it wins."""
_GROWN_BYTES = 1 << 30
"""The least room once that is full, with huge pages."""
_GROWTH = 4
_MAX_ROWS = (1 << 32) - 2


class Arena:
    """A two-dimensional array with room for some rows, and for as many as the machine has memory when that is asked.

    The room is address space only: the kernel gives memory to a page when it is first written. It grows as it fills,
    because address space is not without end either, and there are several arenas for each table. To grow moves the
    kernel's entries of pages, and copies nothing.

    Not safe for threads: who has an arena keeps others from it while it grows, and keeps no view of it.

    Args:
        width: columns.
        dtype: float32, int64 or uint32.
        max_bytes: the most room that it may ever have; the machine's memory by default.
        rows: how many there is to be room for at once.

    Attributes:
        row_bytes: bytes of a row.
        max_rows: how many rows there may ever be.
        room: how many there is room for now.
        array: ``[room, width]``; rows never written are zero. Another one after each growth.
        flat: the same, ``[room * width]``.
    """

    array: NDArray[np.generic]
    flat: NDArray[np.generic]

    def __init__(
        self,
        width: int,
        dtype: type[np.float32 | np.int64 | np.uint32],
        max_bytes: int | None = None,
        *,
        rows: int = 0,
    ) -> None:
        self.row_bytes = width * np.dtype(dtype).itemsize
        limit = psutil.virtual_memory().total if max_bytes is None else max_bytes
        self.max_rows = min(max(limit // self.row_bytes, 1), _MAX_ROWS)
        self._width, self._dtype = width, dtype
        first = min(max(_FIRST_BYTES, self.row_bytes), self.max_rows * self.row_bytes)
        self._memory = _reserve(first, self.row_bytes)
        self._look()
        self.require(rows)

    def require(self, rows: int) -> None:
        """Makes room for so many rows in all.

        Raises:
            ElasticDLError: there is none; all is as it was.
        """
        if rows <= self.room:
            return
        if rows > self.max_rows:
            raise ElasticDLError(
                f"an embedding table has no room beyond {self.max_rows:,} rows",
                fix="use more parameter servers (--num_ps_pods) or machines with more memory",
            )
        wanted = max(rows * self.row_bytes, _GROWTH * len(self._memory), _GROWN_BYTES)
        try:
            self._grow(rows * self.row_bytes, min(wanted, self.max_rows * self.row_bytes))
        finally:
            self._look()

    def _look(self) -> None:
        self.room = min(len(self._memory) // self.row_bytes, self.max_rows)
        self.flat = np.frombuffer(self._memory, self._dtype, self.room * self._width)
        self.array = self.flat.reshape(self.room, self._width)

    def _grow(self, least: int, wanted: int) -> None:
        # Memory that is looked at cannot be moved.
        self.array = self.flat = np.empty(0, self._dtype)
        for size in _sizes(wanted, least):
            try:
                self._memory.resize(size)
                break
            except OSError as error:
                if size <= _pages(least):
                    raise _no_space(error) from None
            except (BufferError, SystemError):
                # Somebody still looks at it, such as the frame of an error, or this system cannot move memory.
                moved = _reserve(wanted, least)
                moved[: len(self._memory)] = self._memory
                self._memory = moved
                break
        _use_huge_pages(self._memory)


def _reserve(wanted: int, least: int) -> mmap.mmap:
    for size in _sizes(wanted, least):
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except OSError as error:
            if size <= _pages(least):
                raise _no_space(error) from None
    raise AssertionError("the last size is the least")


def _sizes(wanted: int, least: int) -> list[int]:
    """The sizes to ask for, one after the other: a limit on address space, or strict overcommit, may leave less."""
    sizes = [_pages(wanted)]
    while sizes[-1] > _pages(least):
        sizes.append(max(_pages(sizes[-1] // 2), _pages(least)))
    return sizes


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _use_huge_pages(memory: mmap.mmap) -> None:
    """Asks for huge pages of all of it: what is not alike throughout cannot be moved at once."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # the kernel is built without huge pages: slower, not wrong


def _no_space(error: OSError) -> ElasticDLError:
    return ElasticDLError(
        f"cannot reserve address space for an embedding table: {error}",
        fix="raise the limit on virtual memory (ulimit -v), or use more parameter servers",
    )
