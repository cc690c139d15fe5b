"""Calls that are broken off at every step that the master takes for them: the job ends with exact counts."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import JobState
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.queue.port import Contents, TaskQueue
from elasticdl_master.state import events as ev
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from tests.fakes.broken_calls import FarQueue, break_off
from tests.fakes.job_world import World, ended, run
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.sim_faults import make_spec
from tests.fakes.sim_processes import LOOP, SimWorker, finish

pytestmark = pytest.mark.unit
T = TypeVar("T")
RECORDS, EPOCHS = 14, 2


class BreakingWorld(World):
    """A job of which one call is broken off: the one of a number, after so many steps.

    Args:
        number: of the call; -1 for none.
        steps: that are taken for it before.
        dies: whether its worker dies with it; one that lives on calls again.
    """

    def __init__(self, number: int = -1, steps: int = 0, *, dies: bool = False) -> None:
        spec = make_spec(
            num_epochs=EPOCHS,
            num_ps=1,
            max_workers=2,
            validation_data="/v",
            checkpoint_steps=4,
            num_minibatches_per_task=2,
        )
        super().__init__(5, spec, [Shard("a", 0, RECORDS)], [Shard("v", 0, 5)])
        self.number, self.steps, self.dies = number, steps, dies
        self.calls: list[tuple[str, int]] = []
        self.failed = False
        self.user_code = self.fail_until_told

    def fail_until_told(self, task: TaskId, position: int) -> str:
        return "user_code" if task.epoch == 1 and task.index == 2 and not self.failed else ""

    def make_queue(self) -> TaskQueue:
        queue: Any = FarQueue(MemoryQueue(self.store, self.epoch))
        return queue

    def call(self, worker: SimWorker, call: Coroutine[Any, Any, T]) -> T:
        number = len(self.calls)
        if number != self.number:
            task = LOOP.begin(call)
            self.calls.append((call.__name__, LOOP.go()))
            self.failed |= call.__name__ == "fail"
            return task.result()
        self.calls.append((call.__name__, self.steps))
        assert break_off(call, self.steps)
        if self.dies:
            self.exit(worker.id, -9)
        raise UnavailableError("the call was broken off")

    def go_to_the_end(self) -> None:
        """Runs the job; a worker is told to leave meanwhile, and gives back what it has."""
        self.start_master()
        self.target = 2

        def until(world: World) -> bool:
            if world.machine is not None:
                world.target = 1 if 6 < world.machine.epochs.records_done < 12 else 2
            return ended(world)

        run(self, until, seconds=600.0)
        assert self.state is JobState.SUCCEEDED, self.detail
        for applied in self.oracle.applied():
            assert set(applied) == self.oracle.expected()
            if not self.dies:
                assert set(applied.values()) == {1}, "records were applied twice"
        evaluations = sorted((e.number, e.training_epoch, e.metrics["n"]) for e in self.evaluations)
        assert evaluations == [(number, number, 5.0) for number in range(1, EPOCHS + 1)]
        assert [artifact.name for artifact in self.artifacts] == ["model.keras"]
        assert [m["records"] for m in self.manifests if m["kind"] == "final"] == [RECORDS * EPOCHS]
        assert not LOOP.errors


def breaks() -> list[tuple[int, int]]:
    """Each call of a job with each number of steps after which it can be broken off."""
    world = BreakingWorld()
    world.go_to_the_end()
    assert {name for name, _ in world.calls} >= {"tell", "lease", "heartbeat", "report", "give_back", "fail"}
    return [(number, steps) for number, (_, most) in enumerate(world.calls) for steps in range(most)]


def sweep(part: int, parts: int, *, dies: bool) -> None:
    for number, steps in breaks()[part::parts]:
        world = BreakingWorld(number, steps, dies=dies)
        try:
            world.go_to_the_end()
        except AssertionError as error:
            name = world.calls[number][0]
            raise AssertionError(f"call {number} ({name}) broken off after {steps} steps: {error}") from error


def test_a_list_of_shards_may_be_broken_off_at_any_step() -> None:
    broken, steps = True, 0
    while broken:
        store = MemoryStore(lambda: 0.0)
        queue: Any = FarQueue(MemoryQueue(store, 1))
        machine = JobMachine(Setup(make_spec(), 1, lists_by_worker=True))
        dispatcher = TaskDispatcher(machine, queue, lambda instruction: None, lambda: 0.0)
        finish(queue.rebuild(Contents(), 60.0))
        finish(dispatcher.tell(ev.Started()))
        finish(dispatcher.tell(ev.WorkerRegistered(0, 0)))
        (one,), _ = finish(dispatcher.lease("worker-0.0", 1))

        def listing(dispatcher: TaskDispatcher = dispatcher, one: DispatchedTask = one) -> Coroutine[Any, Any, bool]:
            shards = [Shard("a", 0, RECORDS)]
            return dispatcher.list_shards(one.task.id, one.lease.token, "worker-0.0", shards, first=0, last=True)

        broken = break_off(listing(), steps)
        assert finish(listing()), "who calls again is told that it is known"
        assert machine.plans.main.records == RECORDS
        assert sum(task.records for task in store.todo if task.type is TaskType.TRAINING) == RECORDS
        steps += 1
    assert steps > 5


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_may_be_broken_off_at_any_step(dies: bool) -> None:
    sweep(0, 7, dies=dies)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_each_call_may_be_broken_off_at_any_step(dies: bool) -> None:
    sweep(0, 1, dies=dies)
