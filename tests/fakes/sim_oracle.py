"""The oracle of a simulated job: what must be true of queue, ledger and model whatever happens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from elasticdl_core.shuffling import cut, joined_parts
from elasticdl_core.task import TaskId, TaskType
from tests.fakes.sim_processes import Record

if TYPE_CHECKING:
    from tests.fakes.job_world import World


class Oracle:
    """Checks a world.

    Args:
        world: is checked.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def check_lease(self, task: TaskId) -> None:
        """D6: no task of an epoch before the one before it is complete."""
        if task.type is not TaskType.TRAINING:
            return
        if self.world.machine.gate.rules.early_stopping is not None:
            assert not self.world.machine.evaluations.running, (
                f"{task} is leased while an evaluation may end training"
            )
        for server in self.world.servers.values():
            for index, part in enumerate(self.world.machine.plans.main.parts):
                for at in range(part.start, part.end):
                    if task.epoch > 0:
                        assert server.applied[task.epoch - 1, index, at], f"{task} before {task.epoch - 1} is done"

    def audit(self) -> None:
        """D1: what is to do, in hand, done and quarantined is exactly the plan of the round."""
        if self.world.dispatcher is None or self.world.dispatcher.broken or not self.world.store.ready:
            return
        if self.world.tail_lost:
            return  # the master will find out when it next asks
        machine, epochs, main = self.world.machine, self.world.machine.epochs, self.world.machine.plans.main
        if not machine.plans.listed or epochs.stopped or not machine.servers.ready or machine.lifecycle.ending:
            return
        if self.world.plants and not machine.conditions.contradictions:
            return  # what was planted is not found yet
        assert self.world.plants or not machine.conditions.contradictions, "queue and machine did not agree"
        store = self.world.store
        places = [*store.todo, *store.doing, *store.done, *store.quarantined]
        mine = [t for t in places if t.type is TaskType.TRAINING and t.epoch == epochs.number]
        records = Counter((t.index, at) for t in mine for at in range(t.start, t.end))
        assert all(count == 1 for count in records.values()), "a record is in two places"
        plan = {(i, at) for i, part in enumerate(main.parts) for at in range(part.start, part.end)}
        kept_back = {(t.index, at) for t in epochs.remaining() if epochs.held for at in range(t.start, t.end)}
        assert set(records) | kept_back == plan, f"{len(plan - set(records))} records are nowhere"
        mirrored = machine.contents()
        assert set(mirrored.todo) == set(store.todo), set(mirrored.todo) ^ set(store.todo)

    def applied(self) -> list[Counter[Record]]:
        """What the last checkpoint contains, by PS."""
        newest = self.world.manifests[-1]
        return [server.applied for server in self.world.checkpoints[newest["directory"]]]

    def expected(self) -> set[Record]:
        """Every record of every epoch."""
        assert self.world.plan is not None
        spec = self.world.spec
        parts = (joined_parts if spec.shuffle else cut)(self.world.shards, spec.records_per_task)
        return {
            (epoch, index, at)
            for epoch in range(self.world.spec.num_epochs)
            for index, part in enumerate(parts)
            for at in range(part.start, part.end)
        }
