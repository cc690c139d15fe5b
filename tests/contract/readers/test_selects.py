"""Rows of a SELECT as statements read them: equal files and facts of SQLite and Postgres, and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from elasticdl.sql.source import take_snapshot
from elasticdl_core.errors import DataError, ElasticDLError
from tests.integration.conftest import PASSWORD, PostgresServer

pytestmark = pytest.mark.contract
TABLE = """
CREATE TABLE buyers (age int, paid numeric, name text, raw {bytes});
INSERT INTO buyers VALUES (30, 2.5, 'a"b', {value}), (41, 3, 'ä, ö', {value}), (NULL, 0.25, NULL, {value});
"""


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    postgres_server.sql("CREATE DATABASE selects")
    postgres_server.sql(TABLE.format(bytes="bytea", value="'\\x00ff'"), "selects")
    postgres_server.sql("CREATE SEQUENCE visits; CREATE ROLE stranger LOGIN PASSWORD 'integration'", "selects")
    return postgres_server


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        return address(request.getfixturevalue("postgres"))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.executescript(TABLE.format(bytes="blob", value="x'00ff'"))
    return f"sqlite:///{tmp_path}/shop.db"


def address(server: PostgresServer, user: str = "elasticdl") -> str:
    return f"postgresql://{user}@/selects?host={server.folder}"


def test_rows_and_facts_are_equal(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.sql.databases._PORTION", 2)
    found = take_snapshot(
        source, "SELECT name, paid, age, age > 35 AS old FROM buyers ORDER BY paid DESC", tmp_path / "rows",
        order=["age", "paid", "name", "old"],
    )  # fmt: skip
    assert found.path.read_text(encoding="utf-8") == '41,3,"ä, ö",1\n30,2.5,"a""b",0\n,0.25,,\n'
    assert (found.rows, [one.nulls for one in found.columns.values()]) == (3, [1, 0, 1, 1])
    assert [one.numeric for one in found.columns.values()] == [True, True, False, True]
    assert found.columns["paid"].total == 5.75


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("SELECT * FROM byers", "no such table|does not exist"),
        ("SELECT aeg FROM buyers", "no such column|does not exist"),
        ("SELECT raw FROM buyers", "raw holds bytes, of which there is no feature"),
        ("SELECT 1 AS a; SELECT 2 AS a", "2 statements"),
        ("DELETE FROM buyers", "would change something"),
        ("WITH gone AS (DELETE FROM buyers RETURNING age) SELECT * FROM gone", "would change something"),
        ("SELECT * FROM buyers WHERE age > 99", "no rows"),
        ("SELECT age, age FROM buyers", "two columns 'age'"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_left(
    select: str, said: str, source: str, tmp_path: Path
) -> None:
    with pytest.raises(ElasticDLError, match=said) as caught:
        take_snapshot(source, select, tmp_path / "rows")
    assert caught.value.fix
    assert not list((tmp_path / "rows").glob("*"))


def test_a_select_that_takes_long_is_given_up(source: str, tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n"
    with pytest.raises(ElasticDLError, match="took over"):
        take_snapshot(source, endless, tmp_path / "rows", timeout_s=0.2)


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("SELECT nextval('visits') AS n", "read-only transaction"),
        ("SELECT set_config('transaction_read_only', 'off', false) AS x", "read-write mode"),
        ("SELECT age FROM buyers FOR UPDATE", "would change something"),
        ("SELECT age INTO copied FROM buyers", "would change something"),
        ("SELECT ARRAY[1, 2] AS x", "x holds list"),
        ("SELECT INTERVAL '1 day' AS x", "x holds timedelta"),
        ("SELECT ROW(1, 2) AS x", "x holds tuple"),
    ],
)
def test_postgres_only_reads_and_gives_plain_values(
    select: str, said: str, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(ElasticDLError, match=said):
        take_snapshot(address(postgres), select, tmp_path)


def test_types_of_postgres_become_numbers_and_text(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    select = "SELECT sum(age) AS s, true AS t, DATE '2026-01-02' AS d, '{\"a\": 1}'::json AS j, 1.50 AS n FROM buyers"

    async def read() -> str:
        return take_snapshot(address(postgres), select, tmp_path).path.read_text()  # also where a loop runs

    assert asyncio.run(read()) == '71,1,2026-01-02,"{""a"": 1}",1.5\n'


def test_strangers_passwords_and_servers_that_are_not_there_are_refused(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(ElasticDLError, match="permission denied for table buyers"):
        take_snapshot(address(postgres, "stranger"), "SELECT * FROM buyers", tmp_path)
    for secret in ("postgresql://me:geheim@db.example/shop", "postgresql://db.example/shop?password=geheim"):
        with pytest.raises(DataError, match="holds a password") as error:
            take_snapshot(secret, "SELECT 1", tmp_path)
        assert "geheim" not in f"{error.value.message} {error.value.fix}"
    with pytest.raises(DataError, match=r"cannot be read: .*No such file"):
        take_snapshot("postgresql://me@/shop?host=/tmp/there-is-no-such-folder", "SELECT 1", tmp_path)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(DataError, match="password authentication failed"):
        take_snapshot(address(postgres), "SELECT 1", tmp_path)
