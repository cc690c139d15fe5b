"""Tables of Postgres: their keys, types and missing values, rows that come later, and what cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from elasticdl.data import Shard, create_data_reader
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data
from tests.integration.conftest import PASSWORD, PostgresServer

pytestmark = pytest.mark.contract

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE clicks (
    id int PRIMARY KEY, age smallint, x real, y double precision, price numeric(9, 2), name varchar(9), mood mood,
    raw bytea, seen boolean, day date, at timestamptz, tags int[], code uuid UNIQUE NOT NULL
);
INSERT INTO clicks VALUES
    (10, 30, 1.5, 0.1, 2.25, 'b', 'sad', '\\x00ff00', true, '1970-01-03', '1970-01-01 00:00:01.5+00', '{1,2}',
     '00000000-0000-0000-0000-00000000000b'),
    (9, 40, 2, 0.2, 3, U&'\\00e4', 'happy', '', false, '1969-12-31', '1970-01-01 01:00:00+01', '{}',
     '00000000-0000-0000-0000-00000000000c');
CREATE SCHEMA shop;
CREATE TABLE shop."Two Words" (a int, b text UNIQUE NOT NULL, c text NOT NULL, UNIQUE (a, c));
CREATE UNIQUE INDEX positive ON shop."Two Words" (c) WHERE a > 0;
INSERT INTO shop."Two Words" VALUES (1, 'z', 'o'), (NULL, 'y', 'p'), (3, 'x', 'q');
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE pages (page int PRIMARY KEY, m int UNIQUE, grid int[], n smallint, x real);
INSERT INTO pages VALUES (1, NULL, '{{1,2},{3,4}}', NULL, NULL);
CREATE TABLE odd (id int PRIMARY KEY, spot point, ratio double precision UNIQUE NOT NULL, grid int[]);
INSERT INTO odd VALUES (1, '(1,2)', 0.5, '{1,NULL}');
CREATE VIEW ages AS SELECT id, age FROM clicks;
CREATE TABLE log (id bigserial PRIMARY KEY, v int);
INSERT INTO log (v) SELECT n FROM generate_series(1, 20) n;
"""


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> PostgresServer:
    postgres_server.sql(TABLES)
    return postgres_server


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


def url(server: PostgresServer, asked: str) -> str:
    return f"postgresql://elasticdl@/postgres?host={server.folder}&table={asked}"


def rows(origin: str, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(origin, None, params)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def test_rows_come_in_the_order_of_the_key_with_the_declared_types(server: PostgresServer) -> None:
    first, second = rows(url(server, "clicks"))
    assert first.pop("tags").tolist() == []
    assert second.pop("tags").tolist() == [1, 2]
    assert first.pop("x") == np.float32(2)
    assert first == {
        "id": 9, "age": 40, "y": 0.2, "price": 3.0, "name": "ä", "mood": "happy", "raw": b"", "seen": False,
        "day": -1, "at": 0, "code": "00000000-0000-0000-0000-00000000000c",
    }  # fmt: skip
    assert [second[name] for name in ("id", "raw", "seen", "day", "at")] == [10, b"\0\xff\0", True, 2, 1_500_000]
    report = inspect_data(url(server, "clicks"), records=1, verify=True)
    assert (report.kind, report.records, report.verified) == ("postgres", 2, 2)
    assert report.columns["at"] == "timestamp in us, UTC"
    assert [row["id"] for row in rows(url(server, "clicks&key=code"), columns=["id"])] == [10, 9]
    assert [row["page"] for row in rows(url(server, "pages"), columns=["page"])] == [1]
    words = rows(url(server, 'shop."Two%20Words"&key=b'), columns=["b", "a"], nulls={"a": -1, "b": ""})
    assert words == [{"b": "x", "a": 3}, {"b": "y", "a": -1}, {"b": "z", "a": 1}]


@pytest.mark.parametrize(
    ("asked", "params", "words"),
    [
        ("none", {}, r"no table 'none'(.|\n)*the tables are public\.clicks"),
        ("clicks;DROP TABLE clicks", {}, "invalid name syntax|no table"),
        ("(SELECT 1) x", {}, "invalid name syntax|no table"),
        ("", {}, "is no table of a database"),
        ("clicks&table=empty", {}, "is no table of a database"),
        ("clicks&password=x", {}, "holds a password"),
        ("clicks&sslpassword=x", {}, "holds a password"),
        ("clicks&nonsense=1", {}, "cannot be read"),
        ('shop."Two%20Words"', {}, "no key of one column"),
        ('shop."Two%20Words"&key=a', {}, "the key 'a' has no unique index"),
        ('shop."Two%20Words"&key=c', {}, "the key 'c' has no unique index"),
        ("ages", {}, "no key of one column"),
        ("clicks&key=none", {}, "there is no column 'none'"),
        ("clicks&until=x", {}, "invalid input syntax for type integer"),
        ("pages&key=m", {}, "the key 'm' has no unique index, or may be NULL"),
        ("pages", {"columns": ["grid"]}, r"row 0: column 'grid' holds \[\[1, 2\], \[3, 4\]\]"),
        ("pages", {"columns": ["n"], "nulls": {"n": 1.5}}, r"nulls: column 'n' is int16, and 1\.5 is not"),
        ("pages", {"columns": ["n"], "nulls": {"n": 10**5}}, "nulls: column 'n' is int16, and 100000 is not"),
        ("pages", {"columns": ["x"], "nulls": {"x": "a"}}, "nulls: column 'x' is float32, and 'a' is not"),
        ("odd&key=ratio", {}, "the key 'ratio' is of type float8"),
        ("odd", {}, "column 'spot' is point, which is no tensor"),
        ("odd", {"columns": ["grid"]}, r"row 0: column 'grid' holds \[1, None\]"),
        ("empty", {}, "the table has no row"),
        ('shop."Two%20Words"&key=b', {"columns": ["a"]}, r"row 1: column 'a' has no value \(NULL\)"),
        ("clicks", {"columns": ["nope"]}, "there is no column 'nope'"),
        ("clicks", {"on_corrupt": "skip"}, "the postgres reader has no parameter 'on_corrupt'"),
        ("clicks", {"label": "age"}, "takes one number of each column"),
        ("clicks", {"window": 2}, "window= does not go with postgres"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    asked: str, params: dict[str, Any], words: str, server: PostgresServer
) -> None:
    with pytest.raises(DataError, match=words):
        reader = create_data_reader(url(server, asked), None, params)
        reader.default_feed()
        for shard in reader.create_shards():
            list(reader.read_records(shard))


def test_a_password_in_the_url_is_refused_and_not_repeated(server: PostgresServer) -> None:
    with pytest.raises(DataError, match="holds a password") as error:
        create_data_reader("postgresql://me:geheim@db.example/shop?table=t")
    assert "geheim" not in str(error.value)


def test_a_server_that_is_not_there_or_knows_no_such_user_is_said(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.data.steady.TRIES", 1)
    with pytest.raises(DataError, match=r"cannot be read: .*No such file"):
        create_data_reader("postgresql://me@/shop?host=/tmp/there-is-no-such-folder&table=t")
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(DataError, match="password authentication failed"):
        create_data_reader(url(server, "clicks"))


def test_rows_appended_meanwhile_are_no_part_and_changed_ones_are_an_error(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.data.postgres_reader.PAGE", 8)
    here = url(server, "log")
    lister = create_data_reader(here)
    (shard,) = lister.create_shards()
    server.sql("INSERT INTO log (v) VALUES (21)")
    worker = create_data_reader(here)
    assert [row["v"] for row in worker.read_records(shard)] == list(range(1, 21))
    assert [row["v"] for row in create_data_reader(shard.name).read_records(shard)] == list(range(1, 21))
    assert worker.fingerprint(shard.name) == lister.fingerprint(shard.name)
    server.sql("UPDATE log SET v = 0 WHERE id = 12")
    assert [row["v"] for row in lister.read_records(Shard(shard.name, 0, 8))] == list(range(1, 9))  # another page
    with pytest.raises(DataError, match="was changed after it was first read"):
        list(lister.read_records(Shard(shard.name, 8, 16)))


def test_it_can_be_read_where_a_loop_runs(server: PostgresServer) -> None:
    async def read() -> int:
        return len(rows(url(server, "clicks")))

    assert asyncio.run(read()) == 2


def test_connections_can_write_nothing(server: PostgresServer) -> None:
    from elasticdl.data.postgres_reader import PostgresDataReader

    reader = PostgresDataReader(url(server, "clicks"))
    with pytest.raises(DataError, match="read-only transaction"):
        reader._rows("DELETE FROM clicks")
