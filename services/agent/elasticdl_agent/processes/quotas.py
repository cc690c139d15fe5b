"""Quotas on the disk and shared memory of a job, and their use.

No kernel keeps these for a job whose agent may neither mount nor make control groups, so they are looked at every few
seconds; between two looks a job can go over them by what it writes in that time.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from elasticdl_agent.directories import AgentDirectories
from elasticdl_runtime.disk import BLOCK, MOST_FILES, measure
from elasticdl_runtime.tree_removal import remove_tree

SHARED_MEMORY = Path("/dev/shm")
DISK_SHARE = 4
"""Without a setting, a job has the disk's size by this."""
SHARED_MEMORY_SHARE = 2
"""The same for shared memory."""
LEFT_S = 10.0
"""Age of a file in shared memory, of a user none of whose processes lives, at which it goes."""
TOO_MUCH_DISK = "too_much_disk"
TOO_MUCH_SHARED_MEMORY = "too_much_shared_memory"
_Sizes = dict[tuple[int, int], int]
"""Bytes of files, by device and number: each counts once, whoever holds it."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A job that takes too much.

    Attributes:
        reason: the one word of it.
        words: how much it takes, and how much it may.
    """

    reason: str
    words: str

    @classmethod
    def of(cls, reason: str, used: int, limit: int, more: str = "") -> OverQuota:
        """The words for so many bytes."""
        return cls(reason, f"{reason}: the job has {used >> 20} MiB, and may have {limit >> 20} MiB{more}")


class Quotas:
    """The quotas of each job of this agent.

    Args:
        directories: of the agent.
        disk_mib: of the files in a job's folders, and of those that its processes hold without a name; 0 for a
            quarter of the disk.
        shared_memory_mib: of the files in shared memory; 0 for half of what there is. Those of ``memfd``, by which
            groups exchange gradients, may take half of the machine's memory.
        shared_memory: where these lie.
    """

    def __init__(
        self,
        directories: AgentDirectories,
        disk_mib: int = 0,
        shared_memory_mib: int = 0,
        shared_memory: Path = SHARED_MEMORY,
    ) -> None:
        self._directories = directories
        self._shared = shared_memory
        self._disk_bytes = disk_mib << 20 or _size(directories.data) // DISK_SHARE
        self._nameless_bytes = psutil.virtual_memory().total // 2
        self._shared_bytes = shared_memory_mib << 20 or _size(shared_memory) // SHARED_MEMORY_SHARE

    def look(self, job_id: str, workers: Iterable[int], uid: int | None) -> OverQuota | None:
        """Looks what a job takes.

        Args:
            job_id: the job.
            workers: process ids of its workers; what they started belongs to them.
            uid: the user that its workers have with the rest of their namespace, and with nobody else.

        Returns:
            What it has too much of.
        """
        unnamed, shared, nameless = self._held(workers)
        if uid is not None:
            # A file there has no job, but a user: what a namespace's jobs have there counts against each of them.
            shared |= self._of_user(uid)
        used = sum(shared.values())
        if used > self._shared_bytes > 0:
            return OverQuota.of(TOO_MUCH_SHARED_MEMORY, used, self._shared_bytes)
        used = sum(nameless.values())
        if used > self._nameless_bytes:
            return OverQuota.of(TOO_MUCH_SHARED_MEMORY, used, self._nameless_bytes)
        found = measure([self._directories.job_dir(job_id), self._directories.job_run_dir(job_id)])
        used = found.bytes + sum(unnamed.values())
        if not found.whole:
            hidden = f"; not all of it can be counted: more than {MOST_FILES} files, or folders too deep or closed"
            return OverQuota.of(TOO_MUCH_DISK, used, self._disk_bytes, hidden)
        return OverQuota.of(TOO_MUCH_DISK, used, self._disk_bytes) if used > self._disk_bytes > 0 else None

    def clear_shared_memory(self, uids: range, now: float) -> None:
        """Removes what users of namespaces, of whose processes none lives, have left in shared memory.

        All processes of the machine are asked: another cluster there may give namespaces of its own the same users.

        Args:
            uids: of all namespaces.
            now: the time, in seconds since the epoch.
        """
        old = [
            (entry, found)
            for entry, found in self._shared_files()
            if found.st_uid in uids and now - found.st_ctime > LEFT_S
        ]
        living = _living_users() if old else frozenset()
        for entry, found in old:
            if found.st_uid not in living:
                _log.info("shared memory that nobody uses is freed", file=entry.name, bytes=found.st_blocks * BLOCK)
                remove_tree(entry)

    def _of_user(self, uid: int) -> _Sizes:
        found = _Sizes()
        for path, status in self._shared_files():
            if status.st_uid == uid:
                inside = measure([path]).bytes if stat.S_ISDIR(status.st_mode) else 0
                found[status.st_dev, status.st_ino] = status.st_blocks * BLOCK + inside
        return found

    def _shared_files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        try:
            with os.scandir(self._shared) as entries:
                for entry in entries:
                    try:
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
                    except OSError:
                        continue
        except OSError:
            return []
        return found

    def _held(self, workers: Iterable[int]) -> tuple[_Sizes, _Sizes, _Sizes]:
        """Files that processes have open: on disk without a name, in shared memory, and of ``memfd``."""
        try:
            shared_device = self._shared.stat().st_dev
        except OSError:
            shared_device = -1
        unnamed, shared, nameless = _Sizes(), _Sizes(), _Sizes()
        for pid in _with_children(workers):
            for path, status in _open_files(pid):
                file, size = (status.st_dev, status.st_ino), status.st_blocks * BLOCK
                if status.st_dev == shared_device:
                    shared[file] = size
                elif path.startswith("/memfd:"):
                    nameless[file] = size
                elif not status.st_nlink:
                    unnamed[file] = size
        return unnamed, shared, nameless


def _open_files(pid: int) -> list[tuple[str, os.stat_result]]:
    """The plain files that a process has open, as far as we may see them."""
    folder, found = f"/proc/{pid}/fd", []
    try:
        names = os.listdir(folder)  # noqa: PTH208 - there may be thousands
    except OSError:
        return []
    for name in names:
        link = f"{folder}/{name}"
        try:
            status = os.stat(link)  # noqa: PTH116
            if stat.S_ISREG(status.st_mode):
                found.append((os.readlink(link), status))  # noqa: PTH115
        except OSError:
            continue
    return found


def _living_users() -> frozenset[int]:
    """The users that processes of this machine have, or may take up again."""
    found: set[int] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found |= set(process.uids())
    return frozenset(found)


def _with_children(pids: Iterable[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            found += [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        except psutil.Error:
            continue
    return found


def _size(folder: Path) -> int:
    """Bytes of the file system that a folder lies on; 0 where there is none."""
    for place in (folder, *folder.parents) if folder != SHARED_MEMORY else (folder,):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_frsize * found.f_blocks
    return 0
