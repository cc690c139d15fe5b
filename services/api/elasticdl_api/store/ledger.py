"""Progress of a training job's epochs by done-marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl_core.task import TaskId, TaskType


def completed_epochs(plan: Mapping[str, Any] | None, done: Iterable[str]) -> list[dict[str, int]]:
    """The training epochs of a plan of which every record is marked as done.

    Args:
        plan: the job's plan (``shards`` as ``[name, start, end]``), or None.
        done: ids of done tasks; a front and the whole of a task may overlap.

    Returns:
        For each such epoch, in order: its number (``round``), its done-marks (``tasks``), its records.
    """
    if not plan or not plan.get("shards"):
        return []
    total = sum(end - start for _, start, end in plan["shards"])
    ranges: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for name in done:
        task = TaskId.parse(name)
        if task.type is TaskType.TRAINING:
            ranges[task.epoch][task.index].append((task.start, task.end))
    epochs = []
    for number, tasks in sorted(ranges.items()):
        records = sum(_covered(spans) for spans in tasks.values())
        if records == total:
            epochs.append({"round": number, "tasks": sum(len(spans) for spans in tasks.values()), "records": records})
    return epochs


def _covered(spans: list[tuple[int, int]]) -> int:
    covered = 0
    reached: int | None = None
    for start, end in sorted(spans):
        begin = start if reached is None else max(start, reached)
        covered += max(0, end - begin)
        reached = end if reached is None else max(reached, end)
    return covered
