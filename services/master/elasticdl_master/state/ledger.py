"""The ledger of done work: which records of an epoch, or of an evaluation, are processed, and snapshots of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl_core.task import TaskId
from elasticdl_master.state.plan import TaskPlan

Ranges = list[tuple[int, int]]


class EpochLedger:
    """Progress of one pass over a plan.

    Args:
        plan: the plan; may still grow.
        number: of the epoch, or of the evaluation.
    """

    def __init__(self, plan: TaskPlan, number: int) -> None:
        self.plan = plan
        self.number = number
        self.records = 0
        self._whole: set[int] = set()
        self._pieces: dict[int, Ranges] = {}
        self._marked: dict[int, list[TaskId]] = {}

    def mark(self, task: TaskId) -> int:
        """Marks a task, or a part of one, done. Returns the number of records that were not done before."""
        if task.index in self._whole:
            return 0
        part = self.plan.parts[task.index]
        if task.records < part.records:
            self._marked.setdefault(task.index, []).append(task)
        before = _records(self._pieces.get(task.index, []))
        ranges = _merged([*self._pieces.get(task.index, []), (task.start, task.end)])
        new = _records(ranges) - before
        self.records += new
        if ranges == [(part.start, part.end)]:
            self._whole.add(task.index)
            self._pieces.pop(task.index, None)
        else:
            self._pieces[task.index] = ranges
        return new

    @property
    def complete(self) -> bool:
        """Whether all of the plan is listed and done."""
        return self.plan.listed and len(self._whole) == len(self.plan.parts)

    @property
    def tasks_done(self) -> int:
        """Number of tasks that are wholly done."""
        return len(self._whole)

    def is_done(self, index: int) -> bool:
        """Whether a task is wholly done."""
        return index in self._whole

    def has_begun(self, task: TaskId) -> bool:
        """Whether any record of the task is done."""
        ranges = self._pieces.get(task.index, [])
        return task.index in self._whole or any(start < task.end and task.start < end for start, end in ranges)

    def remaining(self, indexes: Iterable[int]) -> list[TaskId]:
        """The tasks that are still to do, in the order given."""
        tasks = []
        for index in indexes:
            if index not in self._whole:
                whole = self.plan.task(self.number, index)
                position = whole.start
                for start, end in self._pieces.get(index, []):
                    if position < start:
                        tasks.append(whole.rest_from(position).front_until(start))
                    position = end
                if position < whole.end:
                    tasks.append(whole.rest_from(position))
        return tasks

    def done(self) -> list[TaskId]:
        """All that is done, as the whole tasks and parts that were marked."""
        tasks = [self.plan.task(self.number, index) for index in sorted(self._whole) if index not in self._marked]
        return tasks + [task for _, marked in sorted(self._marked.items()) for task in marked]

    def to_mapping(self) -> dict[str, Any]:
        """A compact snapshot as JSON data."""
        return {
            "round": self.number,
            "whole": [list(pair) for pair in _runs(sorted(self._whole))],
            "pieces": {str(index): [list(pair) for pair in ranges] for index, ranges in self._pieces.items()},
        }

    @classmethod
    def from_mapping(cls, plan: TaskPlan, mapping: Mapping[str, Any]) -> EpochLedger:
        """Reads a snapshot back; the plan must be listed."""
        ledger = cls(plan, int(mapping["round"]))
        for first, end in mapping["whole"]:
            for index in range(first, end):
                ledger.mark(plan.task(ledger.number, index))
        for index, ranges in mapping["pieces"].items():
            for start, end in ranges:
                ledger.mark(TaskId(plan.type, ledger.number, int(index), start, end))
        return ledger


def _merged(ranges: Ranges) -> Ranges:
    merged: Ranges = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _records(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def _runs(indexes: list[int]) -> Ranges:
    runs: Ranges = []
    for index in indexes:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
