"""Reads the records of passes ahead of the steps that need them, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from elasticdl_core.group.steps import ComputePass, Step
from elasticdl_core.task import Task
from elasticdl_runtime.telemetry.spans import traced
from elasticdl_worker.group.entries import lease_of
from elasticdl_worker.group.replica import MicrobatchData
from elasticdl_worker.reporting.traces import describe_records

_Key = tuple[str, int, int]
_NOTHING = MicrobatchData(0)


class _Read(NamedTuple):
    """The records read for a pass.

    Attributes:
        data: of the pass.
        described: the positions of all the step's passes, and which records these are; None but for the last pass.
    """

    data: MicrobatchData
    described: tuple[_Key, str] | None


class MicrobatchReader:
    """Has the records of passes read.

    Args:
        read: reads the records at positions of a task; called from one thread.
    """

    def __init__(self, read: Callable[[Task, int, int], MicrobatchData]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._ahead: dict[_Key, Future[_Read]] = {}
        self._described: tuple[_Key, str] | None = None
        self._tasks: dict[str, Task] = {}

    def prepare(self, steps: Iterable[tuple[Step, Sequence[ComputePass]]]) -> None:
        """Has the passes of some steps read, in this order; what was read for others is dropped.

        Along with the last pass of a step it is found out which records those of all its passes are.
        """
        wanted: dict[_Key, Future[_Read]] = {}
        for step, passes in steps:
            token = step.entry.token
            full = [one for one in passes if one.start < one.end]
            for one in full:
                key = (token, one.start, one.end)
                if key in self._ahead:
                    wanted[key] = self._ahead.pop(key)
                else:
                    whole = (token, full[0].start, one.end) if one is full[-1] else None
                    wanted[key] = self._thread.submit(self._read_records, self.task(step), key, whole)
        for future in self._ahead.values():
            future.cancel()
        self._ahead = wanted

    def has(self, step: Step, passes: Sequence[ComputePass]) -> bool:
        """Whether all passes of a step were prepared, and none was taken yet."""
        token = step.entry.token
        return all((token, one.start, one.end) in self._ahead for one in passes if one.start < one.end)

    def take(self, step: Step, one: ComputePass) -> MicrobatchData:
        """The records of a pass that was prepared; waits for them.

        Raises:
            Exception: what reading them raised.
        """
        if one.start >= one.end:
            return _NOTHING
        found = self._ahead.pop((step.entry.token, one.start, one.end)).result()
        self._described = found.described or self._described
        return found.data

    def describe(self, step: Step, start: int, end: int) -> str:
        """Describes the records at some positions of a step, for traces; known already where they were taken."""
        if self._described is not None and self._described[0] == (step.entry.token, start, end):
            return self._described[1]
        return describe_records(self.task(step), start, end)

    def _read_records(self, task: Task, part: _Key, whole: _Key | None) -> _Read:
        _, start, end = part
        with traced("read", "data", task=str(task.id), records=end - start):
            data = self._read(task, start, end)
        return _Read(data, None if whole is None else (whole, describe_records(task, *whole[1:])))

    def task(self, step: Step) -> Task:
        """The task of a step."""
        token = step.entry.token
        if token not in self._tasks:
            if len(self._tasks) > 8:
                self._tasks.clear()
            self._tasks[token] = lease_of(step.entry).task
        return self._tasks[token]

    def close(self) -> None:
        """Ends the reading."""
        self._thread.shutdown(wait=False, cancel_futures=True)
