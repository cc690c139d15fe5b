"""Worlds of a small job, and what hurts them at random."""

from __future__ import annotations

import os
from collections.abc import Callable

from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.ports.launcher import ProcessState, Role
from elasticdl_core.shard import Shard
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_processes import finish

SEEDS = int(os.environ.get("ELASTICDL_SIMULATION_SEEDS", "300"))
"""Jobs that the longest simulation goes through."""


def make_spec(**changes: object) -> JobSpec:
    data = {
        "model_def": "m.f",
        "model_zoo": "/zoo",
        "training_data": "/data",
        "minibatch_size": 2,
        "num_minibatches_per_task": 3,
        "num_epochs": 2,
        "num_ps": 2,
        "min_workers": 2,
        "max_workers": 4,
        **changes,
    }
    return JobSpec.from_mapping(data)


def make_world(seed: int, **changes: object) -> World:
    shards = [Shard("a", 0, 20), Shard("b", 5, 12), Shard("c", 0, 0), Shard("d", 0, 13)]
    validation = [Shard("v", 0, 9)] if changes.get("validation_data") else None
    return World(seed, make_spec(**changes), shards, validation)


def living(world: World, role: Role) -> list[object]:
    return [p for p, s in world.statuses.items() if p.role is role and s.state is not ProcessState.EXITED]


class Faults:
    """Hurts a world at random."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng

    def maybe(self) -> None:
        world, rng = self.world, self.rng
        if world.faults >= 12 or rng.random() > 0.05:
            return
        world.faults += 1
        workers = [w.id for w in world.workers.values()]
        kind = rng.choice(
            [
                *("worker", "worker", "ps", "master", "store", "freeze", "scale", "store_tail", "master+store"),
                *("freeze_ps", "api"),
            ]
        )
        if kind == "worker" and workers:
            world.exit(rng.choice(workers), -9)
        elif kind == "ps" and world.servers:
            world.exit(rng.choice(world.in_order()).id, -9)
        elif kind == "master":
            world.kill_master(rng.uniform(0.0, 20.0))
        elif kind == "store":
            world.store.wipe()
        elif kind == "store_tail" and world.dispatcher is not None and not world.dispatcher.broken:
            world.lose_tail()
            finish(world.dispatcher.reap())  # finds out
            if world.dispatcher.broken:
                finish(world.dispatcher.repair())
        elif kind == "master+store":
            world.store.wipe()
            world.kill_master(rng.uniform(0.0, 20.0))
        elif kind == "freeze" and workers:
            world.workers[rng.choice(workers)].frozen_until = world.now + rng.uniform(5.0, 80.0)
        elif kind == "freeze_ps" and world.servers:
            rng.choice(world.in_order()).frozen_until = world.now + rng.uniform(5.0, 80.0)
        elif kind == "api":
            world.api_back_at = world.now + rng.uniform(1.0, 60.0)
        elif kind == "scale":
            world.target = rng.randint(1, 4)


def kinds(world: World) -> list[str]:
    return [event.kind for event in world.events]


def restless(world: World) -> Callable[[World], bool]:
    """Suspends, resumes, evicts, and hurts a world at random."""
    faults = Faults(world)
    moves = {"suspend": JobState.SUSPENDED, "evict": JobState.QUEUED}

    def until(world: World) -> bool:
        faults.maybe()
        if world.state in moves.values() and world.machine is None:
            world.desired, world.state, world.master_back_at = "run", JobState.STARTING, world.now + 3.0
        elif world.faults < 12 and world.desired == "run" and world.rng.random() < 0.01:
            world.faults += 1
            world.desired = world.rng.choice(sorted(moves))
        return ended(world)

    return until


def check_that_nothing_is_lost(world: World, seed: int) -> None:
    """Runs a job that is hurt at random; it succeeds, with every record in its model."""
    world.start_master()
    try:
        run(world, restless(world))
        assert world.state is JobState.SUCCEEDED, (world.state, world.detail)
        for applied in world.oracle.applied():
            assert not world.oracle.expected() - set(applied), "records are missing in the model"
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
