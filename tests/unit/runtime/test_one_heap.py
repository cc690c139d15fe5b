"""Threads keep the memory that they free, where a process keeps one heap."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.unit, pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux'")]

SCRIPT = """
import ctypes, resource, threading
from elasticdl_runtime.memory import keep_large_blocks, keep_one_heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
SIZE = 100 << 20

def take_and_free():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    block = libc.malloc(SIZE)
    ctypes.memset(block, 1, SIZE)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

def work():
    take_and_free()
    print(max(take_and_free() for _ in range(3)))

assert keep_large_blocks() and keep_one_heap()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
"""Prints how many pages the kernel gave when a thread took for the second to the fourth time what it had freed."""


def test_a_thread_is_given_what_it_freed_without_the_kernel() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("another C library")
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert int(found.stdout) < 100
