"""What a trainer of any framework gives the task loop: the items to work on, in order, and what to do with each."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Protocol

from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.reporting.accounts import Account, Intake


class Event(enum.Enum):
    """What an engine's next item was."""

    STEP = "step"
    TASK_READ = "task read"
    TASK_BROKEN = "task broken"
    OTHER_TASK = "other task"
    OVER = "over"


class Engine(Protocol):
    """Trains: knows the framework, reads ahead, and overlaps pushes with compute."""

    @property
    def version(self) -> int:
        """The highest model version seen."""

    @property
    def ordered(self) -> bool:
        """Whether a task's records come in order, so that it can be cut between two minibatches."""

    def next(self, *, wait: bool) -> tuple[Event, LeasedTask | None, Any] | None:
        """The next item: kind, task and, by kind, minibatch, error or intake; None if nothing is ready."""

    def records(self, item: Any) -> int:
        """Number of records of a minibatch."""

    def train(self, item: Any) -> None:
        """Trains on a minibatch."""

    def after_pushes(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when every push so far was accepted."""

    def settle(self) -> None:
        """Waits for every push."""

    def account(self, lease: LeasedTask, intake: Intake | None = None) -> Account:
        """Ends the account of a training task, or of the part of one that is done."""

    def drop(self, lease: LeasedTask) -> None:
        """Forgets the account of a task that failed."""

    def do(self, lease: LeasedTask) -> tuple[int, dict[str, Any] | None, Account | None]:
        """Does a task that is not training; returns its number of records, its result and its account."""

    def stop(self) -> list[LeasedTask]:
        """Ends the reading ahead; returns the leases that it holds."""

    @property
    def over(self) -> bool:
        """Whether the job has made its last update."""

    def untrained(self, lease: LeasedTask) -> int:
        """Records at the end of a task that were left out because the job has made its last update."""

    def minibatches_of(self, records: int) -> int:
        """Number of minibatches that so many records make."""
