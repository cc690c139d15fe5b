"""A test finds the database that it is lent as the template is, whatever the one before it did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import asyncpg
import pytest

pytestmark = pytest.mark.integration
NAMESPACE = "INSERT INTO namespaces (name) VALUES ('left'); DELETE FROM namespaces WHERE name = 'default'"
NUMBERED = "SELECT nextval(seqrelid) FROM pg_sequence"


@pytest.mark.parametrize(
    ("done", "stays"),
    [
        (f"{NAMESPACE}; {NUMBERED}", True),
        ("ALTER TABLE jobs DISABLE TRIGGER USER", False),
        ("DROP INDEX statements_model", False),
        ("ALTER TABLE jobs ADD planted int", False),
        ("CREATE FUNCTION planted() RETURNS int LANGUAGE sql AS 'SELECT 1'", False),
        ("GRANT SELECT ON jobs TO PUBLIC", False),
        ("DROP SCHEMA public CASCADE", False),
    ],
)
async def test_nothing_is_left_of_what_a_test_did(
    done: str, stays: bool, migrated_template: str, lend_database: Callable[[str], AbstractContextManager[str]]
) -> None:
    with lend_database(migrated_template) as first:
        connection = await asyncpg.connect(first)  # stays open, in a transaction
        rows = await connection.fetch("SELECT * FROM namespaces")
        await connection.execute(done)
        await connection.execute("BEGIN; LOCK TABLE jobs" if stays else "BEGIN")
    with lend_database(migrated_template) as second:
        assert (first == second) is stays
        other = await asyncpg.connect(second)
        assert await other.fetch("SELECT * FROM namespaces") == rows
        assert await other.fetchval("SELECT name FROM leadership") == "scheduler"
        assert all(one["nextval"] == 1 for one in await other.fetch(NUMBERED))
        await other.close()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await connection.execute("SELECT 1")
    connection.terminate()
