"""When training ends in simulated jobs: limits of steps, and early stopping, exact whatever happens."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import SEEDS, Faults, check_that_nothing_is_lost, kinds, make_world

pytestmark = pytest.mark.unit


def test_a_limit_of_steps_reached_before_the_listing_is_complete_still_ends_with_an_evaluation() -> None:
    world = make_world(2, max_steps=3, validation_data="/v")
    world.validation_listed_at = world.now + 60
    world.start_master()
    run(world, ended)
    assert world.now >= world.validation_listed_at
    assert world.state is JobState.SUCCEEDED
    assert [one.model_version for one in world.evaluations] == [world.manifests[-1]["version"]]
    assert world.plan is not None


def test_a_full_disk_is_told_at_growing_intervals_and_at_once_when_it_comes_again() -> None:
    """It was an event every 5 seconds without end."""
    world = make_world(1, checkpoint_steps=4)
    world.start_master()
    checkpoints = world.machine.checkpoints

    def fail_for(hours: int, start: float) -> list[tuple[float, str]]:
        told = []
        for passed in range(0, hours * 3600, 5):
            now = start + passed
            for told_now in checkpoints.handle(ev.SaveFailed("periodic", "no space left on device"), now):
                assert isinstance(told_now, do.PostEvent)
                told.append((float(passed), told_now.message))
        assert checkpoints.trouble == "no space left on device"
        return told

    told = fail_for(6, 1000.0)
    assert told[0] == (0.0, "no checkpoint: no space left on device")
    assert told[1] == (60.0, "no checkpoint: no space left on device (13 failures since the last checkpoint)")
    assert [at for at, _ in told[1:8]] == [60, 180, 420, 900, 1860, 3780, 7380]
    assert len(told) == 11
    checkpoints.handle(ev.Saved("periodic", {"version": 1, "directory": "/c/1"}), 90_000.0)
    assert checkpoints.trouble == ""
    assert [at for at, _ in fail_for(1, 100_000.0)] == [0, 60, 180, 420, 900, 1860]


@pytest.mark.parametrize("listed", [[Shard("a", 0, 1 << 62)], [Shard("a", 0, 5), Shard("b", 0, (1 << 63) - 1)]])
def test_data_of_more_tasks_than_a_master_can_hold_fail_the_job_at_once(listed: list[Shard]) -> None:
    world = World(1, make_world(1).spec, listed)
    world.start_master()
    run(world, ended)
    assert world.state is JobState.FAILED
    assert re.search(r"would make [\d,]{20,} tasks of \d+ records, more than 5,000,000", world.reason)
    assert len(world.machine.plans.main.parts) <= 1


@pytest.mark.parametrize("faults", [False, True])
def test_max_steps_are_exact_and_say_what_was_left_out(faults: bool) -> None:
    for seed in range(30):
        world = make_world(
            seed, max_steps=10, validation_data=["", "/v"][seed % 2], checkpoint_steps=[0, 4][seed % 3 % 2]
        )
        hurt = Faults(world)
        world.start_master()

        def until(world: World, hurt: Faults = hurt) -> bool:
            if faults:
                hurt.maybe()
            return ended(world)

        run(world, until)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert world.manifests[-1]["kind"] == "final"
        assert world.manifests[-1]["version"] == 10
        if world.validation:
            assert world.evaluations[-1].model_version == 10
        assert any("max_steps reached: 10 updates" in event.message for event in world.events)
        assert world.artifacts
        trained = [sum(applied.values()) for applied in world.oracle.applied()]
        left = re.search(r"; (\d+) of (\d+) records were left out on purpose", world.reason)
        assert left is not None
        if not faults:
            assert int(left[2]) == len(world.oracle.expected())
            assert trained == [int(left[2]) - int(left[1])] * 2, (
                "each record is either in the model or told as left out"
            )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("faults", [False, True])
def test_a_job_that_is_over_says_the_version_of_its_model_however_short_it_was(seed: int, faults: bool) -> None:
    world = make_world(seed, validation_data=["", "/v"][seed % 2])
    world.start_from(100)
    hurt = Faults(world)
    world.start_master()
    last = world.machine

    def until(world: World) -> bool:
        nonlocal last
        if faults:
            hurt.maybe()
        last = world.machine or last
        return ended(world)

    run(world, until)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert last is not None
    status = status_of(last)
    assert status["model_version"] == world.manifests[-1]["version"] > status["start_version"] == 100


def test_max_steps_count_from_the_checkpoint_that_the_job_starts_from() -> None:
    world = make_world(3, max_steps=7)
    world.start_from(100)
    world.start_master()
    run(world, lambda world: bool(world.manifests))
    world.kill_master(2.0)
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    assert world.manifests[-1]["version"] == 107


def stopping_early(seed: int, patience: int, **changes: object) -> World:
    """A world whose evaluations are all alike, so that the first one stays the best."""
    world = make_world(seed, validation_data="/v", **changes)
    rule = {"monitor": "n", "patience": patience, "mode": "max", "min_delta": 0.0}
    world.description = {"callbacks": {"early_stopping": rule}}
    return world


def trained_by(world: World) -> set[int]:
    return {epoch for applied in world.oracle.applied() for epoch, _, _ in applied}


def test_with_early_stopping_no_epoch_begins_before_the_verdict_on_the_one_before() -> None:
    for seed in range(20):
        world = stopping_early(seed, patience=2, num_epochs=6)
        world.start_master()
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert [one.training_epoch for one in world.evaluations] == [1, 2, 3]
        assert trained_by(world) == {0, 1, 2}
        for applied in world.oracle.applied():
            assert applied == Counter(record for record in world.oracle.expected() if record[0] < 3)


def test_in_rounds_no_epoch_begins_before_the_last_round_of_the_one_before_is_closed() -> None:
    """A gradient of the next epoch would make a round by itself, and one update more."""
    world = make_world(1, num_epochs=3, use_async=False, grads_to_wait=2)
    world.flush_s = 30.0
    began: dict[int, float] = {}
    world.start_master()

    def until(world: World) -> bool:
        for task in world.store.doing:
            if task.type is TaskType.TRAINING:
                began.setdefault(task.epoch, world.now)
        return ended(world)

    run(world, until)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert sorted(began) == sorted(world.flushed_at) == [0, 1, 2]
    assert began[1] >= world.flushed_at[0] > began[0]
    assert began[2] >= world.flushed_at[1]


def test_in_rounds_nothing_is_lost_whatever_happens() -> None:
    for seed in range(20):
        world = make_world(seed, num_epochs=3, use_async=False, grads_to_wait=2)
        world.flush_s = 1.0
        check_that_nothing_is_lost(world, seed)


@pytest.mark.parametrize("workers", [1, 3])
def test_with_early_stopping_each_evaluation_that_falls_due_is_waited_for(workers: int) -> None:
    for seed in range(20):
        # Tasks of one update: leases are as fine as updates.
        options = {"num_minibatches_per_task": 1, "evaluation_steps": 4, "min_workers": workers}
        world = stopping_early(seed, patience=3, num_epochs=4, **options)
        world.start_master()
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert [one.model_version for one in world.evaluations] == [4, 8, 12, 16]
        assert world.manifests[-1]["version"] == 16
        assert "worker_stuck" not in kinds(world)


def test_workers_that_wait_for_a_verdict_are_not_taken_for_hung() -> None:
    world = stopping_early(1, patience=9, num_epochs=2)
    world.start_master()
    run(world, lambda world: bool(world.machine.evaluations.running))
    waiting = [worker for worker in world.machine.workers.running if not worker.leases]
    late = world.now + 10 * world.limits.stuck_s
    for worker in waiting:
        worker.last_heartbeat = late
    assert waiting
    assert not [one for one, _ in world.machine.workers.overdue(late, watch=True) if one in waiting]


def test_without_early_stopping_training_goes_on_during_an_evaluation() -> None:
    world = make_world(1, validation_data="/v", num_epochs=4)
    world.start_master()
    beside = []

    def until(world: World) -> bool:
        if world.machine is not None and world.machine.evaluations.running:
            doing = world.store.doing
            beside.append(any(task.type is TaskType.TRAINING for task in doing))
        return ended(world)

    run(world, until)
    assert any(beside)


def test_early_stopping_loses_nothing_whatever_happens() -> None:
    for seed in range(SEEDS // 6):
        world = stopping_early(
            seed, patience=99, num_epochs=3, evaluation_steps=[0, 4][seed % 2], checkpoint_steps=[0, 5][seed // 2 % 2]
        )
        check_that_nothing_is_lost(world, seed)


def test_updates_are_counted_from_the_checkpoint_that_the_job_starts_from() -> None:
    world = make_world(3, evaluation_steps=4, validation_data="/v")
    world.start_from(101)
    world.start_master()
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    between = [one.model_version - 101 for one in world.evaluations if one.training_epoch == 0]
    assert between
    assert min(between) >= 4
    assert len({made // 4 for made in between}) == len(between)
