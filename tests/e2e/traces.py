"""The oracle of records: what workers say that they applied, against what the master accepted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Applied:
    """One line of a worker's trace: records ``[start, end)`` of a task under a lease."""

    worker: str
    task: str
    token: str
    epoch: int
    index: int
    start: int
    end: int


def read_traces(job_dir: Path) -> list[Applied]:
    """All lines of all workers' traces about training, in no particular order between workers."""
    lines = []
    for path in sorted((job_dir / "traces").glob("*.jsonl")):
        for text in path.read_text().splitlines():
            entry = json.loads(text)
            letter, epoch, index, *_ = entry["task"].split(":")
            if letter == "t":
                lines.append(
                    Applied(
                        path.stem, entry["task"], entry["token"], int(epoch), int(index), entry["start"], entry["end"]
                    )
                )
    return lines


def uncovered(
    lines: list[Applied], tasks: dict[int, tuple[int, int]], epochs: int
) -> list[tuple[int, int, int, int]]:
    """Ranges of records that no worker applied: ``(epoch, task index, start, end)``.

    Args:
        lines: the traces.
        tasks: each task's range of records, by index.
        epochs: number of epochs.
    """
    by_task: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for line in lines:
        by_task.setdefault((line.epoch, line.index), []).append((line.start, line.end))
    missing = []
    for epoch in range(epochs):
        for index, (start, end) in tasks.items():
            at = start
            for first, last in sorted(by_task.get((epoch, index), [])):
                if first > at:
                    break
                at = max(at, last)
            if at < end:
                missing.append((epoch, index, at, end))
    return missing


def applied_records(lines: list[Applied]) -> int:
    """Records applied in all, repetitions included."""
    return sum(line.end - line.start for line in lines)


def repeated_leases(lines: list[Applied]) -> int:
    """How many leases beyond the first worked on the same records of the same task."""
    seen: Counter[tuple[int, int, int]] = Counter()
    for epoch, index, start, _ in {(line.epoch, line.index, line.start, line.token) for line in lines}:
        seen[epoch, index, start] += 1
    return sum(count - 1 for count in seen.values())
