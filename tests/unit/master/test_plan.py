"""The plan of a job's tasks: parts, order and what a task reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import SPAN_PARTS, BlockReading, cut
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.plan import JobPlans, TaskPlan

pytestmark = pytest.mark.unit


def make_plan(*ends: int, size: int = 10, shuffle: bool = True) -> TaskPlan:
    plan = TaskPlan(TaskType.TRAINING, size, epochs=2, seed=7, shuffle=shuffle)
    plan.extend([Shard(f"s{i}", 0, end) for i, end in enumerate(ends)], last=True)
    return plan


class TestPlan:
    def test_parts_cover_every_record_once_and_none_is_too_large(self) -> None:
        parts = cut([Shard("a", 3, 25), Shard("b", 0, 0), Shard("c", 0, 10)], 10)
        assert parts == [Shard("a", 3, 13), Shard("a", 13, 23), Shard("a", 23, 25), Shard("c", 0, 10)]

    def test_what_a_task_reads_depends_on_seed_and_ledgeronly(self) -> None:
        plan, same = make_plan(1000), make_plan(1000)
        assert plan.reading(plan.task(0, 3)) == same.reading(same.task(0, 3))
        assert plan.reading(plan.task(0, 3)) != plan.reading(plan.task(1, 3))

    def test_without_shuffling_tasks_read_their_own_range(self) -> None:
        plan = make_plan(95, shuffle=False)
        assert plan.reading(plan.task(0, 3)) is None

    def test_while_listing_goes_on_only_parts_whose_records_are_known_are_ready(self) -> None:
        plan = TaskPlan(TaskType.TRAINING, 1, shuffle=True)
        assert plan.extend([Shard("a", 0, SPAN_PARTS - 1)]) == range(0)
        assert plan.extend([Shard("b", 0, 2)]) == range(SPAN_PARTS)
        assert plan.extend([Shard("c", 0, 5)], last=True) == range(SPAN_PARTS, SPAN_PARTS + 6)
        plain = TaskPlan(TaskType.TRAINING, 1)
        assert plain.extend([Shard("a", 0, 3)]) == range(3)

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_task_says_what_its_sources_were_like_also_after_a_takeover(self, shuffle: bool) -> None:
        spec = JobSpec(model_def="m.f", training_data="d", validation_data="v", shuffle=shuffle, minibatch_size=5)
        plans = JobPlans(spec)
        for plan, prefix in ((plans.main, "s"), (plans.validation, "v")):
            assert plan is not None
            plan.extend([Shard(f"{prefix}{i}", 0, 20) for i in range(3)], last=True)
            plan.fingerprints.update({f"{prefix}{i}": f"state {i}" for i in range(2)})
        adopted = JobPlans(spec)
        adopted.adopt(json.loads(json.dumps(plans.to_mapping())))
        for known in (plans, adopted):
            first = known.main.task(0, 0)
            told = known.fingerprints(first, known.reading(first))
            assert told == ({"s0": "state 0", "s1": "state 1"} if shuffle else {"s0": "state 0"})
            assert known.validation is not None
            assert known.fingerprints(known.validation.task(0, 0), None) == {"v0": "state 0"}

    def test_a_plan_adopted_from_the_ledger_is_the_same(self) -> None:
        plan = make_plan(95, 0, 7)
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(json.loads(json.dumps(plan.to_mapping())))
        assert (other.parts, other.records, other.ready) == (plan.parts, 102, 11)
        assert plan.parts[-2:] == [Shard("s0", 90, 100), Shard("s2", 5, 7)], "tasks go over the ends of files"
        assert other.reading(plan.task(1, 4)) == plan.reading(plan.task(1, 4))

    def test_a_plan_made_before_tasks_went_over_the_ends_of_files_keeps_its_tasks(self) -> None:
        mapping = make_plan(95, 0, 7).to_mapping()
        del mapping["joins"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert other.parts == cut(other.shards, 10) != make_plan(95, 0, 7).parts
        assert "joins" in other.to_mapping() and not other.to_mapping()["joins"]

    @pytest.mark.parametrize("sizes", [[1] * 256, [0, 3, 70, 0, 1, 40, 33, 2], [5], [64, 64]])
    def test_small_files_make_whole_tasks_with_each_record_once(self, sizes: list[int]) -> None:
        shards = [Shard(f"f{number}", number, number + size) for number, size in enumerate(sizes)]
        plan = TaskPlan(TaskType.TRAINING, 32, epochs=2, shuffle=True)
        for number, shard in enumerate(shards):
            assert plan.count_tasks([shard]) >= len(plan.parts)
            plan.extend([shard], last=number == len(shards) - 1)
        full, rest = divmod(sum(sizes), 32)
        assert [part.records for part in plan.parts] == [32] * full + ([rest] if rest else [])
        assert len({(part.name, part.start) for part in plan.parts}) == len(plan.parts)
        wanted = sorted((one.name, at) for one in shards for at in range(one.start, one.end))
        for epoch in range(2):
            found = []
            for index, part in enumerate(plan.parts):
                for start in range(part.start, part.end, 20):
                    task = TaskId(TaskType.TRAINING, epoch, index, start, min(start + 20, part.end))
                    reading = plan.reading(task)
                    assert reading is not None
                    places = reading.records(task.start, task.end)
                    found += [(one.name, at) for one in places for at in range(one.start, one.end)]
            assert sorted(found) == wanted

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("sizes", [(10, 10, 10), (20, 5, 10), (5, 10), (10, 0, 3, 7), (30,), (7, 3, 10, 10)])
    def test_pieces_of_one_file_are_written_as_one_where_that_gives_the_same_tasks(
        self, sizes: Sequence[int], shuffle: bool
    ) -> None:
        plan = TaskPlan(TaskType.TRAINING, 10, shuffle=shuffle, seed=3)
        pieces = [Shard("a", start, end) for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0))]
        many = [Shard("a", start, start + 10) for start in range(1000, 20_000, 10)]
        plan.extend([*pieces, Shard("b", 0, 15), *many], last=True)
        written = plan.to_mapping()
        assert len(written["shards"]) <= len(sizes) + 2
        other = TaskPlan(TaskType.TRAINING, 10)
        other.adopt(json.loads(json.dumps(written)))
        assert (other.parts, other.to_mapping()) == (plan.parts, written)
        for epoch in (0, 1):
            for index in range(0, len(plan.parts), 97):
                assert other.reading(plan.task(epoch, index)) == plan.reading(plan.task(epoch, index))

    def test_a_plan_made_before_records_were_shuffled_keeps_its_ranges(self) -> None:
        """What is done of it is named by them."""
        mapping = make_plan(95).to_mapping()
        del mapping["block"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert other.reading(other.task(0, 3)) is None

    @pytest.mark.parametrize("block", [0, 5])
    def test_a_plan_made_before_single_records_were_mixed_keeps_its_blocks(self, block: int) -> None:
        plan = TaskPlan(TaskType.TRAINING, 10, 3, seed=1, shuffle=True, block=block)
        plan.extend([Shard("a", 0, 95)], last=True)
        assert isinstance(plan.reading(plan.task(0, 3)), MixedReading if block == 0 else BlockReading)
        mapping = plan.to_mapping()
        del mapping["mixed"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert isinstance(other.reading(other.task(0, 3)), BlockReading)
        again = TaskPlan(TaskType.TRAINING, 1)
        again.adopt(other.to_mapping())
        assert again.reading(again.task(2, 3)) == other.reading(other.task(2, 3))
