"""Memory of a process tree, and whether the kernel killed for memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import psutil

from elasticdl_runtime.memory_group import MemoryGroups

LATELY_S = 5.0
"""Between a kill by the kernel and the end of the process, as its agent sees it, there is no longer time."""


def resident_bytes(pid: int, limit: int) -> int:
    """Resident memory of a process and all its descendants, in bytes.

    Pages that several of them share are counted once, but this costs time, so it is done only when the plain sum is
    over ``limit``.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = sum(_rss(process) for process in tree)
    if total <= limit or len(tree) == 1:
        return total
    return sum(_proportional(process) for process in tree)


def count_processes(pid: int) -> int:
    """A process and all its descendants, by number."""
    try:
        return 1 + len(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return 0


class OomKills:
    """Tells whether the kernel killed for memory a moment ago; a process that it kills only says SIGKILL.

    Args:
        count: gives the number of such kills so far; by default what this process' control group says.
        clock: the time in seconds.
    """

    def __init__(self, count: Callable[[], int] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count or MemoryGroups().oom_kills
        self._clock = clock
        self._looks: deque[tuple[float, int]] = deque()
        self.look()

    def look(self) -> None:
        """Notes the present number; call it often."""
        now = self._clock()
        self._looks.append((now, self._count()))
        while len(self._looks) > 1 and self._looks[1][0] <= now - LATELY_S:
            self._looks.popleft()

    def lately(self) -> bool:
        """Whether it killed since ``LATELY_S`` ago, or since the last look before that."""
        self.look()
        return self._looks[-1][1] > self._looks[0][1]


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))
    except psutil.Error:
        return 0
