"""Tasks that are no pass over records: listing shards, summing up an evaluation, the export."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl_core.task import TaskId


class SingleTasks:
    """Single tasks that are to do, and those that are done.

    Attributes:
        pending: to do.
        done: done; somebody may still ask about them.
    """

    def __init__(self) -> None:
        self.pending: set[TaskId] = set()
        self.done: set[TaskId] = set()

    def add(self, *tasks: TaskId) -> None:
        """Puts tasks on the list."""
        self.pending.update(tasks)

    def drop(self, task: TaskId) -> None:
        """Takes a task off the list: it will not be done."""
        self.pending.discard(task)

    def finish(self, task: TaskId) -> bool:
        """A task was reported. Returns whether it was to do."""
        if task not in self.pending:
            return False
        self.pending.discard(task)
        self.done.add(task)
        return True

    def restore(self, pending: Iterable[TaskId], done: Iterable[TaskId]) -> None:
        """Takes over the lists of an earlier master."""
        self.pending, self.done = set(pending), set(done)
