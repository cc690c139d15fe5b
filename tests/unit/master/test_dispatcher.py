"""Requests for tasks and reports that come at once, replayed, or broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.queue.port import Contents, Outcome, TaskReply, TaskRequest
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.workers import GROUP
from tests.fakes.job_world import World
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.sim_processes import finish

pytestmark = pytest.mark.unit


class SlowQueue(MemoryQueue):
    """Answers turns when told to, after it has moved."""

    def open(self) -> None:
        self.gate = asyncio.Event()
        self.moves: list[int] = []

    async def exchange(self, requests: Sequence[TaskRequest], lease_s: float) -> list[TaskReply]:
        taken = await super().exchange(requests, lease_s)
        self.moves.append(len(requests))
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
    while sum(worker.registered for worker in world.workers.values()) < 2 or not world.machine.plans.main.listed:
        world.step()
    return world


@pytest.fixture
def world() -> World:
    return working_world()


def owners(world: World) -> list[str]:
    return [worker.owner for worker in world.machine.workers.running]


def lease(dispatcher: TaskDispatcher, owner: str) -> DispatchedTask:
    if owner == GROUP:
        (held,) = finish(dispatcher.lease_to_group(1))
        return DispatchedTask(dispatcher.machine.task(held), held)
    (one,), directive = finish(dispatcher.lease(owner, 1))
    assert directive is Directive.CONTINUE
    return one


def slow_dispatcher(world: World) -> tuple[TaskDispatcher, SlowQueue]:
    queue = SlowQueue(world.store, world.epoch)
    queue.open()
    return TaskDispatcher(world.machine, queue, world.carry_out, lambda: world.now), queue


async def arrive(dispatcher: TaskDispatcher) -> None:
    """Lets what was begun come as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_report_brings_the_next_task(world: World) -> None:
    dispatcher, owner = world.dispatcher, owners(world)[0]
    assert dispatcher is not None
    one = lease(dispatcher, owner)
    answer = finish(dispatcher.report(one.task.id, one.lease.token, owner, limit=2))
    assert (answer.outcome, len(answer.leased)) == (Outcome.ACCEPTED, 2)
    assert all(world.machine.workers.holds(owner, str(more.lease.token)) for more in answer.leased)
    assert not world.machine.workers.holds(owner, str(one.lease.token))
    plain = answer.leased[0]
    answer = finish(dispatcher.report(plain.task.id, plain.lease.token, owner))
    assert (answer.outcome, list(answer.leased)) == (Outcome.ACCEPTED, [])


def test_a_replay_brings_the_tasks_of_the_lost_answer_and_leases_nothing(world: World) -> None:
    dispatcher, owner = world.dispatcher, owners(world)[0]
    assert dispatcher is not None
    one = lease(dispatcher, owner)
    first = finish(dispatcher.report(one.task.id, one.lease.token, owner, limit=2))
    left = len(world.store.todo)
    again = finish(dispatcher.report(one.task.id, one.lease.token, owner, limit=2))
    assert (again.outcome, again.leased) == (Outcome.REPLAY, first.leased)
    assert len(world.store.todo) == left
    done, kept = first.leased
    finish(dispatcher.report(done.task.id, done.lease.token, owner))
    again = finish(dispatcher.report(one.task.id, one.lease.token, owner, limit=2))
    assert (again.outcome, again.leased) == (Outcome.REPLAY, [kept])


async def test_what_comes_while_the_queue_is_busy_is_taken_in_one_move(world: World) -> None:
    dispatcher, queue = slow_dispatcher(world)
    first, second = owners(world)
    calls = [asyncio.create_task(dispatcher.lease(first, 1))]
    await arrive(dispatcher)
    calls += [asyncio.create_task(dispatcher.lease(owner, 1)) for owner in (second, first, second)]
    calls.append(asyncio.create_task(dispatcher.lease("worker-99.0", 1)))
    await arrive(dispatcher)
    queue.gate.set()
    answers = await asyncio.gather(*calls)
    assert queue.moves == [1, 3]
    assert [directive for _, directive in answers] == [Directive.CONTINUE] * 4 + [Directive.DRAIN]
    tasks = [handed[0].task.id for handed, _ in answers[:4]]
    assert len(set(tasks)) == 4


async def test_whoever_went_away_while_waiting_is_handed_nothing(world: World) -> None:
    dispatcher, queue = slow_dispatcher(world)
    owner = owners(world)[0]
    calls = [asyncio.create_task(dispatcher.lease(owner, 1))]
    await arrive(dispatcher)
    calls += [asyncio.create_task(dispatcher.lease(owner, 1)) for _ in range(2)]
    await arrive(dispatcher)
    calls[1].cancel()
    await arrive(dispatcher)
    queue.gate.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert queue.moves == [1, 1]
    assert calls[1].cancelled()
    assert calls[2].result()[1] is Directive.CONTINUE


async def test_a_report_broken_off_half_way_is_made_good_by_its_replay(world: World) -> None:
    assert world.dispatcher is not None
    owner = owners(world)[0]
    one = lease(world.dispatcher, owner)
    dispatcher, queue = slow_dispatcher(world)
    before = world.machine.epochs.ledger.tasks_done
    call = asyncio.create_task(dispatcher.report(one.task.id, one.lease.token, owner))
    await arrive(dispatcher)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert one.task.id in world.store.done
    assert world.machine.epochs.ledger.tasks_done == before
    queue.gate.set()
    answer = await dispatcher.report(one.task.id, one.lease.token, owner)
    assert answer.outcome is Outcome.REPLAY
    assert world.machine.epochs.ledger.tasks_done == before + 1
    await dispatcher.report(one.task.id, one.lease.token, owner)
    assert world.machine.epochs.ledger.tasks_done == before + 1


async def test_a_queue_made_anew_after_one_report_keeps_those_that_came_with_it() -> None:
    world = working_world(max_steps=2)
    assert world.dispatcher is not None
    first, second = owners(world)
    held = [(owner, lease(world.dispatcher, owner)) for owner in (first, second)]
    dispatcher, queue = slow_dispatcher(world)
    calls = [asyncio.create_task(dispatcher.lease(first, 1))]
    await arrive(dispatcher)
    calls += [
        asyncio.create_task(dispatcher.report(one.task.id, one.lease.token, owner, model_version=2))
        for owner, one in held
    ]
    await arrive(dispatcher)
    queue.gate.set()
    await asyncio.gather(*calls)
    assert queue.moves == [1, 2]
    assert world.machine.epochs.stopped
    assert {one.task.id for _, one in held} <= set(world.store.done)
    assert not {one.task.id for _, one in held} & set(world.store.doing)


def test_the_queue_of_a_job_that_is_over_is_not_taken_for_lost(world: World) -> None:
    dispatcher = world.dispatcher
    assert dispatcher is not None
    task = lease(dispatcher, owners(world)[0])
    finish(dispatcher.discard())
    assert not world.store.ready
    # Whoever still runs while the process ends asks for leases, has them extended, and reports.
    finish(dispatcher.reap())
    assert finish(dispatcher.lease(owners(world)[1], 1)) == ((), Directive.WAIT)
    with pytest.raises(UnavailableError, match="the job is over"):
        finish(dispatcher.report(task.lease.task, task.lease.token, owners(world)[0]))
    assert not dispatcher.trouble.is_set()
    finish(dispatcher.repair())
    assert not world.store.ready, "nobody makes it anew"


@pytest.fixture(params=["worker-0.0", GROUP])
def listing(request: pytest.FixtureRequest) -> tuple[TaskDispatcher, DispatchedTask]:
    """A dispatcher of a job whose records a worker lists, and the task to do so: the worker's, or its group's."""
    strategy = "AllReduceStrategy" if request.param == GROUP else "ParameterServerStrategy"
    spec = {"model_def": "m.f", "model_zoo": "/zoo", "distribution_strategy": strategy, "minibatch_size": 1}
    store = MemoryStore(lambda: 0.0)
    setup = Setup(JobSpec.from_mapping({**spec, "training_data": "/data"}), 1, lists_by_worker=True)
    dispatcher = TaskDispatcher(JobMachine(setup), MemoryQueue(store, 1), lambda instruction: None, lambda: 0.0)
    finish(dispatcher.queue.rebuild(Contents(), 60.0))
    finish(dispatcher.tell(ev.Started()))
    finish(dispatcher.tell(ev.WorkerRegistered(0, 0)))
    one = lease(dispatcher, request.param)
    assert one.task.id.type is TaskType.LIST_SHARDS
    return dispatcher, one


def send(listing: tuple[TaskDispatcher, DispatchedTask], first: int, *sizes: int, last: bool = False) -> bool:
    """The worker sends a piece of its list: shards of so many records."""
    dispatcher, one = listing
    shards = [Shard(f"s{first + number}", 0, size) for number, size in enumerate(sizes)]
    return finish(dispatcher.list_shards(one.task.id, one.lease.token, "worker-0.0", shards, first=first, last=last))


def test_a_list_of_shards_counts_when_it_is_complete(listing: tuple[TaskDispatcher, DispatchedTask]) -> None:
    dispatcher, one = listing
    plan = dispatcher.machine.plans.main
    assert send(listing, 0, 4, 5)
    assert not plan.listed
    assert send(listing, 2, 6, last=True)
    assert plan.listed
    assert sum(shard.records for shard in plan.shards) == 15
    assert finish(dispatcher.report(one.task.id, one.lease.token, "worker-0.0")).outcome is Outcome.ACCEPTED


def test_a_piece_of_a_list_whose_answer_was_lost_counts_once(listing: tuple[TaskDispatcher, DispatchedTask]) -> None:
    assert send(listing, 0, 4, 5)
    assert send(listing, 0, 4, 5)
    assert send(listing, 2, 6, last=True)
    assert send(listing, 2, 6, last=True)
    assert sum(shard.records for shard in listing[0].machine.plans.main.shards) == 15


def test_a_list_without_its_beginning_or_its_lease_is_refused(
    listing: tuple[TaskDispatcher, DispatchedTask], capsys: pytest.CaptureFixture[str]
) -> None:
    dispatcher, one = listing
    assert not send(listing, 2, 6, last=True)
    assert "shards before number 2 are missing" in capsys.readouterr().out
    finish(dispatcher.queue.release_owner(one.lease.owner))
    assert not send(listing, 0, 6, last=True)
    assert "its lease is lost" in capsys.readouterr().out
    assert not dispatcher.machine.plans.main.listed


def test_a_list_that_is_reported_and_never_came_is_asked_for_again(
    listing: tuple[TaskDispatcher, DispatchedTask],
) -> None:
    dispatcher, one = listing
    assert send(listing, 0, 4)  # and the rest was refused
    assert finish(dispatcher.report(one.task.id, one.lease.token, "worker-0.0")).outcome is Outcome.LOST
    again = lease(dispatcher, one.lease.owner)
    assert (again.task.id, again.lease.token != one.lease.token) == (one.task.id, True)
    assert send((dispatcher, again), 0, 4, last=True)
    assert finish(dispatcher.report(again.task.id, again.lease.token, "worker-0.0")).outcome is Outcome.ACCEPTED
    assert dispatcher.machine.plans.main.listed


def test_an_instruction_that_fails_takes_none_of_those_after_it_along() -> None:
    spec = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data", "minibatch_size": 1}
    store = MemoryStore(lambda: 0.0)
    seen: list[do.Instruction] = []

    def pass_on(instruction: do.Instruction) -> None:
        seen.append(instruction)
        raise ValueError("nobody carries this out")

    machine = JobMachine(Setup(JobSpec.from_mapping(spec), 1))
    dispatcher = TaskDispatcher(machine, MemoryQueue(store, 1), pass_on, lambda: 0.0)
    with pytest.raises(ValueError, match="nobody carries this out"):
        finish(dispatcher.tell(ev.Started()))
    assert {type(one) for one in seen} >= {do.ListShards, do.LaunchWorker, do.LaunchServer}
    assert store.ready, "the queue was made"
    assert store.notes, "and the record written"
