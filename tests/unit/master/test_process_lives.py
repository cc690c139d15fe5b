"""The lives of processes: told by every master as they happen, whole after faults, each stage once."""

from __future__ import annotations

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import OVER_LIMITS, EndCause
from elasticdl_core.shard import Shard
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import make_spec

pytestmark = pytest.mark.unit


def begin(seed: int = 1, **spec: object) -> World:
    world = World(seed, make_spec(**{"num_epochs": 3, **spec}), [Shard("a", 0, 100), Shard("b", 0, 40)])
    world.start_master()
    return world


def causes(world: World, role: Role) -> list[EndCause | None]:
    return [life.cause for (kind, _, _), life in sorted(world.lives.items()) if kind is role]


def test_a_job_that_runs_to_its_end_tells_of_each_process_from_launch_to_end() -> None:
    world = begin(min_workers=1, max_workers=2)
    run(world, ended)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert len(world.lives) >= 3
    for key, life in world.lives.items():
        assert life.ready_at is not None, key
        assert life.ended_at is not None, key
        assert life.launched_at <= life.ready_at <= life.ended_at
    assert set(causes(world, Role.WORKER)) == {EndCause.FINISHED}
    assert set(causes(world, Role.PS)) <= {EndCause.FINISHED, EndCause.STOPPED}


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (-9, "", EndCause.KILLED),
        (-9, "oom_killed", EndCause.OUT_OF_MEMORY),
        (-15, "", EndCause.PREEMPTED),
        (1, "", EndCause.CRASHED),
        (None, "launcher_lost", EndCause.LOST),
        (0, "launcher_lost", EndCause.STOPPED),
    ],
)
def test_the_cause_of_a_workers_death_is_told_once(code: int | None, reason: str, cause: EndCause) -> None:
    world = begin(min_workers=1, max_workers=1)
    run(world, lambda world: world.machine.epochs.records_done > 20)
    (worker,) = world.workers
    world.exit(worker, code, reason)
    run(world, ended)
    life = world.lives[Role.WORKER, worker.index, worker.incarnation]
    assert (life.cause, life.exit_code) == (cause, code)
    assert bool(life.message) == (cause is not EndCause.STOPPED)
    assert len(causes(world, Role.WORKER)) == 2, "the one after it has a life of its own"


@pytest.mark.parametrize("reason", sorted(OVER_LIMITS))
def test_a_job_that_took_too_much_is_ended_and_says_of_what(reason: str) -> None:
    world = begin(min_workers=1, max_workers=1)
    run(world, lambda world: world.machine.epochs.records_done > 20)
    (worker,) = world.workers
    world.exit(worker, -9, reason)
    run(world, ended)
    words, fix = OVER_LIMITS[reason]
    assert world.state is JobState.FAILED
    assert words in str(world.detail) and fix in str(world.detail)
    assert len(causes(world, Role.WORKER)) == 1, "the next one would end as it did"


def test_a_worker_that_is_told_to_leave_is_drained() -> None:
    world = begin(min_workers=2, max_workers=2, num_epochs=20)
    run(world, lambda world: len(world.workers) == 2 and world.machine.epochs.records_done > 20)
    world.target = 1
    run(world, lambda world: EndCause.DRAINED in causes(world, Role.WORKER))
    (drained,) = [life for life in world.lives.values() if life.cause is EndCause.DRAINED]
    assert drained.drained_at is not None
    assert drained.ready_at <= drained.drained_at <= drained.ended_at


def test_the_next_master_tells_what_became_of_those_that_died_unseen() -> None:
    world = begin(min_workers=1, max_workers=1)
    run(world, lambda world: world.machine.epochs.records_done > 20)
    (worker,) = world.workers
    before = dict(world.lives)
    world.kill_master(2.0)
    world.exit(worker, -9)
    run(world, ended)
    life = world.lives[Role.WORKER, worker.index, worker.incarnation]
    assert life.cause in (EndCause.KILLED, EndCause.LOST)
    for key, known in before.items():
        now = world.lives[key]
        assert (now.launched_at, now.ready_at) == (known.launched_at, known.ready_at), "a first word counts"
    assert all(life.ended_at is not None for life in world.lives.values())


@pytest.mark.parametrize(("reason", "cause"), [("", EndCause.FINISHED), ("launcher_lost", EndCause.STOPPED)])
def test_a_process_that_ended_in_order_while_there_was_no_master_did_not_crash(reason: str, cause: EndCause) -> None:
    world = begin(min_workers=1, max_workers=1)
    run(world, lambda world: world.machine.epochs.records_done > 20)
    (worker,) = world.workers
    world.kill_master(2.0)
    world.exit(worker, 0, reason)
    run(world, ended)
    life = world.lives[Role.WORKER, worker.index, worker.incarnation]
    assert (life.cause, life.exit_code, life.message) == (cause, 0, "")
