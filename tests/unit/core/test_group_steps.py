"""Tests of how tasks become steps and microbatches, and who computes which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError, SpecError
from elasticdl_core.group.member import (
    Compute,
    Consult,
    DiffersError,
    FoundGroup,
    Gather,
    GroupCommands,
    GroupMember,
    Receive,
    ReplicaMetadata,
)
from elasticdl_core.group.rendezvous import Orders
from elasticdl_core.group.steps import ComputePass, HeldTask, Step, StepSchedule, deal
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import cut
from elasticdl_core.task import TaskId, TaskType

pytestmark = pytest.mark.unit


def _entry(index: int, start: int, end: int) -> HeldTask:
    return HeldTask(f"1.{index}.x", TaskId(TaskType.TRAINING, 0, index, start, end))


def test_microbatches_are_dealt_evenly_to_alike_members_and_sparingly_to_slow_ones() -> None:
    assert deal(8, [0.0, 0.0]) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert deal(4, [0.1, 0.11, 0.1]) == (0, 0, 1, 2)
    assert deal(8, [0.1, 0.3]) == (0, 0, 0, 0, 0, 0, 1, 1)
    assert deal(2, [0.1, 0.1, 0.1]) == (0, 1)


def _next_step(schedule: StepSchedule) -> Step | None:
    """The next step of a member that is alone."""
    return schedule.step_dealt(deal(schedule.microbatches, [0.0])) if schedule.entries else None


def test_steps_cover_each_record_of_a_task_once_and_never_two_tasks() -> None:
    schedule = StepSchedule(4, 8)
    schedule.add([_entry(0, 0, 17), _entry(1, 5, 8)])
    seen: list[tuple[int, int, int]] = []
    while (step := _next_step(schedule)) is not None:
        for microbatch in range(4):
            start, end = step.bounds(microbatch)
            seen += [(step.entry.task.index, at, at + 1) for at in range(start, end)]
        following = schedule.after(step)
        schedule.count(step)
        assert following == _next_step(schedule)
    assert seen == [(0, at, at + 1) for at in range(17)] + [(1, at, at + 1) for at in range(5, 8)]
    assert schedule.steps == 4


def test_the_steps_to_come_are_known_over_several_tasks() -> None:
    schedule = StepSchedule(4, 8)
    schedule.add([_entry(0, 0, 17), _entry(1, 5, 8), _entry(2, 8, 30)])
    ahead: list[Step] = []
    step = _next_step(schedule)
    while step is not None:
        ahead.append(step)
        step = schedule.after(step)
    done: list[Step] = []
    while (step := _next_step(schedule)) is not None:
        done.append(step)
        schedule.count(step)
    assert ahead == done
    assert len(done) == 7


def test_a_group_that_gives_up_says_how_far_it_got() -> None:
    metadata = ReplicaMetadata(StepSchedule(4, 8))
    metadata.schedule.add([_entry(0, 0, 16), _entry(1, 16, 32)])
    step = _next_step(metadata.schedule)
    assert step is not None
    metadata.count(step, [{"fed": 8, "skips": []}], 8)
    metadata.give_up()
    assert [(end.task.index, end.position) for end in metadata.ended.values()] == [(0, 8), (1, 16)]
    assert metadata.tally == {(0, 0): 8}
    again = ReplicaMetadata(StepSchedule(4, 8))
    again.adopt(metadata.to_json())
    assert again.to_json() == metadata.to_json()


GROUP = {
    "model_def": "a.b",
    "model_zoo": "/z",
    "training_data": "/d",
    "distribution_strategy": "AllReduceStrategy",
}


@pytest.mark.parametrize(
    ("given", "parts", "size", "computing"),
    [
        ({"max_workers": 1}, 1, 64, 1),
        ({"max_workers": 3}, 4, 16, 3),
        ({"max_workers": 30}, 8, 8, 8),
        ({"max_workers": 3, "microbatches": 2}, 2, 32, 2),
        ({"max_workers": 4, "minibatch_size": 10}, 1, 10, 1),
        ({"max_workers": 9, "minibatch_size": 10, "microbatches": 8}, 5, 2, 5),
        ({"max_workers": 2, "minibatch_size": 129}, 2, 65, 2),
        ({"max_workers": 4, "minibatch_size": 50, "model_def": "a.__main__"}, 2, 25, 2),
    ],
)
def test_an_update_has_the_records_of_a_minibatch_and_is_cut_for_the_workers(
    given: dict[str, Any], parts: int, size: int, computing: int
) -> None:
    spec = JobSpec.from_mapping({**GROUP, "num_minibatches_per_task": 6, **given})
    assert (spec.microbatches, spec.microbatch_size, spec.most_computing) == (parts, size, computing)
    assert spec.records_per_task == 6 * spec.minibatch_size
    assert JobSpec.from_mapping({**spec.to_mapping(), "max_workers": 40}).microbatches == parts, "whoever is there"


def test_the_same_records_are_as_many_updates_by_any_strategy_and_number_of_workers() -> None:
    found = set()
    for strategy in ("AllReduceStrategy", "ParameterServerStrategy", "auto"):
        for workers in (1, 2, 3):
            spec = JobSpec.from_mapping({**GROUP, "distribution_strategy": strategy, "max_workers": workers})
            schedule, updates = StepSchedule(spec.microbatches_per_step, spec.minibatch_size), 0
            for shard in cut([Shard("a", 0, 60 * 64 - 7)], spec.records_per_task):
                schedule.add([_entry(0, shard.start, shard.end)])
                while (step := _next_step(schedule)) is not None:
                    assert sum(end - start for start, end in map(step.bounds, range(schedule.microbatches))) == (
                        step.end - step.start
                    )
                    schedule.count(step)
                    updates += 1
            found.add(updates)
    assert found == {60}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"microbatches": 8, "minibatch_size": 4}, "an update of 4 records .* cannot be cut into 8 parts"),
        ({"microbatches": 3, "model_def": "a.__main__"}, "64 records .* into 3 batches of one size"),
    ],
)
def test_an_update_that_cannot_be_cut_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        JobSpec.from_mapping({**GROUP, **given})


def test_a_member_computes_each_microbatch_or_all_of_them_in_one_pass() -> None:
    schedule = StepSchedule(4, 8)
    schedule.add([_entry(0, 0, 7)])
    step = schedule.step_dealt((0, 0, 0, 2))
    assert step.passes(0, fused=False) == [ComputePass(0, 0, 2), ComputePass(1, 2, 4), ComputePass(2, 4, 6)]
    assert step.passes(0, fused=True) == [ComputePass(0, 0, 6)]
    assert step.passes(1, fused=True) == step.passes(1, fused=False) == []
    assert step.passes(2, fused=True) == [ComputePass(3, 6, 7)]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"distribution_strategy": "ParameterServerStrategy"},
            "only training by AllReduceStrategy gives the same bits",
        ),
        ({"distribution_strategy": "auto"}, "only training by AllReduceStrategy gives the same bits"),
        ({"model_def": "a.__main__"}, "a script's loop takes one minibatch after the other"),
    ],
)
def test_what_cannot_fuse_refuses_by_name(fields: dict[str, str], told: str) -> None:
    given = {"model_def": "a.b", "model_zoo": "/z", "training_data": "/d", "deterministic": False}
    with pytest.raises(SpecError) as raised:
        JobSpec.from_mapping({**given, **fields})
    assert [(one.field, told in one.message) for one in raised.value.problems] == [("deterministic", True)]


NCCL: dict[str, object] = {
    "distribution_strategy": "AllReduceStrategy",
    "deterministic": False,
    "worker_resource_request": "gpu=1",
    "collective": "nccl",
}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"deterministic": True}, "adds in an order of its own"),
        ({"distribution_strategy": "auto", "deterministic": True}, "adds in an order of its own"),
        ({"worker_resource_request": "gpu=0.5"}, "one of this job takes gpu=0.5"),
        ({"worker_resource_request": "gpu=2"}, "one of this job takes gpu=2"),
        ({"worker_resource_request": ""}, "one of this job takes none"),
        ({"collective": "pigeons"}, "'pigeons' is unknown"),
        ({"model_def": "a.__main__", "deterministic": True}, "in the host's memory"),
    ],
)
def test_sums_on_devices_are_refused_where_nccl_cannot_make_them(fields: dict[str, object], told: str) -> None:
    given = {"model_def": "a.b", "model_zoo": "/z", "training_data": "/d", **NCCL}
    assert JobSpec.from_mapping(given).collective == "nccl"
    with pytest.raises(SpecError) as raised:
        JobSpec.from_mapping({**given, **fields})
    assert {one.field for one in raised.value.problems} == {"collective"}
    assert any(told in one.message for one in raised.value.problems)


def _steps_of(member: GroupMember, orders: Orders, commands: Iterator[GroupCommands]) -> list[Step]:
    """The steps that a member of rank 0 begins in a generation; a second member knows nothing and says nothing."""
    newcomer = {"holds": False, "steps": 0, "known": 0, "left": 0, "keeps": False}
    told = {"fed": 8, "rows": 8, "skips": [], "seconds": 0.1, "digest": ""}
    running, result, steps = member.enter(orders), None, list[Step]()
    while True:
        try:
            operation = running.send(result)
        except StopIteration:
            member.finished = orders.generation
            return steps
        result: Any = None
        match operation:
            case Gather(data):
                other = newcomer if "holds" in data else told if "fed" in data else {}
                result = [data, {**other, "lead": None}][: len(orders.members)]
            case FoundGroup():
                result = (0, {})
            case Consult():
                result = next(commands)
            case Compute(step):
                steps.append(step)
                result = told


def test_a_member_that_holds_the_model_knows_the_first_step_of_a_generation_before_it_is_formed() -> None:
    member, entries = GroupMember("old", 4, 8), [_entry(0, 0, 16), _entry(1, 16, 32)]
    alone = Orders(1, ("old",), 0, is_over=False, regroup=False)
    assert member.first_step(alone) is None
    commands = [GroupCommands(entries), GroupCommands(regroup=True)]
    assert len(_steps_of(member, alone, iter(commands))) == 1
    both = Orders(2, ("old", "new"), 1, is_over=False, regroup=False)
    known = member.first_step(both)
    assert known is not None
    assert known.dealt == (0, 0, 0, 0), "the state is on its way to the newcomer"
    assert _steps_of(member, both, iter([GroupCommands(), GroupCommands(regroup=True)])) == [known]


def test_a_group_makes_no_update_past_the_version_at_which_an_evaluation_is_due() -> None:
    member, alone = GroupMember("old", 4, 8), Orders(1, ("old",), 0, is_over=False, regroup=False)
    at_two, at_three = GroupCommands([_entry(0, 0, 64)], pause_at=2), GroupCommands(pause_at=3)
    # Two updates, twice a rest, one more, and a rest.
    commands = [at_two, at_two, at_two, at_two, at_three, at_three, GroupCommands(regroup=True, pause_at=3)]
    assert [step.number for step in _steps_of(member, alone, iter(commands))] == [1, 2, 3]
    assert member.metadata.version == 3


def test_a_newcomer_does_not_hold_the_model_while_the_state_is_on_its_way() -> None:
    """The generation may end before its first step: what the newcomer has by then is no model."""
    member, both = GroupMember("new", 4, 8), Orders(2, ("old", "new"), 1, is_over=False, regroup=False)
    schedule = StepSchedule(4, 8)
    schedule.add([_entry(0, 0, 16)])
    running = member.enter(both)
    gather = next(running)
    assert isinstance(gather, Gather)
    old = {"holds": True, "steps": 3, "known": 1, "left": 1, "keeps": False}
    receive = running.send([old, gather.data])
    assert isinstance(receive, Receive) and (receive.source, receive.need) == (0, "stream")
    running.send(ReplicaMetadata(schedule, 3).to_json())
    running.close()
    member.finished = 2
    assert not member.holds_for(Orders(3, ("old", "new"), 2, is_over=False, regroup=False))


def test_what_a_member_held_before_a_generation_that_it_missed_counts_no_more() -> None:
    member = GroupMember("old", 4, 8)
    member.holds = True
    for finished, base, counts in ((4, 4, True), (3, 4, False), (4, 0, False)):
        member.finished = finished
        assert member.holds_for(Orders(5, ("old", "new"), base, is_over=False, regroup=False)) is counts


@pytest.mark.parametrize(("digests", "out"), [("aba", (1,)), ("abb", (0,)), ("ab", (1,))])
@pytest.mark.parametrize("rank", [0, 1])
def test_who_differs_from_most_or_from_the_oldest_holds_the_model_no_more(
    digests: str, out: tuple[int, ...], rank: int
) -> None:
    names = ("x", "y", "z")[: len(digests)]
    member = GroupMember(names[rank], 4, 8)
    member.holds, member.finished = True, 1
    member.metadata.schedule.add([_entry(0, 0, 16)])
    running = member.enter(Orders(2, names, 1, is_over=False, regroup=False))
    operation: Any = next(running)
    result: Any = [operation.data] * len(names)
    with pytest.raises(DiffersError):
        while True:
            operation = running.send(result)
            if isinstance(operation, Consult):
                result = GroupCommands()
            elif isinstance(operation, Compute):
                result = {"fed": 2, "rows": 2, "skips": [], "seconds": 0.0, "digest": digests[rank]}
            elif "digest" in operation.data:
                result = [{**operation.data, "digest": digest} for digest in digests]
            else:
                lead = operation.data["lead"] or {
                    **dict.fromkeys(("regroup", "drop", "pin", "limit", "pause_at"), 0),
                    "entries": [], "acknowledged": [], "solo": {}, "save": None, "dealt": [0, 1, 0, 1],
                }  # fmt: skip
                result = [{"lead": lead}] * len(names)
    assert member.suspects == out
    assert member.holds is (rank not in out)


def test_the_metadata_of_a_model_are_read_as_they_were_written() -> None:
    metadata = ReplicaMetadata(StepSchedule(1, 8))
    metadata.schedule.add([_entry(1, 8, 16), _entry(2, 0, 8)])
    assert metadata.front() is None
    metadata.schedule.position = 12
    found = ReplicaMetadata.parse(json.dumps(metadata.to_json()))
    assert found.to_json() == metadata.to_json()
    assert found.front() == TaskId(TaskType.TRAINING, 0, 1, 8, 12)


@pytest.mark.parametrize(
    "change",
    [{"course": 3}, {"course": {"entries": [1]}}, {"ended": [["1.2.a"]]}, {"tally": [[1]]}, {"account": 1}, None],
    ids=str,
)
def test_metadata_that_cannot_be_read_are_refused(change: Any) -> None:
    text = json.dumps(change and ReplicaMetadata(StepSchedule(1, 8)).to_json() | change)
    with pytest.raises(InvalidInputError, match="metadata"):
        ReplicaMetadata.parse(text)
