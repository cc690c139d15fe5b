"""Counts what became of the records of a task, where they are read and where they are trained on.

The counts do not know the lease: they are of minibatches that the reader gave and that the parameter servers took.
The master compares them with what the task should have been.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl_core.skips import SkipReason, Skips


@dataclass(frozen=True)
class Intake:
    """The records that were read for a task.

    Attributes:
        fed: records that came out of the user's ``feed``.
        skips: records that the reader passed over.
    """

    fed: int
    skips: Skips = field(default_factory=Skips)


@dataclass(frozen=True)
class TaskAccount:
    """The account of a task's records.

    Attributes:
        fed: records that came out of the user's ``feed``.
        applied: those whose gradients the parameter servers took.
        skips: those that were passed over, before ``feed`` or after it.
    """

    fed: int = 0
    applied: int = 0
    skips: Skips = field(default_factory=Skips)


class TaskAccounts:
    """The accounts of the tasks in progress, by lease token; used by the training thread."""

    def __init__(self) -> None:
        self._open: dict[str, TaskAccount] = {}

    def add_applied(self, token: str, records: int) -> None:
        """Counts the records of a push that the parameter servers accepted."""
        self._change(token, records, Skips())

    def add_skipped(self, token: str, skips: Skips) -> None:
        """Counts records that came out of ``feed`` and were left out of training."""
        self._change(token, 0, skips)

    def close(self, token: str, intake: Intake | None = None) -> TaskAccount:
        """Ends a task's account.

        Args:
            token: of its lease.
            intake: what came in; None for the part of a task that a leaving worker did: all of that is accounted for.
        """
        account = self._open.pop(token, TaskAccount())
        left_out = account.skips.count(SkipReason.NAN)
        if intake is None:
            return TaskAccount(account.applied + left_out, account.applied, account.skips)
        return TaskAccount(intake.fed, account.applied, account.skips + intake.skips)

    def drop(self, token: str) -> None:
        """Forgets a task that failed or whose lease is lost."""
        self._open.pop(token, None)

    def _change(self, token: str, applied: int, skips: Skips) -> None:
        before = self._open.get(token, TaskAccount())
        self._open[token] = TaskAccount(before.fed, before.applied + applied, before.skips + skips)
