"""The audit at a job's end: every planned record is in the model, or counted as passed over.

The parameter servers tally the records of each gradient by task, in the same update that applies it, and save and
restore the tally with the parameters. So it says what is in the model, whatever queue, leases and ledger believe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.task import TaskId
from elasticdl_master.state.work import Work

Counts = Mapping[tuple[int, int], int]
"""Records by round and index of the task."""
_NAMED = 3


@dataclass(frozen=True)
class Tallied:
    """What one PS has.

    Attributes:
        counts: records that are in its parameters.
        complete: whether all of its gradients were counted.
    """

    counts: Counts
    complete: bool = True


@dataclass(frozen=True)
class Audit:
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


def audit(work: Work, tallies: Sequence[Tallied]) -> Audit:
    """Compares what should be in the model with what is.

    Args:
        work: the plan and what is done of it, all of it unless training was stopped.
        tallies: of all PS; a record is in the model if it is on all of them.
    """
    planned = committed = duplicates = skipped = 0
    missing: list[str] = []
    for task in _tasks(work):
        rows = work.accounts.rows(task)
        key = (task.round, task.index)
        least = min(tally.counts.get(key, 0) for tally in tallies)
        most = max(tally.counts.get(key, 0) for tally in tallies)
        left_out = work.accounts.skipped(task)
        planned, skipped = planned + task.records, skipped + left_out
        duplicates += max(0, most - rows)
        if least >= rows:
            committed += task.records - left_out
            continue
        committed += min(least, task.records)
        if len(missing) < _NAMED:
            missing.append(f"{rows - least} of the {rows} records of task {task}, {work.described(task)}")
    if not all(tally.complete for tally in tallies):
        reason = "the job went on from a checkpoint that does not say which records it contains"
        return Audit(planned, 0, skipped, 0, incomplete=reason)
    return Audit(planned, committed, skipped, duplicates, tuple(missing))


def _tasks(work: Work) -> Iterator[TaskId]:
    """The tasks that must be in the model."""
    last = work.round.number
    for round_ in range(last + 1):
        for index in range(len(work.main.parts)):
            if round_ < last or work.round.is_done(index):
                yield work.main.task(round_, index)
