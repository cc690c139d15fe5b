"""Finding out which records there are: listing the shards of the job's data, and making the plan durable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl_core.job.updates import words_of_updates
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.instructions import AddTasks, Instruction, ListShards, PutPlan, tell

MAX_TASKS = 5_000_000
"""Tasks of one pass over the data: the master holds an entry for each in memory."""


class ShardListing:
    """Has the shards listed, here or by a worker, and adds tasks as soon as their records are known.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
    """

    def __init__(self, job: JobContext, epochs: Epochs) -> None:
        self._job = job
        self._epochs = epochs
        self._durable = False

    @property
    def waits_for_worker(self) -> bool:
        """Whether a worker is to list the shards and has not done so."""
        return self._job.setup.lists_by_worker and not self._job.plans.listed

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in shards, and that a worker has listed all."""
        match event:
            case ev.ShardsListed():
                return self._listed(event)
            case ev.TaskReported(task=TaskId(type=TaskType.LIST_SHARDS) as task):
                self._job.single_tasks.finish(task)
        return []

    def begin(self) -> list[Instruction]:
        """Has the shards listed that are not known yet."""
        if self._job.plans.listed:
            return []
        if not self._job.setup.lists_by_worker:
            return [ListShards()]
        count = len(self._job.plans.to_list())
        self._job.single_tasks.add(*(TaskId(TaskType.LIST_SHARDS, 0, index, 0, 0) for index in range(count)))
        return []

    def adopt(self, plan: Mapping[str, Any]) -> None:
        """Takes over the durable plan."""
        self._job.plans.adopt(plan)
        self._durable = True

    def payload(self, task: TaskId) -> dict[str, Any]:
        """The facts that a worker needs to list shards."""
        purpose = self.purpose(task)
        return {
            "purpose": str(purpose),
            "origin": self._job.plans.data_of(purpose),
            "records_per_task": self._job.spec.records_per_task,
        }

    def purpose(self, task: TaskId) -> TaskType:
        """The type of work whose data a task lists."""
        return self._job.plans.main_type if task.index == 0 else TaskType.EVALUATION

    def lacks(self, task: TaskId) -> bool:
        """Whether the list that a task asks for is not complete."""
        plan = self._job.plans.of(self.purpose(task))
        return plan is not None and not plan.listed

    def _listed(self, event: ev.ShardsListed) -> list[Instruction]:
        plan = self._job.plans.of(event.type)
        if plan is None or plan.listed:
            return []
        tasks = plan.count_tasks(event.shards)
        if tasks > MAX_TASKS:
            self._job.lifecycle.fail(
                f"the {event.type} data would make {tasks:,} tasks of {plan.records_per_task} records, more than "
                f"{MAX_TASKS:,}",
                fix="raise minibatch_size or num_minibatches_per_task, or look at what the data reader says",
                kind="data",
            )
            return []
        plan.set_grain(event.grain)
        ready = plan.extend(event.shards, last=event.last)
        plan.damaged.update(event.damaged)
        plan.fingerprints.update(event.fingerprints)
        out: list[Instruction] = [
            tell("skipped", f"the rest of {path} is left out, with an unknown number of records: {reason}")
            for path, reason in event.damaged.items()
        ]
        if plan is self._job.plans.main and (updates := self._job.plans.updates_per_epoch):
            out.append(tell("updates", words_of_updates(self._job.spec, updates)))
        if plan.listed and not plan.parts:
            self._job.lifecycle.fail(
                f"the {event.type} data holds no records", fix="check the path and the reader's parameters"
            )
        elif plan is self._job.plans.main and self._job.plans.with_epochs and ready and not self._epochs.held:
            out.append(AddTasks(self._epochs.ledger.remaining(ready)))
        if self._job.plans.listed and not self._durable and not self._job.lifecycle.ending:
            self._durable = True
            out.append(PutPlan(self._job.plans.to_mapping()))
        return out
