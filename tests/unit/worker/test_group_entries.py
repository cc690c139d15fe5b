"""What a group takes of the master's answers: each task once, and nothing void twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticdl.data import fingerprints
from elasticdl_core.errors import DataError
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.group.steps import StepSchedule
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_worker.group.entries import entry_of, lease_of, take_news
from elasticdl_worker.master.client import LeasedTask, leased_tasks

pytestmark = pytest.mark.unit


def lease(counter: int, index: int) -> LeasedTask:
    start = index * 40
    task = Task(TaskId(TaskType.TRAINING, 0, index, start, start + 40), Shard("data", start, start + 40))
    return LeasedTask(task, f"1.{counter}.{'0' * 16}")


def follow(metadata: ReplicaMetadata, tasks: list[LeasedTask], *, drop: bool = False) -> list[str]:
    """Takes an answer as the first member of a group does before a step."""
    fresh, void = take_news(tasks, metadata, drop=drop)
    if void:
        metadata.schedule.drop()
    metadata.schedule.add(fresh)
    return [entry.token for entry in metadata.schedule.entries]


def finish(metadata: ReplicaMetadata) -> None:
    """The first task of the schedule is done."""
    schedule = metadata.schedule
    entry = schedule.count(schedule.step_dealt([0]))
    assert entry is not None


def test_an_answer_that_is_looked_at_again_brings_nothing_new() -> None:
    metadata, tasks = ReplicaMetadata(StepSchedule(4, 40)), [lease(5, 0), lease(6, 1)]
    assert follow(metadata, tasks) == follow(metadata, tasks) == [one.token for one in tasks]
    finish(metadata)
    assert follow(metadata, tasks) == [tasks[1].token]


def test_what_came_with_the_word_that_others_are_void_is_not_void() -> None:
    """The leases of before a rollback are void, and the answer that says so is there before several steps."""
    metadata = ReplicaMetadata(StepSchedule(4, 40))
    follow(metadata, [lease(24, 4)])
    tasks = [lease(70, 1), lease(71, 2), lease(72, 3), lease(73, 4)]
    assert follow(metadata, tasks, drop=True) == [one.token for one in tasks]
    finish(metadata)
    assert follow(metadata, tasks, drop=True) == [one.token for one in tasks[1:]]
    assert take_news(tasks, metadata, drop=True) == ([], False)


def test_members_pass_on_what_the_sources_were_like() -> None:
    given = lease(1, 0)
    task = replace(given.task, fingerprints={"data": "state"})
    assert lease_of(entry_of(replace(given, task=task))).task.fingerprints == {"data": "state"}


def test_a_worker_expects_sources_to_be_as_its_master_says() -> None:
    message = pb.Task(id="t:0:0:0:4", shard=pb.Shard(name="told", start=0, end=4), fingerprints={"told": "state"})
    (leased,) = leased_tasks([message])
    assert leased.task.fingerprints == {"told": "state"}
    with pytest.raises(DataError, match="told: was changed after its tasks were planned: it was state, it is other"):
        fingerprints.require("told", "other")
