"""Asks processes of a job what they do, through a file that each keeps open; see ``elasticdl_runtime.telemetry``.

A process is a tenant's. It may put anything in the place of its file, write anything into it, or never answer: links
and pipes are not opened, what is read is bounded, and everything ends after a time that does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, ProcessId, SystemThread
from elasticdl_runtime.safe_files import open_regular
from elasticdl_runtime.telemetry.inspection import ASK, DUMP

LIMITS = {
    Inquiry.STACKS: 256 << 10,
    Inquiry.METRICS: 16 << 10,
    Inquiry.TRACE: 4 << 10,
    Inquiry.RECORDED: 4 << 20,
}
"""Bytes of one answer."""
MOST_BYTES = 96 << 20
"""Of the answers of a job together; processes beyond that have none."""
MOST_THREADS = 64
_ANSWER_S = 0.7
_RECORDED_S = 3.0
_DUMP_S = 0.6
_POLL_S = 0.01
_QUIET_POLLS = 3
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "X": "ended",
    "I": "sleeping",
}
_numbers = itertools.count(1)
T = TypeVar("T")


@dataclass(frozen=True)
class Inspected:
    """A process to ask.

    Attributes:
        id: which.
        pid: its process id.
        file: its file, relative to the run directory.
        signal: sends it a signal.
    """

    id: ProcessId
    pid: int
    file: str
    signal: Callable[[int], None]


class _Box:
    """The file of one process while it is asked."""

    def __init__(self, process: Inspected, run: Path, limit: int) -> None:
        self.process = process
        self.answer = b""
        self.dump = b""
        self.state = state_of(process.pid)
        self._limit = limit
        self._begins = b""
        self._seen = self._quiet = 0
        self._file = -1
        if self.state not in ("stopped", "traced", "ended"):
            with contextlib.suppress(OSError):
                self._file = open_regular(run, process.file, writing=True)

    @property
    def open(self) -> bool:
        """Whether the process can be asked."""
        return self._file >= 0

    def write(self, question: dict[str, object]) -> None:
        """Leaves a question in the place of all that was there."""
        number = next(_numbers)
        self._begins = b'{"answers": %d,' % number
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps({**question, "number": number}).encode() + b"\n", 0)
        except OSError:
            self.close()

    def empty(self) -> None:
        """Removes what is there, for a dump."""
        self._seen = self._quiet = 0
        try:
            os.ftruncate(self._file, 0)
        except OSError:
            self.close()

    def answered(self) -> bool:
        """Whether the whole answer is there."""
        content = self._content()
        begin = content.find(self._begins)
        if begin < 0 or not content.endswith(b"\n"):
            return False
        self.answer = content[begin:].split(b"\n", 1)[0]
        return True

    def dumped(self) -> bool:
        """Whether something is there to which nothing is added any more."""
        try:
            size = os.fstat(self._file).st_size
        except OSError:
            return False
        self._quiet = self._quiet + 1 if size and size == self._seen else 0
        self._seen = size
        if self._quiet < _QUIET_POLLS:
            return False
        if not self.answered():  # it may have come late
            self.dump = self._content()
        return True

    def _content(self) -> bytes:
        try:
            size = min(os.fstat(self._file).st_size, self._limit)
            return os.pread(self._file, size, 0)
        except OSError:
            return b""

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


async def inspect(
    run: Path, processes: Sequence[Inspected], inquiry: Inquiry, *, seconds: float = 0.0
) -> list[InspectedProcess]:
    """Collects the answers of processes, within some two seconds.

    Args:
        run: the run directory.
        processes: living ones.
        inquiry: what to ask.
        seconds: how long to record.
    """
    boxes = await _off_the_loop(lambda: [_Box(one, run, LIMITS[inquiry]) for one in processes])
    try:
        asked = [box for box in boxes if box.open]
        question: dict[str, object] = {"ask": str(inquiry), "seconds": seconds}
        patience_s = _RECORDED_S if inquiry is Inquiry.RECORDED else _ANSWER_S
        silent = await _signalled(asked, ASK, lambda box: box.write(question), _Box.answered, patience_s)
        if inquiry is Inquiry.STACKS:
            await _signalled(silent, DUMP, _Box.empty, _Box.dumped, _DUMP_S)
        return await _off_the_loop(lambda: _results(boxes, inquiry))
    finally:
        for box in boxes:
            box.close()


async def _signalled(
    boxes: Sequence[_Box],
    number: int,
    prepare: Callable[[_Box], None],
    done: Callable[[_Box], bool],
    patience_s: float,
) -> list[_Box]:
    """Signals processes and waits until they have done something; returns those that have not in time."""
    if not boxes:
        return []

    def prepare_all() -> None:
        for box in boxes:
            prepare(box)

    await _off_the_loop(prepare_all)
    for box in boxes:
        box.process.signal(number)
    return await _off_the_loop(lambda: _wait(boxes, done, patience_s))


def _wait(boxes: Sequence[_Box], done: Callable[[_Box], bool], patience_s: float) -> list[_Box]:
    waiting = list(boxes)
    deadline = time.monotonic() + patience_s
    while True:
        waiting = [box for box in waiting if not done(box)]
        if not waiting or time.monotonic() >= deadline:
            return waiting
        time.sleep(_POLL_S)


def _results(boxes: Sequence[_Box], inquiry: Inquiry) -> list[InspectedProcess]:
    found, room = [], MOST_BYTES
    for box in boxes:
        threads: tuple[SystemThread, ...] = ()
        size = len(box.answer) + len(box.dump)
        if size > room:
            box.answer = box.dump = b""
        room -= min(size, room)
        if inquiry is Inquiry.STACKS and not box.answer and not box.dump:
            threads = threads_of(box.process.pid)
        found.append(InspectedProcess(box.process.id, box.state, box.answer, box.dump, threads))
    return found


def state_of(pid: int) -> str:
    """The system's state of a process, or of a thread: ``running``, ``sleeping``, ``stopped``, ..."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"^State:\s+(\S)", text, flags=re.MULTILINE)
    return _STATES.get(match[1], "unknown") if match else "unknown"


def threads_of(pid: int) -> tuple[SystemThread, ...]:
    """The threads of a process; none where the system does not tell."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names only
    except OSError:
        return ()
    return tuple(
        SystemThread(
            _line(f"/proc/{pid}/task/{number}/comm") or str(number),
            state_of(number),
            _line(f"/proc/{pid}/task/{number}/wchan").strip("0"),
        )
        for number in numbers[:MOST_THREADS]
    )


def _line(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - nothing to build for a file of the system
            return file.read(100).decode(errors="replace").strip()
    except OSError:
        return ""


async def _off_the_loop(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """A few of their own: processes that do not answer delay those alone who ask."""
    return ThreadPoolExecutor(4, "inspection")
