"""Columns of Parquet and Arrow files: their types, what is missing, partitions, and files that differ."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import Shard, create_data_reader
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl_core.shuffling import RecordOrder, joined_parts

pytestmark = pytest.mark.unit

UTC = datetime.UTC
VALUES: dict[str, tuple[pa.Array, list[Any], str]] = {
    "int8": (pa.array([1, -2], pa.int8()), [1, -2], "int8"),
    "uint64": (pa.array([1, 2**64 - 1], pa.uint64()), [1, 2**64 - 1], "uint64"),
    "float16": (pa.array(np.array([0.5, 2], np.float16)), [0.5, 2.0], "float16"),
    "bool": (pa.array([True, False]), [True, False], "bool"),
    "text": (pa.array(["ä\0", ""]), ["ä\0", ""], "string"),
    "large text": (pa.array(["a", "b"], pa.large_string()), ["a", "b"], "string"),
    "bytes": (pa.array([b"\0a\0", b""]), [b"\0a\0", b""], "bytes"),
    "dictionary": (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"], "string"),
    "decimal": (pa.array([decimal.Decimal("1.25"), decimal.Decimal(-3)]), [1.25, -3.0], "float64"),
    "timestamp": (
        pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 2, pa.timestamp("ms", "UTC")),
        [1000, 1000],
        "int64",
    ),
    "date": (pa.array([datetime.date(1970, 1, 3)] * 2), [2, 2], "int64"),
    "time": (pa.array([datetime.time(0, 0, 7)] * 2, pa.time32("ms")), [7000, 7000], "int64"),
    "duration": (pa.array([5, 6], pa.duration("us")), [5, 6], "int64"),
    "lists": (pa.array([[1, 2], []]), [[1, 2], []], "int64[]"),
    "lists of text": (pa.array([["a"], ["b", "c"]]), [["a"], ["b", "c"]], "string[]"),
    "vectors": (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)), [[1, 2], [3, 4]], "float32[2]"),
}


def write(path: Path, table: Any, rows: int = 100) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, rows, store_schema=True)
    return str(path)


def records(origin: str, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(origin, None, params)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@pytest.mark.parametrize("name", VALUES)
def test_values_come_as_numpy_has_them(name: str, tmp_path: Path) -> None:
    array, wanted, kind = VALUES[name]
    path = write(tmp_path / "a.parquet", pa.table({"v": array}))
    found = [record["v"] for record in records(path)]
    assert [one.tolist() if hasattr(one, "tolist") else one for one in found] == wanted
    assert create_data_reader(path).metadata.column_types == {"v": kind}


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (pa.array([[[1]], [[2]]]), "no tensor"),
        (pa.array([[{"a": 1}], []]), "no tensor"),
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), "no tensor"),
        (pa.nulls(2), "no tensor"),
    ],
)
def test_what_is_no_tensor_is_refused_unless_it_is_not_read(array: Any, word: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"v": array, "w": [1, 2]}))
    with pytest.raises(DataError, match=f"column 'v' is .*{word}"):
        create_data_reader(path)
    assert [record["w"] for record in records(path, columns=["w"])] == [1, 2]


def test_columns_of_structs_are_columns(tmp_path: Path) -> None:
    rows = [{"b": 1, "c": {"d": "x"}}, {"b": 2, "c": None}]
    path = write(tmp_path / "a.parquet", pa.table({"a": pa.array(rows)}))
    assert records(path, nulls="default") == [{"a.b": 1, "a.c.d": "x"}, {"a.b": 2, "a.c.d": ""}]
    assert records(path, columns=["a.b"]) == [{"a.b": 1}, {"a.b": 2}]


def test_nulls_are_refused_by_row_and_column_or_become_what_is_said(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": [1, 2, None],
            "f": [1.0, None, 3.0],
            "t": ["a", "b", None],
            "l": [[1], None, [2]],
            "b": [b"x", None, b""],
        }
    )
    path = write(tmp_path / "a.parquet", table, 2)
    with pytest.raises(DataError, match="row 2: column 'i' has no value"):
        records(path, columns=["i"])
    with pytest.raises(DataError, match="row 1: column 'f' has no value"):
        records(path, columns=["f", "i"], nulls={"i": 0})
    with pytest.raises(ReaderParamsError, match="there is no column 'x'"):
        records(path, nulls={"x": 0})
    with pytest.raises(ReaderParamsError, match="nulls='zero'"):
        records(path, nulls="zero")
    found = records(path, nulls="default")
    assert [record["i"] for record in found] == [1, 2, 0]
    assert np.isnan(found[1]["f"])
    assert [record["t"] for record in found] == ["a", "b", ""]
    assert [record["l"].tolist() for record in found] == [[1], [], [2]]
    assert records(path, columns=["i", "f"], nulls={"i": -1, "f": 0.5})[1:] == [
        {"i": 2, "f": 0.5},
        {"i": -1, "f": 3.0},
    ]
    inside = write(tmp_path / "b.parquet", pa.table({"l": [[1, None]]}))
    with pytest.raises(DataError, match="a list in column 'l' has an element without value"):
        records(inside, nulls="default")


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    for day, city in ((1, "a b"), (2, "c")):
        write(tmp_path / f"day={day}" / f"city={city.replace(' ', '%20')}" / "x.parquet", pa.table({"v": [day * 10]}))
    write(tmp_path / "_temporary" / "day=3" / "city=d" / "x.parquet", pa.table({"v": [0]}))
    assert records(str(tmp_path)) == [{"v": 10, "day": 1, "city": "a b"}, {"v": 20, "day": 2, "city": "c"}]
    assert records(str(tmp_path), columns=["city"]) == [{"city": "a b"}, {"city": "c"}]
    write(tmp_path / "day=x" / "city=e" / "x.parquet", pa.table({"v": [0]}))
    with pytest.raises(DataError, match="partition day=x is no whole number"):
        records(str(tmp_path))


def test_files_of_other_columns_or_types_are_refused_and_narrow_ones_widened(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"v": pa.array([1], pa.int64()), "w": [1]}))
    write(tmp_path / "b.parquet", pa.table({"w": [2], "v": pa.array([2], pa.int32()), "more": ["x"]}))
    assert records(str(tmp_path)) == [{"v": 1, "w": 1}, {"v": 2, "w": 2}]
    write(tmp_path / "c.parquet", pa.table({"w": [2], "v": ["x"]}))
    with pytest.raises(DataError, match=r"c\.parquet: column 'v' is str here, and int64 in the first file"):
        records(str(tmp_path))
    write(tmp_path / "t" / "a.parquet", pa.table({"v": pa.array([1], pa.timestamp("ms", "UTC"))}))
    write(tmp_path / "t" / "b.parquet", pa.table({"v": pa.array([2], pa.timestamp("ms", "Europe/Oslo"))}))
    assert records(str(tmp_path / "t")) == [{"v": 1}, {"v": 2}]
    for other in (pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.date64(), pa.int64()):
        write(tmp_path / "t" / "b.parquet", pa.table({"v": pa.array([2], other)}))
        with pytest.raises(DataError, match=r"b\.parquet: column 'v' is .* here, and timestamp\[ms, tz=UTC\] in the"):
            records(str(tmp_path / "t"))
    write(tmp_path / "c.parquet", pa.table({"w": [2]}))
    with pytest.raises(DataError, match=r"c\.parquet: has no column 'v'"):
        records(str(tmp_path))
    write(tmp_path / "c.parquet", pa.table({"w": [2], "v": pa.array([2**63], pa.uint64())}))
    with pytest.raises(DataError, match=r"c\.parquet: column 'v' is uint64 here and int64 in the first file"):
        records(str(tmp_path))


def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"v": [1], "t": ["x"]}))
    with pytest.raises(ReaderParamsError, match=r"no column 'vv'.*\n.*the columns are v, t"):
        create_data_reader(path, None, {"columns": ["vv"]})
    with pytest.raises(ReaderParamsError, match="the label 'y' is not among the columns"):
        create_data_reader(path, None, {"label": "y"})
    with pytest.raises(ReaderParamsError, match="on_corrupt=skip is not possible for parquet"):
        create_data_reader(path, None, {"on_corrupt": "skip"})
    with pytest.raises(DataError, match="column 't' holds str: the feed that label=v"):
        create_data_reader(path, None, {"label": "v"}).default_feed()
    ids = create_data_reader(
        write(tmp_path / "i.parquet", pa.table({"id": [2**24, 2**24 + 1], "y": [0, 1]})), None, {"label": "y"}
    )
    assert ids.default_feed() is not None
    with pytest.raises(DataError, match="row 1: column 'id' holds 16777217, a whole number that float32"):
        list(ids.read_records(next(iter(ids.create_shards()))))
    with pytest.raises(ReaderParamsError, match="window= does not go with parquet"):
        create_data_reader(path, None, {"window": 3})
    empty = write(tmp_path / "e" / "a.parquet", pa.table({"v": pa.array([], pa.int64())}))
    with pytest.raises(DataError, match="hold no record"):
        list(create_data_reader(empty).create_shards())
    whole = Path(path).read_bytes()
    (tmp_path / "d.parquet").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"d\.parquet: byte 0: cannot be read"):
        create_data_reader(str(tmp_path / "d.parquet"))


def test_the_columns_are_those_that_the_model_was_trained_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"y": [1], "b": [2], "a": [3]}))
    trained = {"trained_columns": ["a", "b", "y"]}
    assert list(records(path, **trained)[0]) == ["a", "b", "y"]
    other = write(tmp_path / "b.parquet", pa.table({"b": [2], "a": [3]}))
    with pytest.raises(DataError, match="there is no column 'y'"):
        create_data_reader(other, None, trained)
    assert create_data_reader(other, None, {**trained, "label": "y"}, predicting=True).metadata.column_names == [
        "a",
        "b",
    ]


def test_many_groups_are_mixed_few_at_a_time_and_each_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, group = 6400, 100
    path = write(tmp_path / "a.parquet", pa.table({"v": range(rows)}), group)
    size = group * 8
    monkeypatch.setattr("elasticdl.data.grouped_reader.KEPT_BYTES", 20 * size)
    loaded: list[int] = []
    reader = create_data_reader(path)
    assert isinstance(reader, GroupedReader)
    load = reader._load_group
    monkeypatch.setattr(reader, "_load_group", lambda name, number: loaded.append(number) or load(name, number))
    assert reader.grain == (group, 10)
    listed = list(reader.create_shards())
    parts = joined_parts(listed, 50)
    order = RecordOrder(3, grain=reader.grain)
    order.extend(parts, listed)
    loaded.clear()
    seen: list[int] = []
    for index, part in enumerate(parts):
        reading = order.reading(1, index, part.start, part.end)
        numbers = [number for _, number in reading.in_order(part.start, part.end)]
        places = reader.read_places([(path, sorted(numbers))])
        assert [record["v"] for record in places] == sorted(numbers)
        seen += numbers
    assert sorted(seen) == list(range(rows))
    assert len(loaded) <= rows // group + 10, "groups at the border of two pools come twice"
    first = [number // group for number in seen[:500]]
    assert len(set(first)) >= 10
    assert abs(np.corrcoef(seen, range(rows))[0, 1]) < 0.5


def test_footers_are_all_looked_at_and_empty_files_pass(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / f"{number:02}.parquet", pa.table({"v": pa.array([number] * (number % 3), pa.int64())}))
    shards = list(create_data_reader(str(tmp_path)).create_shards())
    assert [shard.records for shard in shards] == [number % 3 for number in range(40) if number % 3]
    assert Shard(str(tmp_path / "05.parquet"), 0, 2) in shards


@pytest.mark.parametrize("name", ["lists", "vectors"])
def test_what_a_feed_does_to_a_record_is_not_in_the_next_one(name: str, tmp_path: Path) -> None:
    array, wanted, _ = VALUES[name]
    reader = create_data_reader(write(tmp_path / "a.parquet", pa.table({"v": array})))
    (shard,) = reader.create_shards()
    for _ in range(3):  # the group is kept from epoch to epoch
        found = [record["v"] for record in reader.read_records(shard)]
        assert [one.tolist() for one in found] == wanted
        for one in found:
            one *= 2
