"""What this worker has processed, one JSON object a line, for audits: records processed = records times epochs."""

from __future__ import annotations

import json
from pathlib import Path

from elasticdl_core.task import TaskId


class TraceWriter:
    """Appends to ``<job_dir>/traces/<owner>.jsonl``.

    Each line is ``{"task", "token", "start", "end", "epoch"}``: the records ``[start, end)`` of a task were processed
    and their effect is in the model. A line is written before the master hears of it.

    Args:
        job_dir: directory of the job's files.
        owner: the worker's incarnation, e.g. ``worker-3.1``.
    """

    def __init__(self, job_dir: Path, owner: str) -> None:
        folder = job_dir / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{owner}.jsonl").open("a", encoding="utf-8")

    def append(self, task: TaskId, token: str, start: int, end: int) -> None:
        """Notes that records of a task were processed."""
        line = {"task": str(task), "token": token, "start": start, "end": end, "epoch": task.round}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
