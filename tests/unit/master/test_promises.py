"""Single promises of a master, each of which one line keeps: with that line taken out its test fails."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.queue.port import Outcome
from elasticdl_master.state import events as ev
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import make_spec
from tests.fakes.sim_processes import finish

pytestmark = pytest.mark.unit


def make_world(**changes: object) -> World:
    world = World(7, make_spec(**{"num_ps": 1, "max_workers": 2, **changes}), [Shard("a", 0, 40)])
    world.start_master()
    return world


def both_train(world: World) -> bool:
    return world.machine is not None and len(world.machine.workers.running) == 2 and world.machine.servers.ready


def test_a_lease_that_nobody_holds_comes_back_when_its_time_is_over() -> None:
    world = make_world()
    run(world, both_train)
    owner = world.machine.workers.running[0].owner
    (lost,), _ = finish(world.dispatcher.lease(owner, 1))  # the worker never gets this answer
    world.now += world.limits.lease_s - 1.0
    finish(world.dispatcher.reap())
    assert lost.task.id in world.store.doing
    world.now += 2.0
    finish(world.dispatcher.reap())
    assert lost.task.id in world.store.todo
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    for applied in world.oracle.applied():
        assert set(applied) == world.oracle.expected()


def test_leases_live_on_for_a_full_term_when_the_queue_is_made_anew() -> None:
    world = make_world()
    run(world, both_train)
    owner = world.machine.workers.running[0].owner
    (held,), _ = finish(world.dispatcher.lease(owner, 1))
    world.store.wipe()
    finish(world.dispatcher.lease(owner, 1))  # finds out
    assert world.dispatcher.broken
    finish(world.dispatcher.repair())
    world.now += world.limits.lease_s - 1.0
    finish(world.dispatcher.reap())
    assert world.store.doing[held.task.id].token == held.lease.token
    answer = finish(world.dispatcher.report(held.task.id, held.lease.token, owner))
    assert answer.outcome is Outcome.ACCEPTED


def test_a_failure_under_a_lease_that_is_over_counts_for_nothing() -> None:
    world = make_world()
    run(world, both_train)
    owner = world.machine.workers.running[0].owner
    (held,), _ = finish(world.dispatcher.lease(owner, 1))
    world.now += world.limits.lease_s + 1.0
    finish(world.dispatcher.reap())
    for _ in range(3 * world.limits.user_failures):
        call = world.dispatcher.fail(
            owner, "user_code", "boom", "mend it", "Traceback", held.task.id, str(held.lease.token)
        )
        finish(call)
    assert held.task.id in world.store.todo
    run(world, ended)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert not [event for event in world.events if event.kind == "task_failed"]


def kill_whoever_trains(world: World, code: int, reason: str, most: int) -> Callable[[World], bool]:
    """Ends each worker as soon as it has something in hand, so many times."""
    killed: list[object] = []

    def until(world: World) -> bool:
        for worker in list(world.workers.values()):
            if worker.work and worker.work[0].task.id.type is TaskType.TRAINING and len(killed) < most:
                killed.append(worker.id)
                world.exit(worker.id, code, reason)
        return ended(world)

    return until


@pytest.mark.parametrize("memory_mib", [0, 512])
def test_a_task_on_which_workers_always_run_out_of_memory_fails_the_job_soon(memory_mib: int) -> None:
    changes = {"worker_memory_mib": memory_mib} if memory_mib else {}
    world = make_world(min_workers=1, max_workers=1, **changes)
    run(world, kill_whoever_trains(world, -9, "oom_killed", 10_000), seconds=20_000.0)
    assert world.state is JobState.FAILED
    assert "memory" in str(world.detail.get("message", "")), world.detail
    deaths = [event for event in world.events if event.kind == "worker_lost"]
    assert 3 <= len(deaths) <= 8, "neither at once, nor as often as kills from outside"


def test_workers_that_run_out_of_memory_before_they_have_a_task_fail_the_job_too() -> None:
    world = make_world(min_workers=1, max_workers=1)

    def until(world: World) -> bool:
        for worker in list(world.workers.values()):
            world.exit(worker.id, -9, "oom_killed")
        return ended(world)

    run(world, until, seconds=20_000.0)
    assert world.state is JobState.FAILED
    assert "memory" in str(world.detail.get("message", "")), world.detail


def test_workers_that_run_out_of_memory_are_the_first_that_is_said_of_a_job() -> None:
    """Workers were restarted for ever, and `explain` said that the job has all that it may."""
    world = make_world(min_workers=1, max_workers=1)
    until = kill_whoever_trains(world, -9, "oom_killed", 2)
    told: set[str | None] = set()

    def watched(world: World) -> bool:
        over = until(world)
        if world.machine is not None:
            told.add(status_of(world.machine)["degraded"])
        return over

    run(world, watched)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert "2 workers ran out of memory in the last 10 minutes" in told
    assert not any("1 worker" in str(one) for one in told), "one alone is an event"


def test_what_a_process_waits_for_is_said_of_a_job_until_it_begins() -> None:
    world = make_world(min_workers=1, max_workers=1)
    world.start_master()
    run(world, lambda world: world.machine.epochs.records_done > 20)
    ids = [ProcessId("digits-1", Role.WORKER, index, 0) for index in (8, 7)]
    for one in ids:
        world.machine.handle(
            ev.ProcessChanged(ProcessStatus(one, ProcessState.PENDING, message="no room")), world.now
        )
    assert status_of(world.machine)["degraded"] == "worker-7.0 waits: no room (and 1 more)"
    for state in (ProcessState.RUNNING, ProcessState.EXITED):
        world.machine.handle(ev.ProcessChanged(ProcessStatus(ids.pop(), state)), world.now)
    assert status_of(world.machine)["degraded"] is None


def test_a_kill_from_outside_is_never_held_against_a_task() -> None:
    world = make_world(min_workers=1, max_workers=1)
    until = kill_whoever_trains(world, -9, "", 2 * world.limits.user_failures)
    run(world, until)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert not world.machine or not world.machine.failures.quarantined


def test_another_jobs_checkpoint_says_nothing_about_what_this_one_has_done() -> None:
    before = make_world()
    run(before, ended)
    (manifest,) = before.manifests
    assert manifest["done"], "the first job's checkpoint says what that job has done"
    spec = {**before.spec.to_mapping(), "checkpoint_dir_for_init": "/elsewhere"}
    world = World(8, JobSpec.from_mapping(spec), before.shards)
    world.initial = {**manifest, "directory": "/elsewhere/1"}
    world.checkpoints["/elsewhere/1"] = before.checkpoints[manifest["directory"]]
    world.start_master()
    run(world, ended)
    assert world.state is JobState.SUCCEEDED, world.detail
    trained = {task for task, _ in world.leased if task.type is TaskType.TRAINING}
    assert sum(task.records for task in trained) == 2 * 40, "every record of every epoch is this job's to do"


def test_a_task_that_was_leased_before_the_master_saw_that_all_ps_answer_is_kept() -> None:
    """While a worker lists the records of the module's own reader, others may lease what is listed already."""
    world = make_world()
    world.next_poll = math.inf
    run(world, lambda world: bool(world.store.todo and world.machine.workers.running))
    owner = world.machine.workers.running[0].owner
    (lease,) = finish(world.dispatcher.queue.lease(owner, 1, world.limits.lease_s))
    world.tell(ev.TasksLeased([lease]))
    world.next_poll = world.now
    run(world, lambda world: world.machine.servers.ready)
    answer = finish(world.dispatcher.report(lease.task, lease.token, owner))
    assert answer.outcome is Outcome.ACCEPTED
    assert world.machine.recovery.redone == 0


@pytest.mark.parametrize(
    ("now", "state"), [({"a": "user"}, JobState.SUCCEEDED), ({"a": "item", "b": "user"}, JobState.FAILED)]
)
def test_a_checkpoint_whose_layers_have_other_names_in_the_model_ends_the_job(
    now: dict[str, str], state: JobState
) -> None:
    before = make_world()
    run(before, ended)
    (manifest,) = before.manifests
    spec = {**before.spec.to_mapping(), "checkpoint_dir_for_init": "/elsewhere"}
    world = World(8, JobSpec.from_mapping(spec), before.shards)
    world.initial = {**manifest, "directory": "/elsewhere/1", "layers": {"a": "user", "b": "item"}}
    world.checkpoints["/elsewhere/1"] = before.checkpoints[manifest["directory"]]
    world.description = {"callbacks": {}, "layers": now}
    world.start_master()
    run(world, ended)
    assert world.state is state, world.detail
    if state is JobState.FAILED:
        assert "which is b in the model" in str(world.detail)
        assert not any(task.type is TaskType.TRAINING for task, _ in world.leased), "before the first record"
