"""Measures how long the parts of a worker's start take; logs them at its first step."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

_START_FIELD = 19
"""Where ``/proc/self/stat`` has the start of the process, counted from its state; in ticks since the boot."""
_log = structlog.get_logger(__name__)


class StartupTimer:
    """Records when parts of the start are done; used by one thread at a time."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._total = 0.0
        self._reached = time.perf_counter()
        self._add("process", age_s())

    def record(self, part: str) -> None:
        """Records the end of a part, which began at the end of the part before it."""
        now = time.perf_counter()
        self._add(part, now - self._reached)
        self._reached = now

    def log_first_step(self) -> None:
        """Records the first training step, and logs all parts."""
        self.record("first step")
        _log.info("first step", seconds=round(self._total, 3), parts=self._parts)

    def _add(self, part: str, seconds: float) -> None:
        self._total += seconds
        self._parts[part] = round(seconds, 3)


def age_s() -> float:
    """Seconds since this process was started or forked, in steps of a clock tick; 0 where that is unknown."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        started = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError):
        return 0.0
