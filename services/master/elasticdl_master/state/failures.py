"""The budgets of user code: a task that fails, or that takes its workers down, too often is quarantined."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.limits import Limits

Key = tuple[TaskType, int, int]


@dataclass
class FailureCounts:
    """Counts failures by task, whichever part of it was leased.

    Attributes:
        limits: the budgets.
        quarantined: tasks that are never leased again.
        last_words: what workers said before they left: message and fix, by worker.
    """

    limits: Limits
    quarantined: set[TaskId] = field(default_factory=set)
    last_words: dict[str, tuple[str, str]] = field(default_factory=dict)
    _unexplained: dict[Key, int] = field(default_factory=dict)
    _failures: dict[Key, list[int]] = field(default_factory=dict)
    _deaths: dict[Key, int] = field(default_factory=dict)
    _held_up: dict[Key, tuple[int, TaskId, int]] = field(default_factory=dict)

    def count_user_failure(self, task: TaskId, worker: int, *, alone: bool) -> bool:
        """Counts that user code raised on a task; returns whether that condemns it.

        It takes several failures on two or more workers; on one only if there is no other, or if the others never
        get hold of the task.
        """
        failures = self._failures.setdefault(_key(task), [])
        failures.append(worker)
        if len(failures) < self.limits.user_failures:
            return False
        return alone or len(set(failures)) > 1 or len(failures) >= 2 * self.limits.user_failures

    def unexplained(self, worker: str, message: str, fix: str, task: TaskId | None) -> bool:
        """A worker could not do a task, or go on at all, for a reason outside of the user's code.

        Returns whether that condemns the task: it happens again and again.
        """
        self.last_words[worker] = (message, fix)
        if task is None:
            return False
        key = _key(task)
        self._unexplained[key] = self._unexplained.get(key, 0) + 1
        return self._unexplained[key] >= self.limits.infrastructure_failures

    def killed_worker(self, task: TaskId) -> bool:
        """A worker died while it had the task in hand. Returns whether that condemns the task."""
        key = _key(task)
        self._deaths[key] = self._deaths.get(key, 0) + 1
        return self._deaths[key] >= self.limits.user_failures

    def held_up(self, task: TaskId, position: int) -> bool:
        """A worker made no progress on a task; ``position`` is as far as it got. Returns whether that condemns it."""
        key = _key(task)
        count = self._held_up[key][0] + 1 if key in self._held_up else 1
        self._held_up[key] = count, task, position
        return count >= self.limits.stuck_workers

    def done(self, task: TaskId) -> None:
        """A task, or a part of one, is done: what held it up is over."""
        self._held_up.pop(_key(task), None)

    @property
    def suspect(self) -> tuple[int, TaskId, int] | None:
        """The task that has held up most workers: how many, the task, as far as the last one got."""
        return max(self._held_up.values(), default=None)


def _key(task: TaskId) -> Key:
    return task.type, task.epoch, task.index
