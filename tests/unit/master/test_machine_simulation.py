"""Seeded simulations of whole jobs with random faults: whatever happens, no record is lost."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.ports.launcher import ProcessState, Role
from elasticdl_core.task import Shard, TaskType
from tests.fakes.job_world import World

pytestmark = pytest.mark.unit
SEEDS = int(os.environ.get("ELASTICDL_SIMULATION_SEEDS", "300"))


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


def run(world: World, until: Callable[[World], bool], seconds: float = 3000.0) -> None:
    end = world.now + seconds
    while not until(world):
        assert world.now < end, f"stuck in {world.state}: {world.events[-5:]}"
        world.step()


def ended(world: World) -> bool:
    return world.state.terminal


def living(world: World, role: Role) -> list[object]:
    return [p for p, s in world.statuses.items() if p.role is role and s.state is not ProcessState.EXITED]


def test_without_faults_each_record_is_applied_exactly_once() -> None:
    for seed in range(20):
        world = make_world(seed, validation_data="/v")
        world.start_master()
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert world.transitions == [JobState.RUNNING, JobState.SUCCEEDED]
        for applied in world.applied():
            assert set(applied) == world.expected()
            assert set(applied.values()) == {1}
        assert [e.metrics for e in world.evaluations] == [{"n": 9.0}, {"n": 9.0}]
        assert [e.training_epoch for e in world.evaluations] == [1, 2]
        assert [a.name for a in world.artifacts] == ["model.keras"]
        assert [m["kind"] for m in world.manifests] == ["final"]
        assert not living(world, Role.PS)
        assert not living(world, Role.WORKER)


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
            ["worker", "worker", "ps", "master", "store", "freeze", "scale", "store_tail", "master+store"]
        )
        if kind == "worker" and workers:
            world.exit(rng.choice(workers), -9)
        elif kind == "ps" and world.servers:
            world.exit(rng.choice(world.in_order()).id, -9)
        elif kind == "master":
            world.kill_master(rng.uniform(0.0, 20.0))
        elif kind == "store":
            world.store.wipe()
        elif kind == "master+store":
            world.store.wipe()
            world.kill_master(rng.uniform(0.0, 20.0))
        elif kind == "freeze" and workers:
            world.workers[rng.choice(workers)].frozen_until = world.now + rng.uniform(5.0, 80.0)
        elif kind == "scale":
            world.target = rng.randint(1, 4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(6))
def test_no_record_is_lost_whatever_happens(part: int) -> None:
    for seed in range(part, SEEDS, 6):
        options: dict[str, object] = {"checkpoint_steps": [0, 5][seed % 2], "keep_checkpoint_max": seed % 3}
        if seed % 4 == 1:
            options["validation_data"] = "/v"
        if seed % 8 == 1:
            options["evaluation_steps"] = 4
        world = make_world(seed, **options)
        faults = Faults(world)
        world.save_fails = 0.1
        world.start_master()

        def until(world: World, faults: Faults = faults) -> bool:
            faults.maybe()
            return ended(world)

        try:
            run(world, until)
            assert world.state is JobState.SUCCEEDED, (world.state, world.detail)
            for applied in world.applied():
                assert not world.expected() - set(applied), "records are missing in the model"
            assert not living(world, Role.PS)
            assert not living(world, Role.WORKER)
            assert world.manifests[-1]["kind"] == "final"
            keep = world.spec.keep_checkpoint_max
            assert not keep or len(world.manifests) <= keep
            if world.validation:
                assert all(e.metrics == {"n": 9.0} for e in world.evaluations)
                assert {e.training_epoch for e in world.evaluations} >= {1, 2}
                assert len({e.number for e in world.evaluations}) == len(world.evaluations)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_types_of_tasks_are_all_used() -> None:
    world = make_world(3, validation_data="/v")
    world.start_master()
    run(world, ended)
    assert {task.type for task, _ in world.leased} == {
        TaskType.TRAINING,
        TaskType.EVALUATION,
        TaskType.EVALUATION_SUMMARY,
        TaskType.EXPORT,
    }
