"""Requests for tasks and reports that come at once, replayed, or broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.task import Shard
from elasticdl_master.desk import Desk, Handed
from elasticdl_master.queue.memory import MemoryQueue
from elasticdl_master.queue.port import Outcome, Taken, Turn
from elasticdl_master.state.ending import Directive
from tests.fakes.job_world import World, finish

pytestmark = pytest.mark.unit


class SlowQueue(MemoryQueue):
    """Answers turns when told to, after it has moved."""

    def open(self) -> None:
        self.gate = asyncio.Event()
        self.moves: list[int] = []

    async def turns(self, turns: Sequence[Turn], lease_s: float) -> list[Taken]:
        taken = await super().turns(turns, lease_s)
        self.moves.append(len(turns))
        await self.gate.wait()
        return taken


def working_world(**changes: object) -> World:
    spec = {
        "model_def": "m.f",
        "model_zoo": "/zoo",
        "training_data": "/data",
        "minibatch_size": 1,
        "num_minibatches_per_task": 1,
        "min_workers": 2,
        "max_workers": 2,
        **changes,
    }
    world = World(1, JobSpec.from_mapping(spec), [Shard("a", 0, 50)])
    world.start_master()
    while sum(worker.registered for worker in world.workers.values()) < 2 or not world.machine.work.main.listed:
        world.step()
    return world


@pytest.fixture
def world() -> World:
    return working_world()


def owners(world: World) -> list[str]:
    return [worker.owner for worker in world.machine.workers.running]


def lease(desk: Desk, owner: str) -> Handed:
    (one,), directive = finish(desk.lease(owner, 1))
    assert directive is Directive.CONTINUE
    return one


def slow_desk(world: World) -> tuple[Desk, SlowQueue]:
    queue = SlowQueue(world.store, world.epoch)
    queue.open()
    return Desk(world.machine, queue, world.carry_out, lambda: world.now), queue


async def arrive(desk: Desk) -> None:
    """Lets what was begun come as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_report_brings_the_next_task(world: World) -> None:
    desk, owner = world.desk, owners(world)[0]
    assert desk is not None
    one = lease(desk, owner)
    answer = finish(desk.report(one.task.id, one.lease.token, owner, records=1, limit=2))
    assert (answer.outcome, len(answer.handed)) == (Outcome.ACCEPTED, 2)
    assert all(world.machine.holds(owner, str(more.lease.token)) for more in answer.handed)
    assert not world.machine.holds(owner, str(one.lease.token))
    plain = answer.handed[0]
    answer = finish(desk.report(plain.task.id, plain.lease.token, owner, records=1))
    assert (answer.outcome, list(answer.handed)) == (Outcome.ACCEPTED, [])


def test_a_replay_brings_the_tasks_of_the_lost_answer_and_leases_nothing(world: World) -> None:
    desk, owner = world.desk, owners(world)[0]
    assert desk is not None
    one = lease(desk, owner)
    first = finish(desk.report(one.task.id, one.lease.token, owner, records=1, limit=2))
    left = len(world.store.todo)
    again = finish(desk.report(one.task.id, one.lease.token, owner, records=1, limit=2))
    assert (again.outcome, again.handed) == (Outcome.REPLAY, first.handed)
    assert len(world.store.todo) == left
    done, kept = first.handed
    finish(desk.report(done.task.id, done.lease.token, owner, records=1))
    again = finish(desk.report(one.task.id, one.lease.token, owner, records=1, limit=2))
    assert (again.outcome, again.handed) == (Outcome.REPLAY, [kept])


async def test_what_comes_while_the_queue_is_busy_is_taken_in_one_move(world: World) -> None:
    desk, queue = slow_desk(world)
    first, second = owners(world)
    calls = [asyncio.create_task(desk.lease(first, 1))]
    await arrive(desk)
    calls += [asyncio.create_task(desk.lease(owner, 1)) for owner in (second, first, second)]
    calls.append(asyncio.create_task(desk.lease("worker-99.0", 1)))
    await arrive(desk)
    queue.gate.set()
    answers = await asyncio.gather(*calls)
    assert queue.moves == [1, 3]
    assert [directive for _, directive in answers] == [Directive.CONTINUE] * 4 + [Directive.DRAIN]
    tasks = [handed[0].task.id for handed, _ in answers[:4]]
    assert len(set(tasks)) == 4


async def test_whoever_went_away_while_waiting_is_handed_nothing(world: World) -> None:
    desk, queue = slow_desk(world)
    owner = owners(world)[0]
    calls = [asyncio.create_task(desk.lease(owner, 1))]
    await arrive(desk)
    calls += [asyncio.create_task(desk.lease(owner, 1)) for _ in range(2)]
    await arrive(desk)
    calls[1].cancel()
    await arrive(desk)
    queue.gate.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert queue.moves == [1, 1]
    assert calls[1].cancelled()
    assert calls[2].result()[1] is Directive.CONTINUE


async def test_a_report_broken_off_half_way_is_made_good_by_its_replay(world: World) -> None:
    assert world.desk is not None
    owner = owners(world)[0]
    one = lease(world.desk, owner)
    desk, queue = slow_desk(world)
    before = world.machine.work.round.tasks_done
    call = asyncio.create_task(desk.report(one.task.id, one.lease.token, owner, records=1))
    await arrive(desk)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert one.task.id in world.store.done
    assert world.machine.work.round.tasks_done == before
    queue.gate.set()
    answer = await desk.report(one.task.id, one.lease.token, owner, records=1)
    assert answer.outcome is Outcome.REPLAY
    assert world.machine.work.round.tasks_done == before + 1
    await desk.report(one.task.id, one.lease.token, owner, records=1)
    assert world.machine.work.round.tasks_done == before + 1


async def test_a_queue_made_anew_after_one_report_keeps_those_that_came_with_it() -> None:
    world = working_world(max_steps=2)
    assert world.desk is not None
    first, second = owners(world)
    held = [(owner, lease(world.desk, owner)) for owner in (first, second)]
    desk, queue = slow_desk(world)
    calls = [asyncio.create_task(desk.lease(first, 1))]
    await arrive(desk)
    calls += [
        asyncio.create_task(desk.report(one.task.id, one.lease.token, owner, records=1, model_version=2))
        for owner, one in held
    ]
    await arrive(desk)
    queue.gate.set()
    await asyncio.gather(*calls)
    assert queue.moves == [1, 2]
    assert world.machine.work.stopped
    assert {one.task.id for _, one in held} <= set(world.store.done)
    assert not {one.task.id for _, one in held} & set(world.store.doing)
