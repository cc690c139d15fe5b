"""Masters that die at any instruction, and while the api is away: the next one tells what was decided, once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause, LifeStage
from elasticdl_core.series import SeriesRow
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.pending_posts import PendingPosts, Post
from elasticdl_master.queue.port import TaskQueue
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from tests import rotation
from tests.fakes.broken_calls import FarQueue
from tests.fakes.job_world import World, ended, run
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.sim_faults import make_spec
from tests.fakes.sim_processes import finish
from tests.unit.master.test_machine_simulation import check_best, scored

pytestmark = pytest.mark.unit
RECORDS, EPOCHS = 14, 3
WORLDS = [(0.0, False), (7.0, False), (7.0, True)]
IN_THE_GATE = 12
"""Instructions of each world at which a master dies, other ones with each commit."""


class Death(BaseException):
    """The master's process ends here."""


class DyingWorld(World):
    """A job whose master dies at one instruction: a move of the queue, before or after it, or a word to others.

    Args:
        instruction: its number; -1 for none.
        away_s: how long the api is away each time that it is; 0 for never.
        keeps_best: whether the model of the best evaluation is kept, beside one checkpoint.
    """

    def __init__(self, instruction: int = -1, away_s: float = 0.0, *, keeps_best: bool = False) -> None:
        best = {"keep_best": "score:max", "keep_checkpoint_max": 1} if keeps_best else {}
        spec = make_spec(num_epochs=EPOCHS, num_ps=1, max_workers=2, validation_data="/v", checkpoint_steps=6, **best)
        super().__init__(5, spec, [Shard("a", 0, RECORDS)], [Shard("v", 0, 5)])
        self.score = scored if keeps_best else None
        self.instruction, self.away_s = instruction, away_s
        self.instructions = 0
        self.died = False

    def one_more(self) -> None:
        self.instructions += 1
        if self.instructions == self.instruction:
            self.died = True
            raise Death

    def make_queue(self) -> TaskQueue:
        queue: Any = FarQueue(MemoryQueue(self.store, self.epoch), self.one_more)
        return queue

    def carry_out(self, instruction: do.Instruction) -> None:
        self.one_more()
        super().carry_out(instruction)

    def post(self, post: Post) -> None:
        self.one_more()
        super().post(post)

    def take_in(self, instruction: do.Instruction) -> None:
        super().take_in(instruction)
        if isinstance(instruction, do.PostArtifact | do.PostEvaluation) and self.away_s:
            self.api_back_at = self.now + self.away_s  # it goes away when it has taken one

    def step(self, seconds: float = 0.25) -> None:
        died = self.died
        try:
            super().step(seconds)
        except (Death, asyncio.CancelledError):
            assert self.died
            assert not died, "it dies once"
            self.kill_master(1.0)

    def go_to_the_end(self) -> None:
        run(self, ended, seconds=1500.0)
        assert self.state is JobState.SUCCEEDED, self.detail
        for applied in self.oracle.applied():
            assert set(applied) == self.oracle.expected()
        # Whoever dies when the servers have left, and before it says so, leaves the last evaluation to be made again.
        assert {(e.training_epoch, e.metrics["n"]) for e in self.evaluations} == {(1, 5.0), (2, 5.0), (3, 5.0)}
        assert {1, 2, 3} <= {e.number for e in self.evaluations}
        if self.score is not None:
            check_best(self)
        else:
            assert [artifact.name for artifact in self.artifacts] == ["model.keras"]
        assert [event.kind for event in self.events].count("audit") >= 1
        assert not {"queue_away", "going_back", "rolled_back"} & {event.kind for event in self.events}
        if not self.died:
            assert self.store.posts == {}


def instructions(away_s: float, *, keeps_best: bool) -> int:
    world = DyingWorld(away_s=away_s, keeps_best=keeps_best)
    world.go_to_the_end()
    return world.instructions


def sweep(away_s: float, keeps_best: bool, most: int | None) -> None:
    all_of_them = range(1, instructions(away_s, keeps_best=keeps_best) + 1)
    name = f"instructions {away_s} {keeps_best}"
    for instruction in all_of_them if most is None else rotation.share(name, all_of_them, most):
        world = DyingWorld(instruction, away_s, keeps_best=keeps_best)
        try:
            world.go_to_the_end()
            assert world.died
        except AssertionError as error:
            raise AssertionError(f"the master died at instruction {instruction}: {error}") from error


@pytest.mark.parametrize(("away_s", "keeps_best"), WORLDS)
def test_a_master_may_die_at_any_instruction(away_s: float, keeps_best: bool) -> None:
    sweep(away_s, keeps_best, IN_THE_GATE)


@pytest.mark.slow
@pytest.mark.parametrize(("away_s", "keeps_best"), WORLDS)
def test_a_master_may_die_at_each_instruction(away_s: float, keeps_best: bool) -> None:
    sweep(away_s, keeps_best, None)


def test_an_evaluation_that_waits_for_the_api_when_the_master_dies_is_told_by_the_next_one() -> None:
    world = DyingWorld()
    world.start_master()
    run(world, lambda world: world.machine.epochs.trained)
    world.api_back_at = float("inf")
    run(world, lambda world: EPOCHS in world.machine.evaluations.epochs_evaluated)
    assert len(world.evaluations) < EPOCHS
    world.kill_master(1.0)
    world.api_back_at = world.now + 30.0
    world.go_to_the_end()
    assert sorted(one.number for one in world.evaluations) == [1, 2, 3]


def test_an_artifact_that_waits_for_the_api_when_the_master_dies_is_told_by_the_next_one() -> None:
    world = DyingWorld()
    world.start_master()
    run(world, lambda world: world.machine.closing.final is not None)
    world.api_back_at = float("inf")
    run(world, lambda world: world.machine.closing.exported)
    assert not world.artifacts
    world.kill_master(1.0)
    world.api_back_at = world.now + 30.0
    world.go_to_the_end()


def test_series_and_losses_that_wait_for_the_api_when_the_master_dies_are_told_by_the_next_one() -> None:
    world = DyingWorld()
    world.start_master()
    run(world, lambda world: world.machine.epochs.ledger.tasks_done == 1)
    row = SeriesRow(0, 1010, 3, {"loss": [0.5]})
    world.api_back_at = float("inf")
    assert world.dispatcher is not None
    world.post(finish(world.dispatcher.keep(do.PostSeries((row,)))))
    owner = next(iter(world.workers.values())).id
    world.tell(ev.WorkerHeartbeat(owner.index, owner.incarnation, losses=((77, 0.5),)))
    world.kill_master(1.0)
    assert not world.series
    assert 77 not in world.losses
    world.api_back_at = world.now + 30.0
    world.go_to_the_end()
    assert world.series == {(0, 1010): row}
    assert world.losses[77] == 0.5


LIFE = do.PostLife(Role.PS, 1, 2, LifeStage.ENDED, EndCause.CRASHED, -9, "signal 9", announce=False)


@pytest.mark.parametrize(
    "told",
    [
        do.PostEvaluation(3, 40, 2, {"n": 1.5, "m": float("inf")}),
        do.PostArtifact("model.keras", "model/model.keras", 12, "ab"),
        do.PostEvent("skipped", "one record", {"records": 1}),
        LIFE,
        do.PostLosses(((4, 0.5), (5, float("inf")))),
        do.PostSeries((SeriesRow(0, 1010, 3, {"loss": [0.5, 0.25, 0.75]}),)),
    ],
)
def test_a_post_is_read_as_it_was_kept(told: Any) -> None:
    first = PendingPosts({}, lambda: 7.0)
    post = first.add(told)
    again = PendingPosts({post.number: post.to_text()}, lambda: 9.0)
    assert again.left() == [Post(1, 7.0, told)]
    assert again.add(told).number == 2
    again.drop([1])
    assert [post.number for post in again.left()] == [2]


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "other", "at": 1, "data": {}}', '{"kind": "event", "data": 5}'])
def test_a_post_of_another_version_is_left_out(text: str) -> None:
    kept: Mapping[int, str] = {1: text, 4: PendingPosts({}, lambda: 7.0).add(LIFE).to_text()}
    found = PendingPosts(kept, lambda: 7.0)
    assert [(post.number, post.what) for post in found.left()] == [(4, LIFE)]
    assert found.add(LIFE).number == 5


def test_done_tasks_are_forgotten_when_their_marks_are_durable() -> None:
    world = DyingWorld()
    world.start_master()
    run(world, lambda world: world.machine.epochs.ledger.tasks_done == 1)
    world.api_back_at = float("inf")
    run(world, lambda world: world.machine.epochs.number == 2)
    world.step()
    first = [task for task in world.store.done if task.type is TaskType.TRAINING and task.epoch == 0]
    assert sum(task.records for task in first) == RECORDS, "the next master marks them"
    world.api_back_at = 0.0
    world.step()
    assert not [task for task in world.store.done if task.type is TaskType.TRAINING and task.epoch == 0]
