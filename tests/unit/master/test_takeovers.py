"""What a new master, or one whose store came back, makes of what it finds, in simulated jobs."""

from __future__ import annotations

import pytest

from elasticdl_core.job import JobState
from elasticdl_master.state.status import MasterStatus, status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import kinds, make_world

pytestmark = pytest.mark.unit


def test_a_takeover_that_restores_says_so_and_how_much_is_done_again() -> None:
    for seed in range(10):
        world = make_world(seed, num_epochs=4, checkpoint_steps=6)
        world.start_master()
        run(world, lambda world: world.machine.epochs.records_done > 60 and len(world.manifests) > 0)
        known = world.machine.epochs.records_done
        world.kill_master(1.0)
        world.exit(world.servers[0].id, -9)
        world.events.clear()
        run(world, lambda world: world.machine is not None and world.machine.servers.ready)
        saved = world.machine.epochs.records_done
        restored = next(event for event in world.events if event.kind == "restored")
        assert (
            restored.message
            == f"the parameter servers hold the checkpoint of version {world.machine.version.present}"
        )
        again = [event.message for event in world.events if event.kind == "rolled_back"]
        assert bool(again) == (saved < known)
        if again:
            count = int(again[0].split()[0])
            assert count >= known - saved
            assert status_of(world.machine)["redone"] >= count
        run(world, ended)
        assert world.state is JobState.SUCCEEDED


@pytest.mark.parametrize("wiped", [False, True])
def test_the_last_known_progress_is_shown_until_the_servers_are_restored(*, wiped: bool) -> None:
    world = make_world(0, num_epochs=4, checkpoint_steps=6)
    world.start_master()
    run(world, lambda world: world.machine.epochs.records_done > 60 and len(world.manifests) > 0)
    known = status_of(world.machine)
    world.kill_master(1.0)
    world.exit(world.servers[0].id, -9)
    if wiped:
        world.store.wipe()
    shown: list[MasterStatus] = []

    def restored(world: World) -> bool:
        if world.machine is not None and not world.machine.servers.ready:
            shown.append(status_of(world.machine))
        return world.machine is not None and world.machine.servers.ready

    run(world, restored)
    assert shown
    for status in shown:
        assert status["progress"]["epoch"] == known["progress"]["epoch"] == 2
        assert status["ledger"]["epoch"] == known["ledger"]["epoch"]
        assert status["progress"]["tasks_done"] > 0
        assert 40 <= status["progress"]["records_done"] <= known["progress"]["records_done"]
    assert status_of(world.machine)["progress"]["records_done"] == world.machine.epochs.records_done


def test_a_checkpoint_of_another_job_that_is_restored_again_brings_no_rules_of_that_job() -> None:
    for seed in range(5):
        world = make_world(seed, num_epochs=4)
        world.start_from(100)
        world.save_fails = 1.0
        world.start_master()
        run(world, lambda world: world.machine.epochs.records_done > 20)
        world.exit(world.servers[0].id, -9)
        run(world, lambda world: not world.machine.servers.ready)
        run(world, lambda world: world.machine.epochs.records_done > 20 and world.machine.servers.ready)
        world.kill_master(1.0)
        world.store.wipe()
        world.save_fails = 0.0
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert kinds(world).count("restored") >= 3
        for applied in world.oracle.applied():
            assert not world.oracle.expected() - set(applied), "records are missing in the model"


def with_an_unwritten_tail(seed: int) -> World:
    """A world in the middle of its work, whose store has marked tasks done that are not on its disk yet."""
    world = make_world(seed)
    world.start_master()
    run(world, lambda world: world.machine.epochs.records_done > 20)
    world.flushed = world.store.saved()
    done = len(world.store.done)
    run(world, lambda world: len(world.store.done) > done + 1)
    return world


def test_a_store_that_lost_its_logs_tail_is_made_anew() -> None:
    for seed in range(10):
        world = with_an_unwritten_tail(seed)
        marked = set(world.store.done)
        world.lose_tail()
        run(world, lambda world: "queue_back" in kinds(world))
        assert marked <= set(world.store.done), "the living master knows what the store forgot"
        run(world, ended)
        for applied in world.oracle.applied():
            assert set(applied) == world.oracle.expected()
            assert set(applied.values()) == {1}


def test_a_master_that_takes_over_a_store_without_its_logs_tail_believes_the_ledger() -> None:
    for seed in range(20):
        world = with_an_unwritten_tail(seed)
        world.kill_master(0.5)  # before it can notice
        world.lose_tail()
        run(world, ended)
        assert world.state is JobState.SUCCEEDED
        for applied in world.oracle.applied():
            assert not world.oracle.expected() - set(applied), "records are missing in the model"


def test_a_takeover_record_of_another_format_is_refused_and_the_job_goes_back_to_its_checkpoint() -> None:
    for seed in range(5):
        world = make_world(seed, num_epochs=4, checkpoint_steps=6)
        world.start_master()
        run(world, lambda world: world.machine.epochs.records_done > 60 and len(world.manifests) > 0)
        world.kill_master(1.0)
        world.store.notes = '{"generation": 1}'
        run(world, ended)
        assert world.state is JobState.SUCCEEDED
        refused = next(event for event in world.events if event.kind == "takeover_record_refused")
        assert "another format" in refused.message
        assert "restored" in kinds(world)
        for applied in world.oracle.applied():
            assert not world.oracle.expected() - set(applied), "records are missing in the model"
