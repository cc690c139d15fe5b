"""Left-out rows of ``feed`` counted in records of the source."""

from __future__ import annotations

import pytest

from elasticdl_core.skips import SkipReason, Skips

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("nan", "corrupt", "records", "fed", "counted"),
    [
        (8, 0, 24, None, 8),
        (8, 0, 24, 24, 8),
        (8, 0, 24, 12, 8),  # feed filters: a row is one record
        (12, 0, 24, 12, 12),
        (8, 0, 24, 48, 4),  # feed repeats: two rows are one record
        (8, 0, 24, 72, 3),
        (48, 0, 24, 48, 24),
        (1, 0, 24, 48, 1),
        (40, 4, 24, 40, 20),
        (30, 0, 24, None, 24),
        (0, 4, 24, 40, 0),
    ],
)
def test_rows_are_counted_as_records_of_their_task(
    nan: int, corrupt: int, records: int, fed: int | None, counted: int
) -> None:
    skips = Skips.of(SkipReason.NAN, nan, "these") + Skips.of(SkipReason.CORRUPT, corrupt, "those")
    found = skips.in_records(records, fed)
    assert (found.count(SkipReason.NAN), found.count(SkipReason.CORRUPT)) == (counted, corrupt)
    assert found.records <= records
    assert not nan or found.reasons[SkipReason.NAN].example == "these"
