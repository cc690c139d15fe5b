"""The audit at a job's end: every planned record is in the model, or counted as passed over.

The parameter servers tally the records of each gradient by task, in the same update that applies it, and save and
restore the tally with the parameters. So it says what is in the model, whatever queue, leases and ledger believe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.job import JobType
from elasticdl_core.skips import rests_left_out
from elasticdl_core.task import TaskId
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.instructions import Instruction, ReadTallies, tell
from elasticdl_master.state.plan import JobPlans
from elasticdl_master.state.tally import Tallied

_NAMED = 3


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome.

    Attributes:
        planned: records of the tasks that are to be in the model.
        committed: of those, the records that are, each counted once.
        skipped: of those, the records that were passed over.
        duplicates: records that are in the model once more than they should.
        missing: what is in neither: words for each task, at most a few.
        incomplete: why the parameter servers cannot tell; empty if they can.
    """

    planned: int
    committed: int
    skipped: int
    duplicates: int
    missing: tuple[str, ...] = ()
    incomplete: str = ""

    @property
    def state(self) -> str:
        """``passed``, ``failed`` or ``incomplete``."""
        return "failed" if self.missing else "incomplete" if self.incomplete else "passed"

    def to_mapping(self) -> dict[str, Any]:
        """For the job's status."""
        return {
            "state": self.state,
            "reason": self.incomplete or "; ".join(self.missing),
            "planned": self.planned,
            "committed": self.committed,
            "skipped": self.skipped,
            "duplicates": self.duplicates,
        }


def audit(plans: JobPlans, epochs: Epochs, tallies: Sequence[Tallied]) -> AuditOutcome:
    """Compares what should be in the model with what is.

    Args:
        plans: what there was to do.
        epochs: what is done of it: all, unless training was stopped.
        tallies: of all PS; a record is in the model if it is on all of them.
    """
    planned = committed = duplicates = skipped = 0
    missing: list[str] = []
    for task in _tasks(plans, epochs):
        rows = epochs.accounts.rows(task)
        key = (task.epoch, task.index)
        least = min(tally.counts.get(key, 0) for tally in tallies)
        most = max(tally.counts.get(key, 0) for tally in tallies)
        left_out = epochs.accounts.skipped(task)
        planned, skipped = planned + task.records, skipped + left_out
        duplicates += max(0, most - rows)
        if least >= rows:
            committed += task.records - left_out
            continue
        committed += min(least, task.records)
        if len(missing) < _NAMED:
            missing.append(f"{rows - least} of the {rows} records of task {task}, {plans.describe(task)}")
    if not all(tally.complete for tally in tallies):
        reason = "the job went on from a checkpoint that does not say which records it contains"
        return AuditOutcome(planned, 0, skipped, 0, incomplete=reason)
    return AuditOutcome(planned, committed, skipped, duplicates, tuple(missing))


def _tasks(plans: JobPlans, epochs: Epochs) -> Iterator[TaskId]:
    """The tasks that must be in the model."""
    for number in range(epochs.number + 1):
        for index in range(len(plans.main.parts)):
            if number < epochs.number or epochs.ledger.is_done(index):
                yield plans.main.task(number, index)


class RecordAudit:
    """Has the audit made, and knows what was passed over and what is in the model too often.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.

    Attributes:
        outcome: of the audit; None before it.
    """

    def __init__(self, job: JobContext, epochs: Epochs, evaluations: Evaluations) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self.outcome: AuditOutcome | None = None
        self._asked_generation = -1

    def request(self) -> list[Instruction]:
        """Asks the PS for their tallies, once for each set of PS."""
        if self._asked_generation == self._job.servers.generation:
            return []
        self._asked_generation = self._job.servers.generation
        return [ReadTallies()]

    def compare(self, tallies: Sequence[Tallied]) -> list[Instruction]:
        """Makes the audit; the job fails if records are missing."""
        found = self.outcome = audit(self._job.plans, self._epochs, tallies)
        counts = f"{found.planned:,} records planned, {found.committed:,} in the model, {found.skipped:,} passed over"
        if found.duplicates:
            counts += f", {found.duplicates:,} of them more than once"
        if found.missing:
            self._job.lifecycle.fail(
                f"the audit found that the model lacks records of tasks that are done: {'; '.join(found.missing)}",
                fix="this is a defect of ElasticDL, not of the model module: keep the job's logs and report it; "
                "do not use the model",
                kind="audit",
            )
        return [tell("audit", f"audit {found.state}: {counts}", **found.to_mapping())]

    @property
    def duplicates(self) -> int:
        """Records that are in the model too often: exact after the audit, before that at least so many."""
        if self.outcome is not None:
            return self.outcome.duplicates
        if self._job.spec.type is not JobType.TRAINING or not self._job.servers.ready:
            return 0
        in_hand = sum(task.records for task in self._job.workers.training_in_hand())
        present = max(server.records for server in self._job.servers.servers)
        return max(0, present - self._epochs.accounts.rows_of(self._epochs.records_done) - in_hand)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """The passed over records, as JSON data: one entry for each reason and kind of data."""
        entries = [{"of": "main", **entry} for entry in self._epochs.accounts.skips.to_json()]
        plans = {"main": self._job.plans.main, "validation": self._job.plans.validation}
        for of, plan in plans.items():
            if plan is not None and (of == "main" or plan is not self._job.plans.main):
                entries += rests_left_out(of, plan.damaged)
        return entries + [{"of": "validation", **entry} for entry in self._evaluations.skips.to_json()]
