"""``window=``: one record is several consecutive rows, exact at the ends of files, groups and tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.data import DataError, Shard, columns_of, create_data_reader
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit


def write(path: Path, days: range, shops: str = "") -> Path:
    rows = [f"{day},{shop},{day * 10}" for day in days for shop in (shops or "x")]
    path.write_text("\n".join(["day,shop,sold", *rows, ""]))
    return path


def days(records: list[list[list[str]]]) -> list[list[int]]:
    return [[int(row[0]) for row in record] for record in records]


@pytest.mark.parametrize("records_per_task", [None, 1, 2, 100])
@pytest.mark.parametrize(("window", "stride"), [(1, 1), (3, 1), (3, 2), (4, 4), (7, 3)])
def test_windows_end_with_their_file_and_do_not_depend_on_tasks(
    tmp_path: Path, window: int, stride: int, records_per_task: int | None
) -> None:
    for number, length in enumerate((7, 2, 9)):
        write(tmp_path / f"{number}.csv", range(100 * number, 100 * number + length))
    reader = create_data_reader(str(tmp_path), records_per_task, {"window": window, "stride": stride})
    expected = [
        list(range(100 * number + start, 100 * number + start + window))
        for number, length in enumerate((7, 2, 9))
        for start in range(0, length - window + 1, stride)
    ]
    shards = list(reader.create_shards())
    assert days([record for shard in shards for record in reader.read_records(shard)]) == expected
    assert sum(shard.records for shard in shards) == len(expected)
    assert all(shard.records <= (records_per_task or 100) for shard in shards)
    assert days(reader.read_ranges(shards[::-1][:1])) == expected[-shards[-1].records :]


def test_windows_of_a_group_hold_its_rows_wherever_they_are(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", range(5), "xyx")
    reader = create_data_reader(str(tmp_path), None, "window=4;stride=3;group_by=shop")
    (shard,) = reader.create_shards()
    found = list(reader.read_records(shard))
    assert [[row[1] for row in record] for record in found] == [list("xxxx")] * 3 + [list("yyyy")]
    assert days(found) == [[0, 0, 1, 1], [1, 2, 2, 3], [3, 3, 4, 4], [0, 1, 2, 3]]
    assert reader.reads_by_index
    assert reader.read_numbers(shard.name, [1, 3]) == [found[1], found[3]]
    assert columns_of(reader) == ["day", "shop", "sold"]


def test_windows_of_other_kinds_are_lists_of_their_records(tmp_path: Path) -> None:
    from elasticdl.data.tfrecord import TFRecordWriter

    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for one in b"abcd":
            writer.write(bytes([one]))
    reader = create_data_reader(str(tmp_path), None, {"window": 3})
    assert list(reader.read_records(next(reader.create_shards()))) == [[b"a", b"b", b"c"], [b"b", b"c", b"d"]]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"window": 0}, "window is 0"),
        ({"window": 3.5}, "window=3.5 has the wrong type"),
        ({"stride": 2}, "window is missing"),
        ({"window": 2, "stride": 0}, "stride is 0"),
        ({"window": 2, "group_by": "city"}, "no column 'city' to group by"),
        ({"window": 2, "label": "sold"}, "label="),
        ({"window": 2, "on_corrupt": "skip"}, "on_corrupt=skip"),
        ({"window": 8}, "no file has 8 rows"),
        ({"window": 5, "group_by": "sold"}, "no file has 5 rows of one 'sold'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, params: dict[str, object], said: str) -> None:
    write(tmp_path / "a.csv", range(7))
    with pytest.raises(DataError, match=said):
        list(create_data_reader(str(tmp_path), None, params).create_shards())
    with pytest.raises(DataError, match=said):
        inspect_data(str(tmp_path), reader_params=params)


def test_a_window_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", range(4))
    reader = create_data_reader(str(tmp_path), None, {"window": 3})
    with pytest.raises(DataError, match="has 2 windows"):
        list(reader.read_records(Shard(str(path), 1, 3)))


def test_what_a_feed_does_to_a_row_is_not_in_the_windows_that_overlap(tmp_path: Path) -> None:
    """A feed that took the target off each row (``row.pop()``) took another column off it in the next window."""
    write(tmp_path / "a.csv", range(6))
    reader = create_data_reader(str(tmp_path), None, {"window": 3})
    (shard,) = reader.create_shards()
    for window in reader.read_records(shard):
        assert [row.pop() for row in window] == [str(int(row[0]) * 10) for row in window]
