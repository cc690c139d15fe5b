"""Limits of this process' control groups, versions 1 and 2: memory, what of it is taken, kills; threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SLOT_BYTES = 512 << 20
"""About what a worker with a small model takes; the services of a cluster take as much once more."""
_NO_LIMIT = 1 << 60
"""Version 1 says a number of about 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """The memory that a cluster has here.

    Attributes:
        limit: bytes, the least of the machine's memory and the limits of the control groups.
        of_group: whether a control group (a container, a service) sets that limit.
    """

    limit: int
    of_group: bool

    @property
    def for_jobs_mib(self) -> int:
        """The memory that is left for jobs beside the services of a cluster, in MiB."""
        return max(self.limit - SLOT_BYTES, 0) >> 20

    def describe(self, slots: int) -> str:
        """The limit in words."""
        whose = "the limit of this container or control group" if self.of_group else "of this machine"
        return f"{self.limit / (1 << 30):.1f} GiB, {whose}, for {slots} slots"

    def fix(self, slots: int) -> str:
        """The remedy where so many slots are too many; empty where they are not."""
        if self.limit >= (slots + 1) * SLOT_BYTES:
            return ""
        fitting = max(1, self.limit // SLOT_BYTES - 1)
        fewer = f"give `elasticdl up` --slots {fitting}, or " if fitting < slots else ""
        more = "give the container more memory, as by docker run --memory=4g" if self.of_group else "add memory"
        return f"a slot takes about 0.5 GiB, and the cluster as much once more: {fewer}{more}"


class MemoryGroups:
    """The control groups of memory that this process is in, from its own up to the topmost that can be seen.

    Args:
        proc: where ``/proc`` is.
        mounted: where control groups are mounted.
    """

    def __init__(self, proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._mounted = mounted

    def room(self) -> MemoryRoom:
        """The memory that there is at most."""
        machine = int(psutil.virtual_memory().total)
        limits = [limit for limit, _ in self._numbers()]
        return MemoryRoom(min([machine, *limits]), min(limits, default=machine) < machine)

    def available(self) -> int:
        """Memory that can still be had without swapping, in bytes."""
        left = [limit - used for limit, used in self._numbers()]
        return min([int(psutil.virtual_memory().available), *left])

    def oom_kills(self) -> int:
        """The number of processes that the kernel has killed for memory in this process' group and those below it.

        Where there are no control groups, those of the whole machine; 0 where nobody counts them.
        """
        folders = list(self._folders())
        for folder in folders[:1]:
            for name in ("memory.events", "memory.oom_control"):
                counts = _counts(folder / name)
                if "oom_kill" in counts:
                    return counts["oom_kill"]
        return _counts(self._proc / "vmstat").get("oom_kill", 0)

    def most_threads(self) -> int | None:
        """The processes and threads that there may be together; None where no group limits them."""
        limits = [_number(folder / "pids.max") for folder in self._folders("pids")]
        return min((limit for limit in limits if limit is not None), default=None)

    def _numbers(self) -> Iterator[tuple[int, int]]:
        """Limit and use of each group that has a limit, in bytes."""
        for folder in self._folders():
            for limit, used in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ):
                try:
                    most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
                except (OSError, ValueError):  # not this version, or "max"
                    continue
                if most < _NO_LIMIT:
                    yield most, taken

    def _folders(self, controller: str = "memory") -> Iterator[Path]:
        """Folders of the groups, the process' own first.

        In a container the path may be the host's, while what is mounted begins at the container's own group.
        """
        root, group = self._found(controller)
        folder = root / group.lstrip("/")
        if not folder.is_dir():
            folder = root
        while folder.is_dir():
            yield folder
            if folder == root:
                return
            folder = folder.parent

    def _found(self, controller: str) -> tuple[Path, str]:
        """The mount of the hierarchy of a controller, and the path of this process' group in it."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            lines = []
        groups = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
        for controllers, path in groups.items():
            if controller in controllers.split(","):
                return self._mounted / controller, path
        return self._mounted, groups.get("", "/")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not this version, or "max"
        return None


def _counts(file: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
