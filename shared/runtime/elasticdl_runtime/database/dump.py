"""The rows of a cluster's database in files, and back: in one snapshot, whatever runs meanwhile.

The schema is not in them: its revision is, and the migrations make that schema before rows are loaded. So any version
of Postgres takes what any other gave, and a backup of an earlier ElasticDL is brought up to date as a database is.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from elasticdl_core.errors import ConflictError, UnavailableError

CONNECT_S = 10.0
COPY_S = 3600.0
QUERY_S = 60.0
REVISIONS = "alembic_version"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TABLES = """
    SELECT c.relname AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE n.nspname = current_schema() AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attgenerated = '' AND c.relname <> 'alembic_version'
    GROUP BY c.relname ORDER BY c.relname
"""
_SEQUENCES = (
    "SELECT sequencename AS name, last_value FROM pg_sequences WHERE schemaname = current_schema() ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """A table in a file.

    Attributes:
        name: of the table.
        columns: in the order of the file.
        rows: how many.
        file: the file, in the text format of COPY.
    """

    name: str
    columns: tuple[str, ...]
    rows: int
    file: Path


@dataclass(frozen=True, slots=True)
class DumpedDatabase:
    """All rows of a database, as they were in one moment.

    Attributes:
        revision: of the schema.
        tables: the tables.
        sequences: the last value of each sequence that gave one.
    """

    revision: str
    tables: tuple[DumpedTable, ...]
    sequences: Mapping[str, int]


async def dump_rows(url: str, folder: Path) -> DumpedDatabase:
    """Writes all rows into files, as one moment sees them; others go on working.

    Args:
        url: of the database.
        folder: for the files; it exists.

    Raises:
        UnavailableError: the database does not answer.
        ConflictError: it holds no schema of ours.
    """
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        revision = await _revision(connection)
        if not revision:
            raise ConflictError("the database holds no cluster", fix="check --database-url, or the data directory")
        tables = []
        for row in await connection.fetch(_TABLES, timeout=QUERY_S):
            file, columns = folder / f"{row['name']}.copy", tuple(row["columns"])
            done = await connection.copy_from_table(row["name"], columns=columns, output=file, timeout=COPY_S)
            tables.append(DumpedTable(row["name"], columns, int(done.split()[-1]), file))
        last = {row["name"]: row["last_value"] for row in await connection.fetch(_SEQUENCES, timeout=QUERY_S)}
        return DumpedDatabase(revision, tuple(tables), {name: at for name, at in last.items() if at is not None})


async def read_contents(url: str) -> tuple[str, int]:
    """The revision of a database's schema, empty if it has none, and how many jobs and tokens it holds."""
    async with connected(url) as connection:
        revision = await _revision(connection)
        if not revision:
            return "", 0
        counted = "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM tokens)"
        return revision, int(await connection.fetchval(counted, timeout=QUERY_S))


async def empty_schema(url: str) -> None:
    """Removes everything from a database's schema."""
    async with connected(url) as connection, connection.transaction():
        schema = await connection.fetchval("SELECT current_schema()", timeout=QUERY_S)
        if not _NAME.fullmatch(schema):
            raise ConflictError(f"the schema {schema!r} has an unusual name", fix="restore into an empty database")
        await connection.execute(f'DROP SCHEMA "{schema}" CASCADE', timeout=COPY_S)
        await connection.execute(f'CREATE SCHEMA "{schema}"', timeout=QUERY_S)


async def load_rows(url: str, tables: Sequence[DumpedTable], sequences: Mapping[str, int]) -> None:
    """Loads rows into a database that has their schema and nothing else, wholly or not at all.

    Raises:
        UnavailableError: the database does not answer.
        ConflictError: its schema is another one.
    """
    async with connected(url) as connection, connection.transaction():
        present = {row["name"]: set(row["columns"]) for row in await connection.fetch(_TABLES, timeout=QUERY_S)}
        for table in tables:
            if not present.get(table.name, set()) >= set(table.columns):
                raise ConflictError(
                    f"the schema has no such table {table.name!r}", fix="restore it with the version that made it"
                )
        if tables:
            names = ", ".join(f'"{name}"' for name in present)
            await connection.execute(f"TRUNCATE {names} CASCADE", timeout=QUERY_S)
        by_name = {table.name: table for table in tables}
        for name in await _parents_first(connection, sorted(by_name)):
            table = by_name[name]
            # What triggers do was done when the row was written.
            await connection.execute(f'ALTER TABLE "{name}" DISABLE TRIGGER USER', timeout=QUERY_S)
            await connection.copy_to_table(name, source=table.file, columns=table.columns, timeout=COPY_S)
            await connection.execute(f'ALTER TABLE "{name}" ENABLE TRIGGER USER', timeout=QUERY_S)
        for name, last in sequences.items():
            await connection.execute("SELECT setval($1::regclass, $2)", name, last, timeout=QUERY_S)


async def _revision(connection: asyncpg.Connection) -> str:
    if await connection.fetchval("SELECT to_regclass($1)", REVISIONS, timeout=QUERY_S) is None:
        return ""
    return str(await connection.fetchval(f"SELECT version_num FROM {REVISIONS}", timeout=QUERY_S) or "")


async def _parents_first(connection: asyncpg.Connection, names: Sequence[str]) -> list[str]:
    """Tables in an order in which no row refers to one that is not there yet."""
    query = (
        "SELECT conrelid::regclass::text AS child, confrelid::regclass::text AS parent FROM pg_constraint"
        " WHERE contype = 'f'"
    )
    needs: dict[str, set[str]] = {name: set() for name in names}
    for row in await connection.fetch(query, timeout=QUERY_S):
        if row["child"] in needs and row["parent"] in needs and row["child"] != row["parent"]:
            needs[row["child"]].add(row["parent"])
    ordered: list[str] = []
    while len(ordered) < len(names):
        free = [name for name in names if name not in ordered and needs[name] <= set(ordered)]
        if not free:
            raise ConflictError("the tables refer to each other in a circle", fix="report it")
        ordered += free
    return ordered


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """One connection, for as long as the block lasts.

    Raises:
        UnavailableError: Postgres does not answer, or refuses a statement of the block.
    """
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_S)
        try:
            yield connection
        finally:
            await connection.close(timeout=CONNECT_S)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
        raise UnavailableError(
            f"Postgres: {error}", fix="check that it runs, its address, password and disk"
        ) from error
