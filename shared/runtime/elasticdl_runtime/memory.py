"""Memory of a process: the C library's allocator and Python's collector, told what a process does with them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_THRESHOLD_BYTES = 1 << 30


def keep_large_blocks() -> bool:
    """Stops glibc from giving the memory of each large message back to the kernel, only to fault it in again.

    Returns:
        Whether it worked; other C libraries have no such switch.
    """
    return all(_tell_allocator(option, _THRESHOLD_BYTES) for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))


def keep_one_heap() -> bool:
    """Has threads that begin from now on allocate from the process' heap, for which ``keep_large_blocks`` counts.

    A thread's own heap of glibc is made of pieces of 64 MiB. What does not fit into one is mapped for itself, and a
    piece that nothing is left in goes back to the kernel at once, whatever the thresholds are.

    Returns:
        Whether it worked; other C libraries have no such switch.
    """
    return _tell_allocator(_M_ARENA_MAX, 1)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Looks for no cycles meanwhile: for work that makes many objects, of which all stay and none are in a cycle."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _tell_allocator(option: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(option, value))
