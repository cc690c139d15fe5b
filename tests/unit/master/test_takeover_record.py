"""The record from which another master goes on."""

from __future__ import annotations

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.record import EvaluationRecord, TakeoverRecord

pytestmark = pytest.mark.unit


class TestTakeoverRecord:
    def test_it_is_read_as_it_was_written(self) -> None:
        record = TakeoverRecord(
            servers={0: 3, 1: 0},
            generation=4,
            epoch=2,
            awaited_pin=7,
            stopped="max_steps",
            single_tasks=(TaskId(TaskType.EXPORT, 0, 0, 0, 0),),
            evaluations=(EvaluationRecord(7, 2, True, "pinning", -1),),
            evaluated_epochs=(1,),
            description={"callbacks": {"max_steps": 3}},
            best=0.5,
            waited=1,
        )
        assert TakeoverRecord.from_text(record.to_text()) == record

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[1]",
            "{}",
            '{"format": 1, "servers": 3}',
            TakeoverRecord().to_text().replace('"format": 1', '"format": 0'),
        ],
    )
    def test_what_is_no_record_of_this_format_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInputError, match="cannot be read"):
            TakeoverRecord.from_text(text)
