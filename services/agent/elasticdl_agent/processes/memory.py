"""How much memory a process tree takes, and whether the kernel killed for memory."""

from __future__ import annotations

from pathlib import Path

import psutil


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


def available_bytes() -> int:
    """Memory that can still be had without swapping, by the machine's account and by this control group's limit."""
    available = int(psutil.virtual_memory().available)
    group = _control_group()
    if group is None:
        return available
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return available if limit == "max" else min(available, int(limit) - int(used))
    except (OSError, ValueError):
        return available


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this process's control group (and in those below it).

    0 where there are no control groups (version 2).
    """
    group = _control_group()
    try:
        events = "" if group is None else (group / "memory.events").read_text()
    except OSError:
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))


def _control_group() -> Path | None:
    """The folder of this process's control group (version 2)."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].partition("::")[2]
    except (OSError, IndexError):
        return None
    return Path("/sys/fs/cgroup") / group.lstrip("/")


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
