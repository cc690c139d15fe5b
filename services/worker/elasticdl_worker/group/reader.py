"""Reads the records of passes ahead of the steps that need them, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from elasticdl_core.group.steps import ComputePass, Step
from elasticdl_core.task import Task
from elasticdl_runtime.telemetry.spans import traced
from elasticdl_worker.group.entries import lease_of
from elasticdl_worker.group.replica import MicrobatchData

_Key = tuple[str, int, int]
_NOTHING = MicrobatchData(0)


class MicrobatchReader:
    """Has the records of passes read.

    Args:
        read: reads the records at positions of a task; called from one thread.
    """

    def __init__(self, read: Callable[[Task, int, int], MicrobatchData]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._ahead: dict[_Key, Future[MicrobatchData]] = {}
        self._tasks: dict[str, Task] = {}

    def prepare(self, steps: Iterable[tuple[Step, Iterable[ComputePass]]]) -> None:
        """Has the passes of some steps read, in this order; what was read for others is dropped."""
        wanted: dict[_Key, Future[MicrobatchData]] = {}
        for step, passes in steps:
            for one in passes:
                key = (step.entry.token, one.start, one.end)
                if one.start == one.end:
                    continue
                if key in self._ahead:
                    wanted[key] = self._ahead.pop(key)
                else:
                    wanted[key] = self._thread.submit(self._read_records, self._task(step), one.start, one.end)
        for future in self._ahead.values():
            future.cancel()
        self._ahead = wanted

    def take(self, step: Step, one: ComputePass) -> MicrobatchData:
        """The records of a pass that was prepared; waits for them.

        Raises:
            Exception: what reading them raised.
        """
        if one.start >= one.end:
            return _NOTHING
        return self._ahead.pop((step.entry.token, one.start, one.end)).result()

    def _read_records(self, task: Task, start: int, end: int) -> MicrobatchData:
        with traced("read", "data", task=str(task.id), records=end - start):
            return self._read(task, start, end)

    def task(self, step: Step) -> Task:
        """The task of a step."""
        return self._task(step)

    def close(self) -> None:
        """Ends the reading."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _task(self, step: Step) -> Task:
        token = step.entry.token
        if token not in self._tasks:
            if len(self._tasks) > 8:
                self._tasks.clear()
            self._tasks[token] = lease_of(step.entry).task
        return self._tasks[token]
