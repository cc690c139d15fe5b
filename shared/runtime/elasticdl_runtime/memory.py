"""Memory of a process: the C library's allocator and Python's collector, told what a process does with them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 1 << 30


def keep_large_blocks() -> bool:
    """Stops glibc from giving the memory of each large message back to the kernel, only to fault it in again.

    Returns:
        Whether it worked; other C libraries have no such switch.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, _THRESHOLD_BYTES))


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
