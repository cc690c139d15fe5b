"""What this worker has processed, one JSON object a line, for audits: records processed = records times epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elasticdl_core.task import Task


class TraceWriter:
    """Appends to ``<job_dir>/traces/<owner>.jsonl``.

    Each line is ``{"task", "token", "start", "end", "epoch"}``: the positions ``[start, end)`` of a task were
    processed and the effect of their records is in the model. Where records are shuffled, ``records`` says which ones
    these are, as ``{name: [[start, end], ...]}``. A line is written before the master hears of it.

    Args:
        job_dir: directory of the job's files.
        owner: the worker's incarnation, e.g. ``worker-3.1``.
    """

    def __init__(self, job_dir: Path, owner: str) -> None:
        folder = job_dir / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{owner}.jsonl").open("a", encoding="utf-8")

    def append(self, task: Task, token: str, start: int, end: int) -> None:
        """Notes that records of a task were processed."""
        line: dict[str, Any] = {"task": str(task.id), "token": token, "start": start, "end": end}
        line["epoch"] = task.id.round
        if task.reading is not None:
            records: dict[str, list[list[int]]] = {}
            for one in task.records(start, end):
                records.setdefault(one.name, []).append([one.start, one.end])
            line["records"] = records
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
