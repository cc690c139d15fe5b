"""Accounts of tasks' records: kept with the done-marks, and rolled back with them.

A task's records are the rows that the parameter servers took, unless its worker says otherwise: records were passed
over, or the user's ``feed`` gives other rows than records. Only such tasks have an entry here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.skips import SkipReason, Skips
from elasticdl_core.task import TaskId


@dataclass(frozen=True)
class RecordAccount:
    """A worker's account of a task, or a part of one, beside that it is done.

    Attributes:
        skips: what was passed over: records of the source, and rows out of ``feed`` in minibatches left out.
        fed: rows that came out of ``feed``; None if that is one for each record that ``skips`` leave.
    """

    skips: Skips = field(default_factory=Skips)
    fed: int | None = None

    def __bool__(self) -> bool:
        return bool(self.skips) or self.fed is not None

    def rows(self, records: int) -> int:
        """The number of rows that so many records must be in the model as."""
        fed = self.skips.rows_of(records) if self.fed is None else self.fed
        return fed - self.skips.count(SkipReason.NAN)

    def skipped(self, records: int) -> Skips:
        """The number of records passed over among so many: bad minibatches are noted in rows out of ``feed``."""
        return self.skips.in_records(records, self.fed)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {"skipped": self.skips.to_json()} if self.skips else {}
        return data if self.fed is None else data | {"fed": self.fed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordAccount:
        """Reads what ``to_json`` wrote."""
        fed = data.get("fed")
        return cls(Skips.from_json(data.get("skipped") or ()), None if fed is None else int(fed))

    @classmethod
    def of_result(cls, result: bytes) -> RecordAccount:
        """The account that a report's result has; an empty one if it has none."""
        try:
            return cls.from_json(json.loads(result)) if result else cls()
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def within(self, result: bytes) -> bytes:
        """A report's result with this account in it, for the queue to keep with the task."""
        if not self:
            return result
        try:
            data = json.loads(result) if result else {}
        except ValueError:
            return result
        return json.dumps(data | self.to_json()).encode() if isinstance(data, dict) else result


Changes = dict[TaskId, RecordAccount]


class RecordCounts:
    """The accounts of all epochs. A task that is done again counts with its last report.

    Attributes:
        skipped_by_epoch: how many records of each epoch were passed over, where any were.
    """

    def __init__(self) -> None:
        self.skipped_by_epoch: dict[int, int] = {}
        self._accounts: Changes = {}
        self._of: dict[tuple[int, int], set[TaskId]] = {}
        self._skips = Skips()

    @property
    def skips(self) -> Skips:
        """All that was passed over."""
        return self._skips

    def record(self, task: TaskId, account: RecordAccount) -> Changes:
        """Takes in the account of work that is done; returns the entries that changed, empty ones for those gone."""
        changed: Changes = {}
        known = self._of.get((task.epoch, task.index), set())
        for other in [one for one in known if one.start < task.end and task.start < one.end]:
            known.discard(other)
            del self._accounts[other]
            changed[other] = RecordAccount()
        if account:
            changed[task] = account
            self._put(task, account)
        if changed:
            self._sum()
        return changed

    def items(self) -> list[tuple[TaskId, RecordAccount]]:
        """The tasks, or parts of them, that have an entry, in order."""
        return sorted(self._accounts.items())

    def rows(self, task: TaskId) -> int:
        """The number of rows that a whole task, done in any parts, must be in the model as."""
        parts = self._of.get((task.epoch, task.index), ())
        return task.records + sum(self._accounts[part].rows(part.records) - part.records for part in parts)

    def rows_of(self, records: int) -> int:
        """The number of rows that so many done records of all epochs must be in the model as."""
        return records + sum(account.rows(task.records) - task.records for task, account in self._accounts.items())

    def skipped(self, task: TaskId) -> int:
        """The number of a whole task's records, done in any parts, that were passed over."""
        return sum(
            self._accounts[part].skipped(part.records).records for part in self._of.get((task.epoch, task.index), ())
        )

    def replace(self, mapping: Mapping[str, Any]) -> Changes:
        """Goes back to what a checkpoint had; returns the entries that changed."""
        before = self._accounts
        self._accounts, self._of = {}, {}
        for text, data in mapping.items():
            self._put(TaskId.parse(text), RecordAccount.from_json(data))
        self._sum()
        gone = {task: RecordAccount() for task in before if task not in self._accounts}
        return gone | {task: one for task, one in self._accounts.items() if before.get(task) != one}

    def to_mapping(self) -> dict[str, Any]:
        """The book as JSON data."""
        return {str(task): account.to_json() for task, account in sorted(self._accounts.items())}

    def _put(self, task: TaskId, account: RecordAccount) -> None:
        self._accounts[task] = account
        self._of.setdefault((task.epoch, task.index), set()).add(task)

    def _sum(self) -> None:
        self._skips, self.skipped_by_epoch = Skips(), {}
        for task, one in self.items():
            skips = one.skipped(task.records)
            self._skips += skips
            self.skipped_by_epoch[task.epoch] = self.skipped_by_epoch.get(task.epoch, 0) + skips.records
