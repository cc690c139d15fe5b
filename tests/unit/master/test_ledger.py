"""The ledger of an epoch's tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.ledger import EpochLedger
from tests.unit.master.test_plan import make_plan

pytestmark = pytest.mark.unit


class TestEpochLedger:
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10), st.integers(0, 10)), max_size=30))
    def test_what_is_done_and_what_remains_make_the_plan(self, marks: list[tuple[int, int, int]]) -> None:
        plan = make_plan(35)
        ledger = EpochLedger(plan, 1)
        done: set[tuple[int, int]] = set()
        for index, one, two in marks:
            whole = plan.task(1, index)
            start, end = sorted((min(whole.start + one, whole.end), min(whole.start + two, whole.end)))
            if start == end:
                continue
            new = ledger.mark(TaskId(TaskType.TRAINING, 1, index, start, end))
            records = {(index, at) for at in range(start, end)}
            assert new == len(records - done)
            done |= records
        remaining = [(t.index, at) for t in ledger.remaining(range(4)) for at in range(t.start, t.end)]
        everything = {(i, at) for i, part in enumerate(plan.parts) for at in range(part.start, part.end)}
        assert len(remaining) == len(set(remaining))
        assert set(remaining) == everything - done
        assert ledger.records == len(done)
        assert ledger.complete == (done == everything)
        again = EpochLedger.from_mapping(plan, json.loads(json.dumps(ledger.to_mapping())))
        assert again.to_mapping() == ledger.to_mapping()
        assert {(t.index, at) for t in again.done() for at in range(t.start, t.end)} == done

    def test_marking_twice_counts_once(self) -> None:
        ledger = EpochLedger(make_plan(20), 0)
        task = ledger.plan.task(0, 1)
        assert (ledger.mark(task), ledger.mark(task), ledger.records) == (10, 0, 10)

    def test_what_is_done_is_named_as_it_was_marked(self) -> None:
        ledger = EpochLedger(make_plan(20), 0)
        whole = ledger.plan.task(0, 0)
        ledger.mark(whole.front_until(4))
        ledger.mark(whole.rest_from(4))
        ledger.mark(ledger.plan.task(0, 1))
        assert set(ledger.done()) == {whole.front_until(4), whole.rest_from(4), ledger.plan.task(0, 1)}
