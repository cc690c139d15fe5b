"""Data that is looked through whole: each record that is not as the first ones is named."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from elasticdl.cli.data import app
from elasticdl.data import recordio
from elasticdl.data.errors import DataError
from elasticdl.data.example import encode_example
from elasticdl.data.validation import validate_data
from tests.fakes.sources import SOURCES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", SOURCES)
def test_sound_data_has_no_problems(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("rows" if kind == "images" else f"rows.{kind}")
    SOURCES[kind].write(path, range(40))
    origin = f"{kind}://{path}?table=t" if kind in ("sqlite", "duckdb") else str(path)
    found = validate_data(origin, reader_params={"with_header": True} if kind == "csv" else {})
    if kind == "images":  # their bytes are numbers
        assert (len(found.problems), found.complete) == (20, False)
        assert "0000.png" in found.problems[0].message
        return
    assert (found.records, found.checked, found.problems, found.complete) == (40, 40, [], True)


def test_each_bad_row_of_csv_is_named_with_its_column(tmp_path: Path) -> None:
    lines = [f"{number},{number / 2},word" for number in range(3000)]
    lines[1500], lines[1600], lines[2999] = "x,1.5,word", "3,4", "7,,word"
    (tmp_path / "a.csv").write_text("id,price,name\n" + "\n".join(lines) + "\n")
    found = validate_data(str(tmp_path / "a.csv"))
    places = [one.message.partition("record ")[2].partition(":")[0] for one in found.problems]
    assert places == ["1500", "1600", "2999"]
    assert "column 'id' holds 'x', which is no number" in found.problems[0].message
    assert "column 'price' holds ''" in found.problems[2].message
    assert (found.records, found.checked, found.complete) == (3000, 2999, True)
    assert len(validate_data(str(tmp_path / "a.csv"), most_problems=2).problems) == 2
    found = validate_data(str(tmp_path / "a.csv"), reader_params={"label": "id"}, most_problems=5)
    assert "column 'name' holds 'word', which is no number" in found.problems[0].message


def test_missing_values_of_tables_are_named_once_a_group(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1, 2, None, 4, 5, None, 7, None]}), tmp_path / "a.parquet", 4)
    found = validate_data(str(tmp_path / "a.parquet"))
    assert ["row 2: column 'v' has no value" in found.problems[0].message, len(found.problems)] == [True, 1]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.executescript("CREATE TABLE t (v INT); INSERT INTO t VALUES (1), ('x')")
    (problem,) = validate_data(f"sqlite://{tmp_path}/a.db?table=t").problems
    assert "row 1: column 'v' holds 'x'" in problem.message
    with pytest.raises(DataError, match="holds str"):
        pq.write_table(pa.table({"v": ["a"], "y": [1]}), tmp_path / "b.parquet")
        validate_data(str(tmp_path / "b.parquet"), reader_params={"label": "y"})


def test_examples_have_the_features_of_the_first(tmp_path: Path) -> None:
    with recordio.Writer(tmp_path / "a.recordio") as writer:
        for record in (
            {"x": [1.5], "y": [1]},
            {"x": [1], "y": [1]},
            {"x": [2.5, 3.5], "y": [2]},
            {"x": [0.5], "z": [1]},
        ):
            writer.write(encode_example(record))
    assert [one.message.partition("record ")[2] for one in validate_data(str(tmp_path / "a.recordio")).problems] == [
        "1: feature 'x' is int64, and float in the first record",
        "3: feature 'y' is missing, and int64 in the first record",
        "3: feature 'z' is int64, and missing in the first record",
    ]


def test_the_command_tells_problems_and_ends_with_1(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x\n" + "1,2\n" * 200 + "1,oops\n")
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 1
    assert "problem   " in result.stdout
    assert "record 200: column 'x' holds 'oops', which is no number" in result.stdout
    assert "csv: 201 of 201 records could be read; 1 problems\n" in result.stdout
    result = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["problems"][0]["fix"] != "") == (1, True)
    path.write_text("id,x\n" + "1,2\n" * 200)
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == 0
    assert CliRunner().invoke(app, ["validate", str(tmp_path / "none")]).exit_code == 1
