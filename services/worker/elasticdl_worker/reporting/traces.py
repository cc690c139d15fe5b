"""Writes what this worker has processed, one JSON object a line, for people who examine a job and for tests.

Nothing depends on it: the audit at a job's end goes by the tally of the parameter servers. So a trace that cannot be
written is given up, and said, and the task counts as it would.
"""

from __future__ import annotations

import contextlib
import json
import time
from io import BufferedWriter
from pathlib import Path

import structlog

from elasticdl_core.task import Task, TaskId

MAX_BYTES = 64 * 1024 * 1024
"""A file that has grown to this is put aside; what was put aside before is dropped."""
_log = structlog.get_logger(__name__)


class TraceWriter:
    """Appends to ``<job_dir>/traces/<owner>.jsonl``.

    Each line is ``{"task", "token", "epoch", "start", "end", "at", "version"}``: the positions ``[start, end)`` of a
    task were processed and the effect of their records is in the model, ``at`` seconds since 1970. Where records are
    shuffled, ``records`` says which ones these are, as ``{name: [[start, end], ...]}``. A line is written before the
    master hears of it.

    Args:
        job_dir: directory of the job's files.
        owner: the worker's incarnation, e.g. ``worker-3.1``.
        max_bytes: when to put the file aside, as ``<owner>.before.jsonl``.

    Attributes:
        trouble: why nothing is written any more; empty while all is well.
    """

    def __init__(self, job_dir: Path, owner: str, max_bytes: int = MAX_BYTES) -> None:
        self.trouble = ""
        self._path = job_dir / "traces" / f"{owner}.jsonl"
        self._max_bytes = max_bytes
        self._lease: tuple[TaskId, str] | None = None
        self._head = ""
        self._file: BufferedWriter | None = None
        self._size = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            self._give_up(error)

    def append(
        self, task: Task, token: str, start: int, end: int, version: int | None = None, records: str | None = None
    ) -> None:
        """Writes that records of a task were processed.

        Args:
            task: of the records.
            token: of its lease.
            start: the first position.
            end: one past the last.
            version: the newest model version that was seen by then.
            records: what ``describe_records`` says of these positions, where that is known already.
        """
        if self._file is None:
            return
        # Each step of a group writes a line, and what JSON's encoder needs is out of the cache by then: the part that
        # is the same for all lines of a task is made once.
        if self._lease != (task.id, token):
            self._lease = (task.id, token)
            self._head = json.dumps({"task": str(task.id), "token": token, "epoch": task.id.epoch})[:-1]
        line = f'{self._head}, "start": {start}, "end": {end}, "at": {time.time():.4f}'
        if version is not None:
            line += f', "version": {version}'
        if found := describe_records(task, start, end) if records is None else records:
            line += f', "records": {found}'
        try:
            if self._size >= self._max_bytes:
                self._file.close()
                self._path.replace(self._path.with_suffix(".before.jsonl"))
                self._open()
            self._size += self._file.write(f"{line}}}\n".encode())
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> None:
        self._file = self._path.open("ab")
        self._size = self._file.tell()

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"cannot write {self._path}: {error.strerror or error}"
        _log.warning("no traces any more", error=self.trouble)
        self.close()


def describe_records(task: Task, start: int, end: int) -> str:
    """Describes the records at the positions of a task, in JSON; empty where the positions say it."""
    if task.reading is None:
        return ""
    records: dict[str, list[tuple[int, int]]] = {}
    for name, first, last in task.spans(start, end):
        records.setdefault(name, []).append((first, last))
    return json.dumps(records)
