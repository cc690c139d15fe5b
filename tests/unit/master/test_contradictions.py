"""Queue and machine that contradict each other: the master sees it, mends it, says so, and the job ends exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.meters import meters_of
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import kinds, make_world
from tests.fakes.sim_processes import finish

pytestmark = pytest.mark.unit


def held(world: World) -> list[TaskId]:
    """The training tasks that are in hand in the queue, of which no record is in the model yet."""
    trained = {(epoch, index) for server in world.servers.values() for epoch, index, _ in server.applied}
    return [
        task
        for task in world.store.doing
        if task.type is TaskType.TRAINING and (task.epoch, task.index) not in trained
    ]


def lose_all(world: World) -> None:
    """The tasks of an epoch never came into the queue."""
    world.store.todo.clear()
    world.store.doing.clear()
    world.store.deadlines.clear()
    for worker in world.workers.values():
        worker.work, worker.unsent = [], None


def take_back_unheard(world: World) -> None:
    """Leases went back to the queue, and the machine did not hear of it."""
    for task in held(world):
        lease = world.store.doing[task]
        finish(world.dispatcher.queue.return_(task, lease.token, task.start))
        for worker in world.workers.values():
            worker.work = [one for one in worker.work if one.lease.token != lease.token]


def lease_unheard(world: World) -> None:
    """A worker that will never hear of it got a lease, and the machine did not hear of it either."""
    owner = next(iter(world.workers.values())).owner
    assert finish(world.dispatcher.queue.lease(owner, 1, 15.0))


def report_unheard(world: World) -> None:
    """A front was done and returned, and the machine did not hear of it."""
    for worker in world.workers.values():
        if worker.work and worker.work[0].task.id.start < worker.position < worker.work[0].task.id.end:
            one = worker.work[0]
            finish(world.dispatcher.queue.return_(one.task.id, one.lease.token, worker.position))
            worker.work, worker.unsent = [], None
            return
    raise AssertionError("nobody is in the middle of a task")


def in_the_middle(world: World) -> bool:
    """Whether a worker has trained a part of what it holds, and others hold what they have not begun."""
    if world.machine is None or world.machine.epochs.records_done < 12:
        return False
    middle = [w for w in world.workers.values() if w.work and w.work[0].task.id.start < w.position and not w.unsent]
    return bool(middle) and bool(held(world)) and len(world.store.todo) > 1


@pytest.mark.parametrize("plant", [lose_all, take_back_unheard, lease_unheard, report_unheard])
def test_a_contradiction_is_mended_told_and_counted(plant: Callable[[World], None]) -> None:
    for seed in range(4):
        world = make_world(seed, checkpoint_steps=0, validation_data="/v")
        world.start_master()
        run(world, in_the_middle)
        world.plants, world.next_reap = True, world.now
        plant(world)
        run(world, lambda world: "queue_contradiction" in kinds(world), seconds=3.0)
        assert world.machine is not None
        numbers = meters_of(status_of(world.machine), 2, world.machine.conditions.contradictions)
        assert numbers["elasticdl_job_queue_contradictions_total", ""] == 1
        run(world, ended, seconds=300.0)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert kinds(world).count("queue_contradiction") == 1
        for applied in world.oracle.applied():
            assert set(applied) == world.oracle.expected()
            if plant is not lose_all:  # whose workers forgot what they had trained
                assert set(applied.values()) == {1}


def test_an_instruction_that_was_dropped_is_made_good() -> None:
    world = make_world(1, validation_data="/v")
    world.start_master()
    run(world, lambda world: world.machine.epochs.number == 1 and world.machine.workers.leases())
    world.plants, world.next_reap = True, world.now
    dropped = [task for task in world.store.todo if task.type is TaskType.TRAINING]
    for task in dropped:
        del world.store.todo[task]
    assert dropped
    run(world, ended, seconds=300.0)
    assert world.state is JobState.SUCCEEDED
    assert kinds(world).count("queue_contradiction") == 1
    for applied in world.oracle.applied():
        assert set(applied.values()) == {1}
