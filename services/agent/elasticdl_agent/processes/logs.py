"""Reads what processes printed: all incarnations in order, from the beginning or the end, and as it grows.

A line of the agent's own is added where a process cannot say itself what became of it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

import structlog

from elasticdl_agent.processes.child import LOG_BYTES
from elasticdl_agent.processes.shim import DROPPED, TIMES, TIMES_EVERY_S, RotatingLog
from elasticdl_core.errors import NotFoundError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.lifecycle import in_thread
from elasticdl_runtime.safe_files import open_below, open_plain

MAX_FILES = 256
"""Files of one process that are read: the newest ones."""
_CHUNK = 256 << 10
TAIL_BYTES = 64 << 20
"""The most of a log's end that is looked through for its last lines."""
_MOST_TIMES = 32 << 20
"""Bytes of times that are read: those of two weeks in which something is printed every second."""
_NUMBER = re.compile(rb"\d{1,20}")
_MARK = re.compile(rb"(\d{1,18}) (\d{1,18})")
_POLL_S = 0.2
_QUIET_POLL_S = 1.0
"""Between looks for a next incarnation, of each of which whoever follows is told."""
_log = structlog.get_logger(__name__)
T = TypeVar("T")


def note(path: Path, text: str) -> None:
    """Writes a line of our own into the log of a process that has none of its own."""
    try:
        log = RotatingLog(str(path), LOG_BYTES)
        try:
            log.write(text.encode(errors="replace"))
        finally:
            log.close()
    except OSError:
        _log.exception("cannot write the log of a process", log=str(path))


async def read_logs(
    folder: Path,
    role: Role,
    index: int,
    *,
    tail: int | None,
    follow: bool,
    may_grow: Callable[[], bool],
    since: float | None = None,
    lines: int | None = None,
) -> AsyncGenerator[bytes]:
    """Yields the output of a process's incarnations; where the first of it was lost to rotation, a line says so.

    Args:
        folder: the job's log folder.
        role: the process's role.
        index: which of that role.
        tail: begin that many bytes before the present end; None begins at the beginning.
        follow: go on with what is added, of later incarnations too; an empty piece says that all was read and
            ``may_grow()`` is false, so that whoever knows that the job is over can leave.
        may_grow: whether any incarnation runs, or will.
        since: leave out what was printed before, in seconds since 1970; up to a second more may be there.
        lines: begin that many lines before the present end, at the beginning of a line; as far as 64 MiB back.

    Raises:
        NotFoundError: there is no such process.
    """
    reader = _LogReader(folder, role, index)
    try:
        there = await _off_the_loop(lambda: reader.begin(tail, since, lines))
        if not there and not may_grow():
            raise NotFoundError(
                f"there is no log of {role} {index}",
                fix="see the job's processes (`elasticdl jobs get ID`, or GET /jobs/{id}), or wait for its start",
            )
        while True:
            quiet = not may_grow()
            news = reader.news()
            while piece := await _off_the_loop(functools.partial(next, news, b"")):
                yield piece
            if not follow:
                return
            if quiet:
                yield b""
            await asyncio.sleep(_QUIET_POLL_S if quiet else _POLL_S)
    finally:
        reader.close()


class _LogReader:
    """Remembers how far each file was read, by inode, since rotation renames files while they are read.

    Files stay open, so that an inode is not used again for another file meanwhile. In the folder may lie what a job
    has put there: only plain files are opened, and not more than ``MAX_FILES``.
    """

    def __init__(self, folder: Path, role: Role, index: int) -> None:
        self._folder = folder
        self._pattern = re.compile(rf"{role}-{index}\.(\d{{1,6}})\.log(\.1)?")
        self._open: dict[tuple[int, int], BinaryIO] = {}
        self._heads: dict[int, bytes] = {}

    def begin(self, tail: int | None, since: float | None = None, lines: int | None = None) -> bool:
        """Goes to some bytes or lines before the present end, or to a time; returns whether there is any file."""
        files = list(self._files())
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        if lines is not None:
            tail = _length_of_lines(files, sizes, lines)
        skip = 0 if tail is None else max(0, sum(sizes) - tail)
        marks = {} if since is None else self._marks()
        for file, size in zip(files, sizes, strict=True):
            start = 0 if since is None else _printed_since(file, size, marks, since)
            file.seek(max(min(skip, size), start))
            skip -= min(skip, size)
        self._heads = self._lost()
        return bool(files)

    def _lost(self) -> dict[int, bytes]:
        """Lines to say before files that are read from their beginning, which is not that of the output."""
        found = {}
        for folder, name in self._in_folder():
            path, rotated, _ = name.rpartition(".1")
            file = self._take(folder, name) if rotated and name.endswith(".log.1") else None
            if file is None or file.tell():
                continue
            try:
                with os.fdopen(open_plain(path + DROPPED, folder), "rb") as told:
                    counts = _MARK.fullmatch(told.read(64).rstrip(b"\n"))
            except FileNotFoundError:
                continue
            if counts:
                size, lines = int(counts[1]), int(counts[2])
                words = f"the log begins here: {lines:,} lines before ({size:,} bytes) were dropped, as it keeps "
                words += f"the last {LOG_BYTES >> 20} to {2 * LOG_BYTES >> 20} MiB of a process"
                found[file.fileno()] = f"[elasticdl] {words}\n".encode()
        return found

    def _marks(self) -> dict[int, list[tuple[int, int]]]:
        """The known times of writing of files, by their inodes: offsets and milliseconds."""
        found = {}
        for folder, name in self._in_folder():
            try:
                descriptor = open_plain(name + TIMES, folder)
            except FileNotFoundError:
                continue
            with os.fdopen(descriptor, "rb") as file:
                head, *lines = file.read(_MOST_TIMES).split(b"\n")[:-1] or [b""]
            if _NUMBER.fullmatch(head):
                found[int(head)] = [(int(m[1]), int(m[2])) for m in map(_MARK.fullmatch, lines) if m]
        return found

    def news(self) -> Iterator[bytes]:
        """Yields what was added since the last time."""
        for file in self._files():
            if head := self._heads.pop(file.fileno(), b""):
                yield head
            while piece := file.read(_CHUNK):
                yield piece

    def close(self) -> None:
        """Closes all files."""
        for file in self._open.values():
            file.close()

    def _files(self) -> Iterator[BinaryIO]:
        """The files, in the order in which they were written."""
        for folder, name in self._in_folder():
            file = self._take(folder, name)
            if file is not None:
                yield file

    def _in_folder(self) -> Iterator[tuple[int, str]]:
        """The folder, open, with the name of each file, in the order in which they were written."""
        try:
            # The job's own folder is the job's to replace; the one around it is ours.
            folder = open_below(self._folder.parents[1], f"{self._folder.parent.name}/{self._folder.name}")
        except FileNotFoundError:
            return
        try:
            for name in self._names(folder):
                yield folder, name
        finally:
            os.close(folder)

    def _names(self, folder: int) -> list[str]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                match = self._pattern.fullmatch(entry.name)
                if match:
                    found.append((int(match[1]), 0 if match[2] else 1, entry.name))
        return [name for _, _, name in sorted(found)[-MAX_FILES:]]

    def _take(self, folder: int, name: str) -> BinaryIO | None:
        try:
            descriptor = open_plain(name, folder)
        except FileNotFoundError:
            return None
        found = os.fstat(descriptor)
        known = self._open.get((found.st_dev, found.st_ino))
        if known is not None:
            os.close(descriptor)
            return known
        if len(self._open) >= 2 * MAX_FILES:
            os.close(descriptor)
            return None
        file = self._open[(found.st_dev, found.st_ino)] = os.fdopen(descriptor, "rb", buffering=0)
        return file


def _length_of_lines(files: list[BinaryIO], sizes: list[int], lines: int) -> int:
    """Bytes of the last lines of files that follow one another; what comes after the last line end is a line, too."""
    length, ends = 0, 0
    if not lines:
        return 0
    for file, size in zip(reversed(files), reversed(sizes), strict=True):
        at = size
        while at > 0 and length < TAIL_BYTES:
            start = max(0, at - _CHUNK)
            piece = os.pread(file.fileno(), at - start, start)
            found = len(piece)
            while (found := piece.rfind(b"\n", 0, found)) >= 0:
                if length or found < len(piece) - 1:  # the very last byte ends the last line
                    ends += 1
                    if ends == lines:
                        return length + len(piece) - found - 1
            length += at - start
            at = start
    return length


def _printed_since(file: BinaryIO, size: int, marks: dict[int, list[tuple[int, int]]], since: float) -> int:
    """The offset in a file of the first line that was printed at a time or after it."""
    known = os.fstat(file.fileno())
    if known.st_mtime < since - 1:
        return size
    for offset, at in marks.get(known.st_ino, ()):
        # A mark stands for all that was printed within a second after it.
        if at > (since - TIMES_EVERY_S) * 1000:
            return min(offset, size)
    return size if marks.get(known.st_ino) else 0


async def _off_the_loop(work: Callable[[], T]) -> T:
    return await in_thread(work, threads=_threads())


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """A few of their own: a slow disk under logs delays readers of logs alone."""
    return ThreadPoolExecutor(4, "logs")
