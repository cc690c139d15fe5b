"""Reads what processes printed: all incarnations in order, from the beginning or the end, and as it grows."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from elasticdl_core.errors import NotFoundError
from elasticdl_core.ports.launcher import Role

_CHUNK = 256 << 10
_POLL_S = 0.2


async def read_logs(
    folder: Path, role: Role, index: int, *, tail: int | None, follow: bool, may_grow: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yields the output of a process's incarnations.

    Args:
        folder: the job's log folder.
        role: the process's role.
        index: which of that role.
        tail: begin that many bytes before the present end; None begins at the beginning.
        follow: go on with what is added while ``may_grow()``.
        may_grow: whether any incarnation runs, or will.

    Raises:
        NotFoundError: there is no such process.
    """
    files = _files(folder, role, index)
    if not files and not may_grow():
        raise NotFoundError(
            f"there is no log of {role} {index}",
            fix="see the job's processes (`elasticdl jobs get ID`, or GET /jobs/{id}), or wait until it has started",
        )
    skip = 0 if tail is None else max(0, sum(path.stat().st_size for path in files) - tail)
    reader = _LogReader()
    try:
        while True:
            last_pass = not (follow and may_grow())
            for path in _files(folder, role, index):
                for piece in reader.news(path):
                    if skip < len(piece):
                        yield piece[skip:]
                    skip = max(0, skip - len(piece))
            if last_pass:
                return
            await asyncio.sleep(_POLL_S)
    finally:
        reader.close()


class _LogReader:
    """Remembers how far each file was read, by inode, since rotation renames files while they are read.

    Files stay open, so that an inode is not used again for another file meanwhile.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], BinaryIO] = {}

    def news(self, path: Path) -> Iterator[bytes]:
        """Yields what was added to a file since the last time."""
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        found = os.fstat(file.fileno())
        known = self._open.setdefault((found.st_dev, found.st_ino), file)
        if known is not file:
            file.close()
        while piece := known.read(_CHUNK):
            yield piece

    def close(self) -> None:
        """Closes all files."""
        for file in self._open.values():
            file.close()


def _files(folder: Path, role: Role, index: int) -> list[Path]:
    """The log files of a process, in the order in which they were written."""
    pattern = re.compile(rf"{role}-{index}\.(\d+)\.log(\.1)?")
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match:
            found.append((int(match[1]), 0 if match[2] else 1, path))
    return [path for _, _, path in sorted(found)]
