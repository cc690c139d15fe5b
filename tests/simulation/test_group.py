"""The group under faults, in seeded simulations: whatever happens, each record is in the model exactly once.

Each run has a time of faults, and then a time in which everything heals and all work must come to its end.
"""

from __future__ import annotations

import os

import pytest

from tests.fakes.group_world import GroupWorld, Process

SEEDS = int(os.environ.get("GROUP_SEEDS", "150"))
MANY_SEEDS = int(os.environ.get("GROUP_MANY_SEEDS", "3000"))
HEAL_S = 120.0

pytestmark = pytest.mark.unit


def _world(seed: int, members: int = 4, tasks: int = 30) -> GroupWorld:
    world = GroupWorld(seed, [], microbatches=[1, 4, 8][seed % 3])
    sizes = [world.random.choice((1, 3, 8, 16, 17)) for _ in range(tasks)]
    stream_s = [0.01, 0.3, 3.0][seed // 3 % 3]
    world = GroupWorld(seed, sizes, microbatches=[1, 4, 8][seed % 3], stream_s=stream_s)
    for _ in range(members):
        world.start_process()
    return world


def _train_a_while(world: GroupWorld) -> None:
    world.start_master()
    world.run(lambda: max(one.member.metadata.schedule.steps for one in world.living) > 20, 30.0)


def _world_with_newcomer(seed: int, tasks: int) -> tuple[GroupWorld, Process]:
    """Three members that train, and one to which the model is on its way for up to eight seconds."""
    world = GroupWorld(seed, [16] * tasks, stream_s=8.0)
    for _ in range(3):
        world.start_process()
    _train_a_while(world)
    newcomer = world.start_process()
    assert world.run(lambda: newcomer.stream is not None, 10.0)
    return world, newcomer


def _finish(world: GroupWorld) -> None:
    world.pin = world.pause_at = 0
    for process in world.living:
        world.go_on(process)
    if world.master is None:
        world.start_master()
    if not any(not one.leaving for one in world.living):
        world.start_process()
    assert world.run(lambda: world.finished, HEAL_S), "no progress after everything had healed"
    world.check()


def test_without_faults_each_record_counts_once_in_the_order_of_the_tasks() -> None:
    for seed in range(12):
        world = _world(seed, members=1 + seed % 4)
        world.start_master()
        _finish(world)
        assert world.rollbacks == 0
        master = world.master
        assert master is not None
        params = world.processes[master.members[0]].params
        assert params == sorted(params), "tasks are done in the order in which they were leased"


@pytest.mark.parametrize("part", range(6))
def test_no_record_is_lost_or_counted_twice_whatever_happens(part: int) -> None:
    _hurt(range(part, SEEDS, 6))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_no_record_is_lost_or_counted_twice_in_thousands_of_runs(part: int) -> None:
    _hurt(range(SEEDS + part, MANY_SEEDS, 4))


def _hurt(seeds: range) -> None:
    rolled_back = regrouped = 0
    for seed in seeds:
        world = _world(seed, tasks=60)
        world.start_master()
        try:
            for _ in range(world.random.randint(1, 12)):
                if _passes(world, world.random.random() * 1.5):
                    break
                _fault(world)
            _finish(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        rolled_back += world.rollbacks
        regrouped += sum(one.generations for one in world.processes.values())
    assert rolled_back and regrouped > 6 * len(seeds), "the faults did not hit"


def _passes(world: GroupWorld, seconds: float) -> bool:
    return world.run(lambda: world.finished, seconds)


def _fault(world: GroupWorld) -> None:
    living, chance = world.living, world.random
    running = [one for one in living if not one.stopped]
    kind = chance.choice(
        ("kill", "kill", "two", "stop", "go on", "leave", "join", "join", "master", "save", "all", "pin", "pause")
    )
    if kind == "kill" and running:
        world.kill(chance.choice(running))
    elif kind == "two":
        for one in chance.sample(living, min(2, len(living))):
            world.kill(one)
    elif kind == "all" and chance.random() < 0.3:
        for one in living:
            world.kill(one)
    elif kind == "stop" and running:
        world.stop(chance.choice(running))
    elif kind == "go on":
        for one in living:
            world.go_on(one)
    elif kind == "leave" and len(living) > 1:
        chance.choice(living).leaving = True
    elif kind == "join":
        world.start_process()
    elif kind == "save":
        world.order_save()
    elif kind == "pin":
        world.toggle_evaluation()
    elif kind == "pause":
        world.pause_at = 0 if world.pause_at else 1 + max((one.member.metadata.version for one in living), default=0)
    elif kind == "master":
        if world.master is None:
            world.start_master()
        else:
            world.kill_master()
            if chance.random() < 0.5:
                world.start_master()


def test_steps_go_on_without_a_master_until_the_tasks_are_done() -> None:
    world = _world(5, tasks=40)
    world.start_master()
    world.run(lambda: all(one.member.metadata.schedule.known >= 3 for one in world.living), 30.0)
    world.kill_master()
    steps = max(one.member.metadata.schedule.steps for one in world.living)
    world.run(lambda: False, 10.0)
    after = {one.member.metadata.schedule.steps for one in world.living}
    assert len(after) == 1 and after.pop() > steps
    assert all(len(one.member.metadata.ended) for one in world.living), "what nobody acknowledged is kept"
    _finish(world)


def test_a_member_that_stands_still_is_left_behind_and_comes_back_as_a_newcomer() -> None:
    world = _world(4, tasks=200)
    _train_a_while(world)
    stopped = world.living[1]
    world.stop(stopped)
    before = max(one.member.metadata.schedule.steps for one in world.living)
    began = world.now
    others = [one for one in world.living if one is not stopped]
    assert world.run(lambda: max(one.member.metadata.schedule.steps for one in others) > before + 1, 10.0)
    assert world.now - began < 1.5
    world.go_on(stopped)
    assert world.run(lambda: stopped.orders is not None and stopped.member.holds, 10.0)
    _finish(world)
    assert world.rollbacks == 0


@pytest.mark.parametrize("members", [1, 3])
def test_a_model_that_nobody_else_holds_is_not_given_up_for_a_pause(members: int) -> None:
    world = _world(4, members=members, tasks=200)
    _train_a_while(world)
    for one in world.living:
        world.stop(one)
    waiting = world.start_process()
    assert not world.run(lambda: world.rollbacks > 0, 10.0)
    steps = max(one.member.metadata.schedule.steps for one in world.living)
    for one in world.living:
        world.go_on(one)
    assert world.run(lambda: waiting.member.holds and waiting.member.metadata.schedule.steps > steps, 20.0)
    _finish(world)
    assert world.rollbacks == 0


def test_a_model_whose_last_holder_stands_still_for_long_is_given_up() -> None:
    world = _world(4, members=1, tasks=200)
    _train_a_while(world)
    world.stop(world.living[0])
    newcomer = world.start_process()
    assert world.run(lambda: newcomer.member.holds, 30.0)
    assert world.rollbacks == 1
    _finish(world)


def test_nothing_is_trained_while_parameters_are_evaluated_and_a_newcomer_gets_the_model_then() -> None:
    world, newcomer = _world_with_newcomer(9, tasks=200)
    world.toggle_evaluation()
    assert world.run(lambda: newcomer.member.holds, 30.0)
    steps = {one.member.metadata.schedule.steps for one in world.living}
    world.run(lambda: False, 5.0)
    assert {one.member.metadata.schedule.steps for one in world.living} == steps and len(steps) == 1
    world.kill(world.living[0])
    world.run(lambda: False, 5.0)
    assert {one.member.metadata.schedule.steps for one in world.living} == steps, "the next generation waits, too"
    _finish(world)
    assert world.rollbacks == 0


def test_a_member_that_is_dealt_nothing_for_being_slow_is_tried_again_seldom() -> None:
    world = _world(4, members=3, tasks=400)
    for one in world.living:
        one.slow = 1.0
    _train_a_while(world)
    slow = world.living[1]
    slow.slow = 100.0
    steps = world.living[0].member.metadata.schedule.steps
    world.run(lambda: False, 20.0)
    made = world.living[0].member.metadata.schedule.steps - steps
    assert made > 100, "every other step would wait a second for it"
    slow.slow = 1.0
    before = slow.computed
    assert world.run(lambda: slow.computed > before + 20, 20.0), "it is dealt microbatches again when it is as fast"
    _finish(world)


def test_nobody_waits_while_a_large_state_is_on_its_way_to_a_newcomer() -> None:
    world, newcomer = _world_with_newcomer(7, tasks=400)
    began = newcomer.member.metadata.schedule.steps
    assert world.run(lambda: newcomer.member.holds, 30.0)
    assert newcomer.followed > 20 and newcomer.member.metadata.schedule.steps - began >= newcomer.followed - 1
    assert newcomer.generations == 1
    others = [one for one in world.living if one is not newcomer]
    assert world.run(lambda: newcomer.params in [one.params for one in others], 10.0)
    _finish(world)
    assert world.rollbacks == 0


def test_a_newcomer_whose_source_dies_gets_the_state_from_another_member() -> None:
    world, newcomer = _world_with_newcomer(8, tasks=200)
    assert newcomer.orders is not None
    world.kill(world.processes[newcomer.orders.members[0]])
    assert world.run(lambda: newcomer.stream is None and not newcomer.member.holds, 10.0), "it begins anew"
    assert world.run(lambda: newcomer.member.holds, 30.0)
    _finish(world)
    assert world.rollbacks == 0


def test_a_member_that_differs_is_expelled_and_fetches_the_state() -> None:
    world = _world(4, tasks=200)
    _train_a_while(world)
    odd = world.living[2]
    odd.params[3] = (99, 99, 99)
    world.run(lambda: (99, 99, 99) not in odd.params, 10.0)
    assert world.rollbacks == 0
    _finish(world)
