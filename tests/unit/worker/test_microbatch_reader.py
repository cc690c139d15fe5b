"""What a member reads ahead of its steps: the data of each pass, and which records a step has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_core.group.steps import ComputePass, Step
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import BlockReading
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.group.entries import entry_of
from elasticdl_worker.group.reader import MicrobatchReader
from elasticdl_worker.group.replica import MicrobatchData
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.reporting.traces import TraceWriter, describe_records

pytestmark = pytest.mark.unit
SIZE, MICROBATCHES = 5, 4
READING = BlockReading(0, "a key", (Shard("a", 100, 130), Shard("b", 7, 27)))
TASK = Task(TaskId(TaskType.TRAINING, 0, 0, 0, 50), Shard("a", 0, 50), reading=READING)


@pytest.fixture
def reader() -> Iterator[MicrobatchReader]:
    made = MicrobatchReader(lambda task, start, end: MicrobatchData(end - start))
    yield made
    made.close()


def step_at(start: int, dealt: tuple[int, ...] = (0,) * MICROBATCHES, task: Task = TASK) -> Step:
    end = min(start + SIZE * MICROBATCHES, task.id.end)
    return Step(1, entry_of(LeasedTask(task, "1.1.a")), start, end, SIZE, dealt)


def take(reader: MicrobatchReader, step: Step, passes: list[ComputePass]) -> str:
    """Reads all that a member has of a step; returns which records these are."""
    reader.prepare([(step, passes)])
    for one in passes:
        assert reader.take(step, one).fed == one.end - one.start
    (whole,) = step.passes(0, fused=True)
    return reader.describe(step, whole.start, whole.end)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("start", [0, 20, 40])
def test_the_records_of_a_step_are_those_at_its_positions(reader: MicrobatchReader, start: int, fused: bool) -> None:
    step = step_at(start)
    assert take(reader, step, step.passes(0, fused=fused)) == describe_records(TASK, start, step.end)


def test_a_step_whose_microbatches_are_dealt_anew_has_the_records_of_those_that_are_one_s_own(
    reader: MicrobatchReader,
) -> None:
    step = step_at(0)
    reader.prepare([(step, step.passes(0, fused=False))])
    less = step_at(0, (0, 0, 1, 1))
    assert take(reader, less, less.passes(0, fused=False)) == describe_records(TASK, 0, 2 * SIZE)
    assert take(reader, step, step.passes(0, fused=False)) == describe_records(TASK, 0, 4 * SIZE)


def test_what_was_prepared_is_there_until_it_is_taken_and_is_read_once() -> None:
    read: list[tuple[int, int]] = []

    def remember(task: Task, start: int, end: int) -> MicrobatchData:
        read.append((start, end))
        return MicrobatchData(end - start)

    reader = MicrobatchReader(remember)
    steps = [step_at(0), step_at(20), step_at(40)]
    passes = [step.passes(0, fused=True) for step in steps]
    assert not reader.has(steps[0], passes[0])
    reader.prepare(zip(steps, passes, strict=True))
    assert all(reader.has(step, some) for step, some in zip(steps, passes, strict=True))
    assert not reader.has(steps[1], step_at(20, (0, 1, 1, 1)).passes(0, fused=True)), "dealt anew"
    reader.take(steps[0], passes[0][0])
    assert not reader.has(steps[0], passes[0])
    reader.prepare(zip(steps[1:], passes[1:], strict=True))
    for step, (one,) in zip(steps[1:], passes[1:], strict=True):
        reader.take(step, one)
    reader.close()
    assert read == [(0, 20), (20, 40), (40, 50)]


def test_positions_that_are_records_are_not_described(reader: MicrobatchReader) -> None:
    step = step_at(0, task=Task(TASK.id, TASK.shard))
    assert take(reader, step, step.passes(0, fused=True)) == ""


def test_a_trace_says_the_same_of_records_that_were_described_before(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, "worker-0.0")
    writer.append(TASK, "1.1.a", 10, 20, 3)
    writer.append(TASK, "1.1.a", 10, 20, 3, describe_records(TASK, 10, 20))
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "traces" / "worker-0.0.jsonl").read_text().splitlines()]
    assert lines[0]["records"] == lines[1]["records"]
    assert sum(end - start for ranges in lines[0]["records"].values() for start, end in ranges) == 10
    assert [sorted(line) for line in lines[:1]] == [sorted(lines[1])]
