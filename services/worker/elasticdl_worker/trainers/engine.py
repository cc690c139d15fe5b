"""The protocol between the task loop and a trainer of any framework: the items of work, and what can be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.reporting.accounts import Intake, TaskAccount


class TaskStep(Protocol):
    """One or more minibatches of a training task that are trained on together."""

    @property
    def lease(self) -> LeasedTask:
        """The task that they belong to."""

    @property
    def records(self) -> int:
        """Number of records of all minibatches."""


StepT = TypeVar("StepT", bound=TaskStep)


@dataclass(frozen=True)
class ReadTask:
    """The end of a training task whose minibatches were all given: those of ``intake``."""

    lease: LeasedTask
    intake: Intake


@dataclass(frozen=True)
class UnreadableTask:
    """A training task cannot be read to its end."""

    lease: LeasedTask
    error: BaseException


@dataclass(frozen=True)
class OtherTask:
    """A task that is not training."""

    lease: LeasedTask


@dataclass(frozen=True)
class NoMoreTasks:
    """There are no more tasks for this worker; ``error`` if asking for them failed."""

    error: BaseException | None = None


TaskItem = ReadTask | UnreadableTask | OtherTask


@dataclass(frozen=True)
class TaskOutcome:
    """The result of a task that is not training.

    Attributes:
        records: number of records of the task.
        result: what this type of task gives the master; None if nothing.
        account: what became of the records, for a task that works on records.
    """

    records: int
    result: Mapping[str, object] | None
    account: TaskAccount | None = None


class Engine(Protocol[StepT]):
    """A trainer as the task loop drives it: reads ahead, and overlaps pushes with computation."""

    @property
    def version(self) -> int:
        """The highest model version seen."""

    @property
    def ordered(self) -> bool:
        """Whether a task's records come in order, so that it can be cut between two minibatches."""

    def next_item(self, *, wait: bool) -> StepT | TaskItem | NoMoreTasks | None:
        """The next thing to work on; None if nothing is ready."""

    def train(self, step: StepT) -> None:
        """Trains on the minibatches of a step."""

    def call_after_pushes(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when every push so far was accepted."""

    def wait_for_pushes(self) -> None:
        """Waits until every push was accepted."""

    def close_account(self, lease: LeasedTask, intake: Intake | None = None) -> TaskAccount:
        """Ends the account of a training task, or of the part of one that is done."""

    def drop_account(self, lease: LeasedTask) -> None:
        """Forgets the account of a task that failed."""

    def run_task(self, lease: LeasedTask) -> TaskOutcome:
        """Runs a task that is not training."""

    def stop_reading(self) -> list[LeasedTask]:
        """Ends the reading ahead; returns the leases that it holds."""

    @property
    def at_limit(self) -> bool:
        """Whether the job has made its last update."""

    def take_untrained(self, lease: LeasedTask) -> int:
        """Records at the end of a task that were left out because the job has made its last update; forgets them."""

    def minibatches_of(self, records: int) -> int:
        """Number of minibatches that so many records make."""
