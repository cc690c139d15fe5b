"""Tables of SQLite: their keys, types and missing values, and what cannot be read."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import create_data_reader, files
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data
from elasticdl_core.path_policy import PathPolicy

pytestmark = pytest.mark.unit


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a b.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE clicks (id INTEGER PRIMARY KEY, age SMALLINT, x DOUBLE, name VARCHAR(9), raw BLOB, day DATE);
            INSERT INTO clicks VALUES (7, 30, 1.5, 'b', x'00ff00', '2024-01-02'), (3, 40, 2, 'a', x'', '2024-01-01');
            CREATE TABLE "no key" (v INT, code TEXT, other TEXT);
            CREATE UNIQUE INDEX by_code ON "no key" (code);
            CREATE UNIQUE INDEX some ON "no key" (other) WHERE v > 0;
            CREATE INDEX plain ON clicks (name);
            INSERT INTO "no key" VALUES (1, 'z', NULL), (NULL, 'y', NULL), ('three', 'x', 'o');
            CREATE TABLE pairs (a INT, b INT, PRIMARY KEY (a, b)) WITHOUT ROWID;
            CREATE TABLE empty (v INT);
            CREATE TABLE ids (n NUMERIC);
            INSERT INTO ids VALUES (9007199254740993);
            CREATE VIEW seen AS SELECT age FROM clicks;
            """
        )
    return path


def url(database: Path, asked: str) -> str:
    return f"sqlite://{database}?table={asked}"


def rows(origin: str, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(origin, None, params)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def test_rows_come_in_the_order_of_the_key_with_the_declared_types(database: Path) -> None:
    assert rows(url(database, "clicks")) == [
        {"id": 3, "age": 40, "x": 2.0, "name": "a", "raw": b"", "day": "2024-01-01"},
        {"id": 7, "age": 30, "x": 1.5, "name": "b", "raw": b"\0\xff\0", "day": "2024-01-02"},
    ]
    types = {"id": "int64", "age": "int64", "x": "float64", "name": "string", "raw": "bytes", "day": "string"}
    report = inspect_data(url(database, "clicks"), records=1, verify=True)
    assert (report.kind, report.records, report.verified, report.columns) == ("sqlite", 2, 2, types)
    assert rows(url(database, "clicks"), columns=["name", "age"])[0] == {"name": "a", "age": 40}
    given = rows(url(database, "no%20key&key=code"), columns=["other", "code"], nulls="default")
    assert [row["code"] for row in given] == ["x", "y", "z"]
    assert rows(url(database, "no%20key"), columns=["code"]) == [{"code": "z"}, {"code": "y"}, {"code": "x"}]


@pytest.mark.parametrize(
    ("asked", "params", "words"),
    [
        ("none", {}, r"no table 'none'(.|\n)*the tables are clicks, no key, pairs, empty, ids, seen"),
        ("", {}, "is no table of a database"),
        ("clicks&order=id", {}, "is no table of a database"),
        ("pairs", {}, "no key of one column"),
        ("seen", {}, "no key of one column"),
        ("clicks&key=age", {}, "the key 'age' has no unique index"),
        ("no%20key&key=other", {}, "the key 'other' has no unique index"),
        ("clicks&key=name", {}, "the key 'name' has no unique index"),
        ("clicks&key=none", {}, "there is no column 'none'"),
        ("empty", {}, "the table has no row"),
        ("no%20key", {"columns": ["v"]}, r"row 1: column 'v' has no value \(NULL\)"),
        (
            "no%20key",
            {"columns": ["v"], "nulls": "default"},
            "row 2: column 'v' holds 'three', and is",
        ),
        (
            "no%20key",
            {"columns": ["v"], "nulls": {"v": "x"}},
            "nulls: column 'v' is int64, and 'x' is not",
        ),
        ("ids", {}, "row 0: column 'n' holds 9007199254740993, a whole number that float64 does not have"),
        ("clicks", {"columns": ["nope"]}, "there is no column 'nope'"),
        ("clicks", {"on_corrupt": "skip"}, "the sqlite reader has no parameter 'on_corrupt'"),
        ("clicks", {"window": 2}, "window= does not go with sqlite"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    asked: str, params: dict[str, Any], words: str, database: Path
) -> None:
    with pytest.raises(DataError, match=words):
        rows(url(database, asked), **params)


def test_other_files_and_those_out_of_reach_are_refused(database: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        rows(f"sqlite://{tmp_path}/none.db?table=t")
    (tmp_path / "text.db").write_text("no database at all, but some text")
    with pytest.raises(DataError, match="cannot be read: file is not a database"):
        rows(f"sqlite://{tmp_path}/text.db?table=t")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "link.db").symlink_to(database)
    name = database.name.replace(" ", "%20")
    files.confine(PathPolicy((str(mine),), ()))
    try:
        for origin in (url(database, "clicks"), f"sqlite://{mine}/link.db?table=clicks",
                       f"sqlite://{mine}/%2e%2e/{name}?table=clicks"):  # fmt: skip
            with pytest.raises(DataError, match=r"outside of what this namespace may use|has a part '\.\.'"):
                rows(origin)
            with pytest.raises(DataError, match=r"outside of what this namespace may use|has a part '\.\.'"):
                rows(origin.removeprefix("sqlite://"), kind="sqlite")
        shutil.copy(database, mine / "own.db")
        own = f"sqlite://{mine}/own.db?table=clicks"
        assert rows(own) == rows(own.removeprefix("sqlite://"), kind="sqlite")  # as jobs of a namespace name it
        (mine / "own.db-wal").symlink_to(f"{database}-wal")  # a log of others, whose pages would be read as its own
        with pytest.raises(DataError, match=r"own\.db-wal is a link"):
            rows(own)
    finally:
        files.confine(None)


def test_rows_written_into_the_log_beside_the_file_are_a_change(database: Path) -> None:
    """Where others write with a log, the file itself stays as it is until it takes the log in."""
    with contextlib.closing(sqlite3.connect(database)) as others:
        others.execute("PRAGMA journal_mode=WAL")
        reader = create_data_reader(url(database, "clicks"))
        (shard,) = reader.create_shards()
        before = files.stamp(str(database))
        with others:
            others.execute("UPDATE clicks SET age = 31 WHERE id = 7")
        assert files.stamp(str(database)) == before
        with pytest.raises(DataError, match=r"was changed.*a log of"):
            list(reader.read_records(shard))
