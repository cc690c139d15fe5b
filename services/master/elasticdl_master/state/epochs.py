"""The job's main work, epoch after epoch: what is done of it, what is to do, and the accounts of its records.

Epochs do not overlap: one begins when the one before is complete (``EpochSequence``). A group, which works in the
order of its leases, may hold tasks of the next ones before (``reach``), so that it goes on without a master.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from elasticdl_core.errors import ConflictError
from elasticdl_core.skips import doublings
from elasticdl_core.task import TaskId
from elasticdl_master.state import events as ev
from elasticdl_master.state.accounts import RecordAccount, RecordCounts
from elasticdl_master.state.artifacts import artifacts_in
from elasticdl_master.state.instructions import ForgetTasks, Instruction, MarkDone, Save, tell
from elasticdl_master.state.ledger import EpochLedger
from elasticdl_master.state.plan import JobPlans


class Epochs:
    """Progress of the main work.

    Args:
        plans: what there is to do.

    Attributes:
        ledger: what is done of the present epoch.
        accounts: what became of the records of all epochs.
        stopped: why training ended before all records were processed; empty if it did not.
        held: whether no training task is leased before the result of an evaluation that may end training.
    """

    def __init__(self, plans: JobPlans) -> None:
        self._plans = plans
        self.ledger = EpochLedger(plans.main, 0)
        self.accounts = RecordCounts()
        self.stopped = ""
        self.held = False
        self._previous: EpochLedger | None = None
        self._reach = 0

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Marks what was reported, or returned in part, done."""
        match event:
            case ev.TaskReported(task=task, result=result) if self._is_main(task):
                return [*self._mark(task, result), *artifacts_in(result)]
            case ev.TaskReturned(task=task, position=position, result=result) if self._is_main(task):
                if position > task.start:
                    return self._mark(task.front_until(min(position, task.end)), result)
        return []

    # -- what is done ----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the present epoch: 0, 1, ..."""
        return self.ledger.number

    @property
    def complete(self) -> bool:
        """Whether all of the present epoch is done."""
        return self.ledger.complete

    @property
    def epochs_done(self) -> int:
        """Number of complete epochs."""
        return self.ledger.number + (1 if self.ledger.complete else 0)

    @property
    def trained(self) -> bool:
        """Whether every record of every epoch is processed, or training was stopped for a reason."""
        return bool(self.stopped) or (self._plans.main.listed and self.epochs_done >= self._plans.main.epochs)

    @property
    def records_done(self) -> int:
        """Records processed in all epochs."""
        return self.ledger.number * self._plans.main.records + self.ledger.records

    @property
    def records_total(self) -> int:
        """Records to process in all epochs."""
        return self._plans.main.records * self._plans.main.epochs

    def done(self) -> list[TaskId]:
        """The done tasks that somebody may still ask about."""
        before = self._previous.done() if self._previous is not None else []
        return before + self.ledger.done()

    def results(self) -> dict[TaskId, bytes]:
        """The results that the queue keeps with done tasks: accounts that are not as expected."""
        done = set(self.done())
        return {task: account.within(b"") for task, account in self.accounts.items() if task in done}

    def has_begun(self, task: TaskId) -> bool:
        """Whether any record of a task of the main work is done; of earlier epochs all are."""
        if not self._is_main(task):
            return False
        return task.epoch < self.ledger.number or (task.epoch == self.ledger.number and self.ledger.has_begun(task))

    # -- what is to do ---------------------------------------------------------------------------------------------

    def remaining(self) -> list[TaskId]:
        """The tasks of the present epoch that are to do, in its order."""
        return self.ledger.remaining(range(self._plans.main.ready))

    def pending(self) -> list[TaskId]:
        """The tasks of those that may be leased now."""
        if not self._plans.with_epochs or self.stopped or self.held:
            return []
        ahead = range(self.number + 1, self._reach + 1)
        return [*self.remaining(), *(task for number in ahead for task in self._whole(number))]

    def reach(self, tasks: int) -> list[TaskId]:
        """Lets the tasks of following epochs be leased while fewer than ``tasks`` of those before are to do.

        Returns:
            Those that may be leased from now on.
        """
        parts, main = len(self._plans.main.parts), self._plans.main
        if not self._plans.with_epochs or self.stopped or self.held or not main.listed or not parts:
            return []
        self._reach = max(self._reach, self.number)
        left = (self._reach - self.number + 1) * parts - self.ledger.tasks_done
        found: list[TaskId] = []
        while left < tasks and self._reach + 1 < main.epochs:
            self._reach += 1
            found += self._whole(self._reach)
            left += parts
        return found

    def _whole(self, number: int) -> list[TaskId]:
        """All tasks of an epoch."""
        return [self._plans.main.task(number, index) for index in range(len(self._plans.main.parts))]

    def begin_next(self) -> list[TaskId]:
        """Goes on to the next epoch; returns the done tasks that nobody will ask about any more."""
        forgotten = self._previous.done() if self._previous is not None else []
        self._previous = self.ledger
        self.ledger = EpochLedger(self._plans.main, self.ledger.number + 1)
        return forgotten

    # -- checkpoints and takeovers ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The done work of all epochs as JSON data, for a checkpoint."""
        accounts = self.accounts.to_mapping()
        return self.ledger.to_mapping() | ({"accounts": accounts} if accounts else {})

    def advanced(self, save: Save, tasks: Iterable[TaskId]) -> Save:
        """A checkpoint that contains more tasks than were done when it was ordered.

        Raises:
            ConflictError: there are tasks of an epoch that does not follow complete ones, as no snapshot can say.
        """
        main, mine = self._plans.main, [task for task in tasks if self._is_main(task)]
        ledger = EpochLedger.from_mapping(main, save.done)
        number = max((ledger.number, *(task.epoch for task in mine)))
        while True:
            for task in mine:
                if task.epoch == ledger.number:
                    ledger.mark(task)
            if ledger.number == number:
                break
            if not ledger.complete:
                raise ConflictError(
                    f"the model has records of epoch {number}, but not all of epoch {ledger.number}",
                    fix="the checkpoint is repeated later",
                )
            ledger = EpochLedger(main, ledger.number + 1)
        return replace(
            save,
            done={**save.done, **ledger.to_mapping()},
            training_epoch=number + (1 if ledger.complete else 0),
            records_done=number * main.records + ledger.records,
        )

    def roll_back(self, snapshot: Mapping[str, Any] | None) -> tuple[int, list[Instruction]]:
        """Goes back to a snapshot, or to nothing. Returns how many records are to do again, and what follows."""
        before = self.records_done
        main = self._plans.main
        self.ledger = EpochLedger.from_mapping(main, snapshot) if snapshot else EpochLedger(main, 0)
        self._previous = None
        self._reach = 0
        self.stopped = ""
        changes = self.accounts.replace((snapshot or {}).get("accounts") or {})
        return max(0, before - self.records_done), [MarkDone([], changes)] if changes else []

    def adopt_done(self, tasks: Iterable[TaskId]) -> None:
        """Takes over what an earlier master knew to be done: epochs are complete below the highest one seen."""
        mine = [task for task in tasks if task.type is self._plans.main_type and self._plans.main.holds(task)]
        if not mine:
            return
        highest = max(task.epoch for task in mine)
        if highest > self.ledger.number:
            self.ledger = EpochLedger(self._plans.main, highest)
        for task in mine:
            if task.epoch == self.ledger.number:
                self.ledger.mark(task)

    def go_on(self, number: int, queued: Iterable[TaskId], durable: Iterable[TaskId], stopped: str) -> None:
        """Goes on where an earlier master was.

        Args:
            number: its epoch.
            queued: what is done by the queue.
            durable: what is done by the durable marks.
            stopped: why training had ended, if it had.
        """
        queued = list(queued)
        if number > 0:
            self.ledger = EpochLedger(self._plans.main, number)
        self.adopt_done([*queued, *durable])
        self.stopped = stopped
        if self.ledger.number > 0:
            self._previous = EpochLedger(self._plans.main, self.ledger.number - 1)
            for task in queued:
                if task.type is self._plans.main_type and task.epoch == self._previous.number:
                    self._previous.mark(task)

    def adopt_accounts(self, durable: Mapping[str, Any], results: Mapping[TaskId, bytes]) -> list[Instruction]:
        """Takes over what the ledger says of tasks' records, and over it what the queue says, the newer word.

        Args:
            durable: the ledger's accounts, by task.
            results: the done tasks that the queue knows, with what was reported of each.
        """
        self.accounts.replace(durable)
        out: list[Instruction] = []
        for task, result in results.items():
            if self._is_main(task):
                changes = self.accounts.record(task, RecordAccount.of_result(result))
                if changes:
                    out.append(MarkDone([], changes))
        return out

    def _is_main(self, task: TaskId) -> bool:
        return self._plans.with_epochs and task.type is self._plans.main_type

    def _mark(self, task: TaskId, result: bytes) -> list[Instruction]:
        out: list[Instruction] = []
        if task.epoch == self.number + 1 and self.complete and self._plans.validation is None:
            # A group goes on from epoch to epoch by itself, also into one that training is stopped in meanwhile.
            forgotten = self.begin_next()
            out += [ForgetTasks(forgotten)] if forgotten else []
        if task.epoch != self.number or not self._plans.main.holds(task):
            return out
        self.ledger.mark(task)
        before = self.accounts.skips
        changes = self.accounts.record(task, RecordAccount.of_result(result))
        return [
            *out,
            MarkDone([task], changes),
            *(tell("skipped", news) for news in doublings(before, self.accounts.skips)),
        ]
