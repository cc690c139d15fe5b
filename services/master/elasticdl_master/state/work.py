"""The work of a job: its plans, its present round, evaluations in flight, and single tasks such as the export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.shuffling import Reading, described
from elasticdl_core.task import Shard, TaskId, TaskType
from elasticdl_master.state.accounts import AccountBook
from elasticdl_master.state.evaluations import Evaluation
from elasticdl_master.state.ledger import Round
from elasticdl_master.state.plan import Plan

EXPORT_TASK = TaskId(TaskType.EXPORT, 0, 0, 0, 0)
MAIN_TYPES = {
    JobType.TRAINING: TaskType.TRAINING,
    JobType.EVALUATION: TaskType.EVALUATION,
    JobType.PREDICTION: TaskType.PREDICTION,
}


class Work:
    """What there is to do and what is done.

    Args:
        spec: the job.

    Attributes:
        stopped: why training ended before all records were processed; empty if it did not.
        held: whether no training task is leased before the result of an evaluation that may end training.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.main_type = MAIN_TYPES[spec.type]
        training = spec.type is JobType.TRAINING
        self.main = Plan(
            self.main_type,
            spec.records_per_task,
            rounds=spec.num_epochs if training else 1,
            seed=spec.seed,
            shuffle=spec.shuffle and training,
            block=spec.shuffle_block,
        )
        validates = bool(spec.validation_data)
        self.validation: Plan | None = None
        if training and validates:
            self.validation = Plan(TaskType.EVALUATION, spec.records_per_task)
        elif spec.type is JobType.EVALUATION:
            self.validation = self.main
        self.round = Round(self.main, 0)
        self.previous: Round | None = None
        self.accounts = AccountBook()
        self.evaluations: dict[int, Evaluation] = {}
        self.singles: set[TaskId] = set()
        self.singles_done: set[TaskId] = set()
        self.stopped = ""
        self.held = False

    # -- listing ---------------------------------------------------------------------------------------------------

    def plan_of(self, type_: TaskType) -> Plan | None:
        """The plan of a type of work, if the job has it."""
        if type_ is self.main_type:
            return self.main
        return self.validation if type_ is TaskType.EVALUATION else None

    @property
    def listed(self) -> bool:
        """Whether all shards are known."""
        return self.main.listed and (self.validation is None or self.validation.listed)

    # -- main work -------------------------------------------------------------------------------------------------

    @property
    def uses_rounds(self) -> bool:
        """Whether the main work is rounds of tasks; an evaluation job has one evaluation instead."""
        return self.spec.type is not JobType.EVALUATION

    @property
    def rounds_done(self) -> int:
        """Number of complete rounds."""
        return self.round.number + (1 if self.round.complete else 0)

    @property
    def trained(self) -> bool:
        """Whether every record of every round is processed, or training was stopped for a reason."""
        if not self.uses_rounds:
            return self.main.listed
        return bool(self.stopped) or (self.main.listed and self.rounds_done >= self.main.rounds)

    @property
    def records_done(self) -> int:
        """Records processed in all rounds."""
        if not self.uses_rounds:
            return max((e.progress.records for e in self.evaluations.values()), default=0)
        return self.round.number * self.main.records + self.round.records

    @property
    def records_total(self) -> int:
        """Records to process in all rounds."""
        return self.main.records * self.main.rounds

    def next_round(self) -> list[TaskId]:
        """Goes on to the next round; returns what nobody will ask about any more."""
        forgotten = self.previous.done() if self.previous is not None else []
        self.previous = self.round
        self.round = Round(self.main, self.round.number + 1)
        return forgotten

    def todo(self) -> list[TaskId]:
        """What is to do of the present round, in its order."""
        return self.round.remaining(range(self.main.ready))

    def snapshot(self) -> dict[str, Any]:
        """The done work of all rounds as JSON data, for a checkpoint."""
        accounts = self.accounts.to_mapping()
        return self.round.to_mapping() | ({"accounts": accounts} if accounts else {})

    def roll_back(self, snapshot: Mapping[str, Any] | None) -> int:
        """Goes back to a snapshot, or to nothing. Returns how many records are to do again."""
        before = self.records_done
        self.round = Round.from_mapping(self.main, snapshot) if snapshot else Round(self.main, 0)
        self.previous = None
        self.stopped = ""
        return max(0, before - self.records_done)

    def adopt_done(self, tasks: Iterable[TaskId]) -> None:
        """Takes over what an earlier master knew to be done: rounds are complete below the highest one seen."""
        mine = [task for task in tasks if task.type is self.main_type and self.main.holds(task)]
        if not mine:
            return
        highest = max(task.round for task in mine)
        if highest > self.round.number:
            self.round = Round(self.main, highest)
        for task in mine:
            if task.round == self.round.number:
                self.round.mark(task)

    # -- one task --------------------------------------------------------------------------------------------------

    def evaluation_of(self, task: TaskId) -> Evaluation | None:
        """The evaluation that a task is of."""
        if task.type in (TaskType.EVALUATION, TaskType.EVALUATION_SUMMARY):
            return self.evaluations.get(task.round)
        return None

    def shard_of(self, task: TaskId) -> Shard:
        """The range that a task stands for; an empty one for tasks without."""
        plan = self.plan_of(task.type)
        if plan is None or not plan.holds(task):
            return Shard("", 0, 0)
        return plan.shard_of(task)

    def reading(self, task: TaskId) -> Reading | None:
        """Where the records of a task lie, if they are shuffled."""
        plan = self.plan_of(task.type)
        return plan.reading(task) if plan is not None and plan.holds(task) else None

    def described(self, task: TaskId) -> str:
        """Where a task's records lie, in words."""
        reading = self.reading(task)
        return described([self.shard_of(task)] if reading is None else reading.ranges)

    def pending(self) -> list[TaskId]:
        """Everything that is to do, in the order in which it should be leased."""
        tasks = sorted(self.singles)
        for evaluation in self.evaluations.values():
            tasks += pending_of(evaluation)
        if self.uses_rounds and not self.stopped and not self.held:
            tasks += self.todo()
        return tasks

    def finished(self) -> list[TaskId]:
        """Everything done that somebody may still ask about."""
        tasks: list[TaskId] = sorted(self.singles_done)
        for evaluation in self.evaluations.values():
            tasks += evaluation.progress.done()
        if self.previous is not None:
            tasks += self.previous.done()
        return tasks + self.round.done()


def pending_of(evaluation: Evaluation) -> list[TaskId]:
    """What is to do of an evaluation; its summary is one of the single tasks."""
    if evaluation.stage != "running":
        return []
    plan = evaluation.progress.plan
    return evaluation.progress.remaining(range(plan.ready))
