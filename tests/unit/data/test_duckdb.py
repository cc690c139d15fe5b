"""Tables of DuckDB: their schemas, types and missing values, and what cannot be read."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from elasticdl.data import create_data_reader, files
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data
from elasticdl_core.path_policy import PathPolicy

pytestmark = pytest.mark.unit
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE clicks AS SELECT
    i::INT AS id, i::UTINYINT AS age, i * 1.5::DOUBLE AS x, (i + 0.25)::DECIMAL(9, 2) AS price, 'n' || i AS name,
    (CASE i WHEN 0 THEN 'sad' ELSE 'happy' END)::mood AS mood, '\\x00\\xff'::BLOB AS raw, i = 1 AS seen,
    DATE '1970-01-03' AS day, TIMESTAMPTZ '1970-01-01 00:00:01.5+00' AS at, [i, i] AS tags, [1, 2]::FLOAT[2] AS pair,
    {'age': i, 'town': 'x'} AS who, i::HUGEINT AS huge
FROM range(2) r(i);
CREATE SCHEMA shop;
CREATE TABLE shop."Two ""Words" (a INT, b TEXT);
INSERT INTO shop."Two ""Words" VALUES (1, NULL), (2, 'y');
CREATE TABLE "sh.op" (a INT);
CREATE TABLE empty (a INT);
CREATE TABLE numbered (rowid INT, a INT);
CREATE TABLE odd AS SELECT 1 AS a, INTERVAL 1 DAY AS gap, '101'::BIT AS bits, TIMETZ '10:00:00+02:00' AS late,
    MAP {'a': 1} AS pairs, 9007199254740993::HUGEINT AS huge, [1, NULL] AS holes, NULL::INT AS missing;
CREATE VIEW seen AS FROM clicks;
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("duckdb") / "a 'b.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(TABLES)
    return path


@pytest.fixture
def database(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / made.name))


def url(database: Path, asked: str) -> str:
    return f"duckdb://{database}?table={asked}"


def rows(origin: str, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(origin, None, params)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def test_rows_come_in_the_order_of_the_file_with_the_declared_types(database: Path) -> None:
    first, second = rows(url(database, "clicks"))
    assert (first.pop("tags").tolist(), second.pop("tags").tolist()) == ([0, 0], [1, 1])
    assert second.pop("pair").tolist() == [1.0, 2.0]
    assert second == {
        "id": 1, "age": 1, "x": 1.5, "price": 1.25, "name": "n1", "mood": "happy", "raw": b"\0\xff", "seen": True,
        "day": 2, "at": 1_500_000, "who.age": 1, "who.town": "x", "huge": 1.0,
    }  # fmt: skip
    report = inspect_data(url(database, "clicks"), records=1, verify=True)
    assert (report.kind, report.records, report.verified) == ("duckdb", 2, 2)
    assert (report.columns["at"], report.columns["age"]) == ("timestamp in us, UTC", "uint8")
    assert rows(url(database, "main.clicks"), columns=["name", "who.age"])[0] == {"name": "n0", "who.age": 0}
    assert rows(url(database, "shop.Two%20%22Words"), nulls={"b": "z"}) == [{"a": 1, "b": "z"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("asked", "params", "words"),
    [
        ("none", {}, r"no table 'none'(.|\n)*the tables are clicks, empty, numbered, odd, sh\.op, shop\.Two"),
        ("seen", {}, r"no table 'seen'(.|\n)*make a table of a view"),
        ("", {}, "is no table of a database"),
        ("clicks&key=id", {}, "is no table of a database"),
        ("clicks#x", {}, "is no table of a database"),
        ("clicks&table=odd", {}, "is no table of a database"),
        ("numbered", {}, "a column 'rowid', which hides"),
        ("empty", {}, "the table has no row"),
        ("odd", {"columns": ["gap"]}, "column 'gap' is .*interval.*, which is no tensor"),
        ("odd", {"columns": ["bits"]}, "column 'bits' is BIT, which is no tensor"),
        ("odd", {"columns": ["late"]}, "column 'late' is TIME WITH TIME ZONE, which is no tensor"),
        ("odd", {"columns": ["pairs"]}, "column 'pairs' is map"),
        ("odd", {"columns": ["huge"]}, "row 0: column 'huge' holds 9007199254740993, a whole number that float64"),
        ("odd", {"columns": ["holes"]}, "a list in column 'holes' has an element without value"),
        ("odd", {"columns": ["missing"]}, r"row 0: column 'missing' has no value \(null\)"),
        ("clicks", {"columns": ["nope"]}, "there is no column 'nope'"),
        ("clicks", {"columns": ["id", "name"], "label": "id"}, "takes one number of each column"),
        ("clicks", {"on_corrupt": "skip"}, "the duckdb reader has no parameter 'on_corrupt'"),
        ("clicks", {"window": 2}, "window= does not go with duckdb"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(asked: str, params: dict[str, Any], words: str, made: Path) -> None:
    with pytest.raises(DataError, match=words):
        reader = create_data_reader(url(made, asked), None, params)
        reader.default_feed()
        for shard in reader.create_shards():
            list(reader.read_records(shard))


def test_other_files_and_those_out_of_reach_are_refused(database: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        rows(f"duckdb://{tmp_path}/none.db?table=t")
    (tmp_path / "text.db").write_text("no database at all, but some text")
    with pytest.raises(DataError, match=r"cannot be read: .*not a valid DuckDB database"):
        rows(f"duckdb://{tmp_path}/text.db?table=t")
    with pytest.raises(DataError, match=r"is a database of duckdb(.|\n)*table=NAME"):
        inspect_data(str(database))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "link.db").symlink_to(database)
    files.confine(PathPolicy((str(mine),), ()))
    try:
        for origin in (url(database, "clicks"), f"duckdb://{mine}/link.db?table=clicks"):
            with pytest.raises(DataError, match="outside of what this namespace may use"):
                rows(origin)
        shutil.copy(database, mine / "own.db")
        own = f"duckdb://{mine}/own.db?table=clicks"
        assert len(rows(own)) == len(rows(own.removeprefix("duckdb://"), kind="duckdb")) == 2
        (mine / "own.db.wal").symlink_to(f"{database}.wal")
        with pytest.raises(DataError, match=r"own\.db\.wal is a link"):
            rows(own)
    finally:
        files.confine(None)


WRITER = """
import os, sys, duckdb
connection = duckdb.connect(sys.argv[1])
connection.execute("SET wal_autocheckpoint = '1TB'")
connection.execute("UPDATE clicks SET id = 9 WHERE id = 1")
print("written", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_rows_that_another_process_writes_are_a_change(database: Path) -> None:
    reader = create_data_reader(url(database, "clicks"))
    (shard,) = reader.create_shards()
    assert [row["id"] for row in create_data_reader(shard.name).read_records(shard)] == [0, 1]
    before = files.stamp(str(database))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        with contextlib.closing(writer.stdin):
            assert writer.stdout.readline() == "written\n"  # nobody who reads kept it from that
            with pytest.raises(DataError, match=r"another process has it open for writing"):
                list(reader.read_records(shard))
    assert files.stamp(str(database)) == before
    with pytest.raises(DataError, match=r"was changed.*a log of"):
        list(reader.read_records(shard))
    assert [row["id"] for row in rows(url(database, "clicks"))] == [0, 9]  # what the log has counts
