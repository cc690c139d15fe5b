"""Accounts of tasks whose ``feed`` makes other rows than records."""

from __future__ import annotations

import pytest

from elasticdl_core.skips import SkipReason, Skips
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state.accounts import RecordAccount, RecordCounts

pytestmark = pytest.mark.unit
TASK = TaskId(TaskType.TRAINING, 0, 0, 0, 24)


@pytest.mark.parametrize(("fed", "nan", "records", "rows"), [(48, 10, 5, 38), (12, 4, 4, 8), (48, 48, 24, 0)])
def test_skips_are_of_records_and_the_model_holds_rows(fed: int, nan: int, records: int, rows: int) -> None:
    book = RecordCounts()
    account = RecordAccount(Skips.of(SkipReason.NAN, nan, "these"), fed)
    book.record(TASK, account)
    again = RecordCounts()
    again.replace(book.to_mapping())
    for one in (book, again):
        assert (one.skipped(TASK), one.skips.records, one.rows(TASK)) == (records, records, rows)
