"""Tables that are written, converted and looked at come back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.data import create_data_reader, decode_example, recordio, write
from elasticdl.data.convert import convert
from elasticdl.data.errors import DataError
from elasticdl.data.example import encode_example
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit

ROWS = [{"id": one, "x": one / 2, "name": f"n{one}"} for one in range(5)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def rows_of(path: Any) -> list[Any]:
    reader = create_data_reader(str(path))
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "recordio", "tfrecord"])
@pytest.mark.parametrize("data", [pa.table(COLUMNS), COLUMNS, {**COLUMNS, "x": np.array(COLUMNS["x"])}])
def test_what_is_written_is_read_and_converted_back(data: Any, kind: str, tmp_path: Path) -> None:
    files = write(data, tmp_path / "out", kind, records_per_file=2)
    assert [file.name for file in files] == [f"part-0000{number}.{kind}" for number in range(3)]
    found = rows_of(tmp_path / "out")
    if kind == "csv":
        assert [row["x"] for row in ROWS] == [float(one[1]) for one in found]
    elif kind in ("recordio", "tfrecord"):
        assert [decode_example(one)["name"] for one in found] == [[b"n%d" % number] for number in range(5)]
    else:
        assert found == ROWS
    convert(str(tmp_path / "out"), tmp_path / "back.parquet", "parquet")
    back = [
        {**row, "name": row["name"].decode() if isinstance(row["name"], bytes) else row["name"]}
        for row in rows_of(tmp_path / "back.parquet")
    ]
    assert back == ROWS
    if kind not in ("recordio", "tfrecord"):
        convert(str(tmp_path / "back.parquet"), tmp_path / "again.tfrecord", "tfrecord")
        assert [decode_example(one)["id"] for one in rows_of(tmp_path / "again.tfrecord")] == [
            [row["id"]] for row in ROWS
        ]


def test_types_of_arrow_are_kept(tmp_path: Path) -> None:
    table = pa.table({"small": pa.array([1, 2], pa.int8()), "x": pa.array([1, 2], pa.float32())})
    write(table, tmp_path / "a.arrow")
    types = create_data_reader(str(tmp_path / "a.arrow")).metadata.column_types
    assert types == {"small": "int8", "x": "float32"}


def test_lists_are_kept_where_the_format_has_them(tmp_path: Path) -> None:
    table = {"ids": [[1, 2], [], [3]], "y": [1, 0, 1]}
    write(table, tmp_path / "a.parquet")
    convert(str(tmp_path / "a.parquet"), tmp_path / "a.recordio", "recordio")
    assert [decode_example(one).get("ids", []) for one in rows_of(tmp_path / "a.recordio")] == table["ids"]
    with pytest.raises(DataError, match="column 'ids' holds ndarray, which CSV has not"):
        convert(str(tmp_path / "a.parquet"), tmp_path / "a.csv", "csv")
    assert not (tmp_path / "a.csv").exists()


def test_no_feature_of_examples_is_left_out(tmp_path: Path) -> None:
    with recordio.Writer(tmp_path / "a.recordio") as file:
        file.write(encode_example({"y": 1}))
        file.write(encode_example({"y": 0, "ids": [2]}))
    with pytest.raises(DataError, match="feature 'ids' is not in the first record"):
        convert(str(tmp_path / "a.recordio"), tmp_path / "a.parquet", "parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_the_index_of_a_dataframe_is_no_feature(tmp_path: Path) -> None:
    frame = pa.table({"x": [1, 2], "__index_level_0__": [7, 9]})  # as pandas gives rows that were picked
    write(frame, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "x\n1\n2\n"
    pa.parquet.write_table(frame, tmp_path / "b.parquet")
    assert [list(row) for row in rows_of(tmp_path / "b.parquet")] == [["x"], ["x"]]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for wrong, words in ((3, "a int is no table"), ({"a": [1], "b": [1, 2]}, "no table"), ({"a": []}, "0 rows")):
        with pytest.raises(DataError, match=words):
            write(wrong, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 1: column 'a' has no value, which csv cannot say"):
        write({"a": [1, None]}, tmp_path / "a.csv")
    with pytest.raises(DataError, match="row 20000: column 'a' has no value"):
        write({"a": [*range(20_000), None]}, tmp_path / "a.csv")
    with pytest.raises(DataError, match="there is no format 'orc'"):
        write(COLUMNS, tmp_path / "a", "orc")
    write(COLUMNS, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="exists already"):
        write(COLUMNS, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.parquet"]


def test_a_look_at_a_table_says_its_columns_and_first_records(tmp_path: Path) -> None:
    write({"v": [1.5, 2], "ids": [list(range(20)), []], "raw": [b"\xff", b"x"]}, tmp_path / "a.parquet")
    report = inspect_data(str(tmp_path / "a.parquet"), records=1, verify=True)
    assert (report.kind, report.records, report.verified) == ("parquet", 2, 2)
    assert report.columns == {"v": "float64", "ids": "int64[]", "raw": "bytes"}
    assert report.first_records == [{"v": 1.5, "ids": [*range(8), "..."], "raw": "ff"}]
