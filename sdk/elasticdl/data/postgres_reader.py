"""Reads a table of a Postgres database, in pages of its key: each record is a dictionary of its columns."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from elasticdl.data import fingerprints, steady
from elasticdl.data.columns import Columns, ColumnSpec, python_column, type_words
from elasticdl.data.database_reader import DatabaseReader, quoted
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.postgres_connection import CONNECT_S, connect_read_only, refuse_passwords
from elasticdl.data.reader import Metadata, Shard

PAGE = 8192
_FORM = "postgresql://USER@HOST/DATABASE?table=NAME, and &key=COLUMN where the table has no primary key of one column"
_STATEMENT_S = 600.0
_KEYS = ("int2", "int4", "int8", "text", "varchar", "uuid", "date", "timestamp", "timestamptz")
_INTEGERS = {"int2": "int16", "int4": "int32", "int8": "int64"}
_NUMBERS = {**_INTEGERS, "float4": "float32", "float8": "float64"}
_TEXTS = ("text", "varchar", "bpchar", "name", "uuid", "json", "jsonb", "citext", "inet", "cidr", "macaddr", "xml")
_MOMENTS = {"timestamp": "timestamp in us, no zone", "timestamptz": "timestamp in us, UTC", "date": "date32[day]"}
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _Column:
    """A column as the database declares it.

    Attributes:
        kind: name of its type; of an array that of the elements.
        array: whether its values are arrays.
        enum: whether it is an enumeration.
    """

    kind: str
    array: bool
    enum: bool


class PostgresDataReader(DatabaseReader):
    """Reads one table.

    Rows are numbered in the order of a key that is unique; a page is a range of keys, so that reading one costs what
    it holds. The name of a shard ends with the last key that was there when the shards were listed: rows that are
    appended behind it meanwhile are no part of the job, and a change of those before it is an error. Connections are
    read-only. Passwords come from ``PGPASSFILE``, ``~/.pgpass`` or ``PGPASSWORD``, never from the URL, which is kept
    with the job.

    Args:
        data_origin: ``postgresql://USER@HOST:PORT/DATABASE?table=NAME``, the table with or without its schema;
            ``&key=COLUMN`` names the key, by default the primary key of one column; ``&until=VALUE`` leaves out
            keys beyond it; other parameters (``host`` of a socket, ``sslmode``) are the connection's.
        records_per_task: cut shards to at most this many rows; by default the table is one shard.
        reader_params: ``columns``, ``label``, ``nulls`` and ``trained_columns``, as for Parquet.
        predicting: the column of the label may be missing.

    Raises:
        ReaderParamsError: the URL or a parameter has an impossible value.
        DataError: the database or the table cannot be read, or a column is no tensor.
    """

    kind: ClassVar[str] = "postgres"

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        super().__init__(reader_params)
        self._records_per_task, self._first_state = records_per_task, ""
        self._origin, self._dsn, asked = _parsed(data_origin)
        self._table, self._until = asked["table"], asked.get("until")
        declared, unique = self._described()
        self._key = self._chosen_key(asked.get("key"), declared, unique)
        self._key_kind = declared[self._key].kind
        self._choose(self._origin, declared, self._spec_of, predicting=predicting)
        self._declared = {name: declared[name] for name in self._specs}

    def _described(self) -> tuple[dict[str, _Column], list[tuple[str, bool]]]:
        """The columns of the table, and those that alone are unique: the name, and whether it is the primary key."""
        found = self._rows(
            "SELECT to_regclass($1)::text, a.attname, coalesce(e.typname, t.typname), "
            "t.typelem <> 0 AND t.typcategory = 'A', coalesce(e.typtype, t.typtype) = 'e' "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' "
            "WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            self._table,
        )
        if not found:
            tables = self._rows(
                "SELECT schemaname || '.' || tablename FROM pg_tables "
                "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 50"
            )
            raise ReaderParamsError(
                f"{self._origin}: there is no table {self._table!r}",
                fix=f"the tables are {', '.join(name for (name,) in tables) or 'none'}; quote names with capitals",
            )
        asked, self._table = self._table, str(found[0][0])  # as the database writes the name, with its quotes
        unique = self._rows(
            "SELECT a.attname, i.indisprimary FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL "
            "AND i.indnkeyatts = 1 AND i.indkey[0] <> 0 AND a.attnotnull AND c.relkind IN ('r', 'p')",
            asked,
        )
        return {name: _Column(*rest) for _, name, *rest in found}, [(name, primary) for name, primary in unique]

    def _chosen_key(
        self, key: str | None, declared: Mapping[str, _Column], unique: Sequence[tuple[str, bool]]
    ) -> str:
        """The column that rows are ordered by."""
        name = key or next((column for column, primary in unique if primary), None)
        if name is None:
            raise ReaderParamsError(f"{self._origin}: the table has no key of one column", fix=f"write {_FORM}")
        if name not in declared:
            raise ReaderParamsError(
                f"{self._origin}: there is no column {name!r}", fix=f"the columns are {', '.join(declared)}"
            )
        if name not in {column for column, _ in unique}:
            raise ReaderParamsError(
                f"{self._origin}: the key {name!r} has no unique index, or may be NULL",
                fix="name a column that is UNIQUE NOT NULL: a row without a key would have no number",
            )
        if declared[name].kind not in _KEYS or declared[name].array:
            raise ReaderParamsError(
                f"{self._origin}: the key {name!r} is of type {declared[name].kind}",
                fix=f"name a key of one of the types {', '.join(_KEYS)}",
            )
        return name

    def _spec_of(self, name: str, column: _Column) -> ColumnSpec:
        """The form of the values of a column."""
        kind, shape = column.kind, (None,) if column.array else ()
        if kind in _NUMBERS:
            return ColumnSpec(_NUMBERS[kind], shape)
        if kind == "numeric" and not shape:
            return ColumnSpec("float64")
        if kind == "bool" and not shape:
            return ColumnSpec("bool")
        if kind in _MOMENTS and not shape:
            return ColumnSpec("int64")
        if (kind in _TEXTS or column.enum) and not shape:
            return ColumnSpec("str")
        if kind == "bytea" and not shape:
            return ColumnSpec("bytes")
        raise DataError(
            f"{self._origin}: column {name!r} is {kind}{'[]' if shape else ''}, which is no tensor",
            fix="name the columns to read with the reader parameter columns, or read a view's copy that casts it",
        )

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement, in a connection of its own; one that breaks is tried again.

        Raises:
            DataError: the database says no, or is not there.
        """
        asyncpg = importlib.import_module("asyncpg")

        async def ask() -> list[Any]:
            async with asyncio.timeout(CONNECT_S):
                connection = await connect_read_only(self._dsn, _STATEMENT_S)
            try:
                return list(await connection.fetch(statement, *values))
            finally:
                connection.terminate()

        def work() -> list[Any]:
            try:
                return _run(ask())
            except asyncpg.PostgresError as error:
                passing = (asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError,
                           asyncpg.TooManyConnectionsError, asyncpg.SerializationError)  # fmt: skip
                if isinstance(error, passing):
                    raise
                raise self._unreadable(error, "check the address, the rights of the user and PGPASSFILE") from error

        try:
            return steady.tried(work)
        except DataError:
            raise
        except Exception as error:  # the library raises its own, the system's and asyncio's
            raise self._unreadable(error, "check the address, and that the database can be reached") from error

    def _unreadable(self, error: Exception, fix: str) -> DataError:
        return DataError(f"{self._origin}: cannot be read: {str(error) or type(error).__name__}", fix=fix)

    @functools.cached_property
    def _source(self) -> str:
        """The table up to its last key, as shards name it."""
        if self._until is None:
            key = f"t.{quoted(self._key)}"  # a bare name in ORDER BY is that of what is selected: text
            last = self._rows(f"SELECT {key}::text FROM {self._table} t ORDER BY {key} DESC LIMIT 1")
            if not last:
                raise DataError(f"{self._origin}: the table has no row", fix="check how it was filled")
            self._until = last[0][0]
        return f"{self._origin}&until={quote(self._until, safe='')}"

    @functools.cached_property
    def _pages(self) -> tuple[npt.NDArray[np.int64], list[str], list[tuple[int, int]], str]:
        """Bounds of pages: first rows, first keys as text, rows and sums of versions; and the fingerprint."""
        key = quoted(self._key)
        found = self._rows(
            "SELECT (array_agg(k ORDER BY k))[1]::text, count(*), sum(x)::text FROM "
            f"(SELECT {key} AS k, xmin::text::bigint AS x, "
            f"(row_number() OVER (ORDER BY {key}) - 1) / {PAGE} AS page FROM {self._table} "
            f"WHERE {key} <= {self._value('$1')}) AS numbered GROUP BY page ORDER BY page",
            self._until,
        )
        counts = [int(rows) for _, rows, _ in found]
        versions = [(int(rows), int(version)) for _, rows, version in found]
        state = hashlib.sha256(repr([tuple(row) for row in found]).encode()).hexdigest()[:16]
        fingerprint = f"{sum(counts)} rows in state {state}"
        fingerprints.require(self._source, fingerprint, self._first_state)
        self._first_state = fingerprint
        return np.array([0, *np.cumsum(counts)], np.int64), [first for first, _, _ in found], versions, fingerprint

    def _value(self, parameter: str) -> str:
        """A key that is given as text, as SQL."""
        return f"{parameter}::text::{self._key_kind}"

    def fingerprint(self, name: str) -> str:
        """The number of rows, and a digest of their keys and versions."""
        return self._pages_of(name)[3]

    def _pages_of(self, name: str) -> tuple[npt.NDArray[np.int64], list[str], list[tuple[int, int]], str]:
        """Pages of a source that was listed, here or where the shards were."""
        if self._until is None and name.startswith(f"{self._origin}&until="):
            self._until = unquote(name.rpartition("&until=")[2])
        if name != self._source:
            raise DataError(f"{name}: is not {self._source}", fix="submit the job again")
        return self._pages

    def create_shards(self) -> Iterator[Shard]:
        """One shard, or several of ``records_per_task`` rows.

        Raises:
            DataError: the table has no row.
        """
        yield from self._cut(self._source, self._records_per_task)

    def _starts(self, name: str) -> npt.NDArray[np.int64]:
        return self._pages_of(name)[0]

    def _load_group(self, name: str, number: int) -> Columns:
        starts, firsts, versions, _ = self._pages_of(name)
        key, last = f"t.{quoted(self._key)}", number + 1 == len(firsts)
        rows = self._rows(
            f"SELECT t.xmin::text::bigint, {', '.join(map(self._selected, self._specs))} FROM {self._table} t "
            f"WHERE {key} >= {self._value('$1')} AND {key} {'<=' if last else '<'} {self._value('$2')} "
            f"ORDER BY {key}",
            firsts[number],
            self._until if last else firsts[number + 1],
        )
        if (len(rows), sum(row[0] for row in rows)) != versions[number]:
            del self._pages  # so that both states can be named, where the change is still there
            self._pages_of(name)
            raise DataError(
                f"{self._origin}: rows {starts[number]} to {starts[number + 1]} were changed while they were read",
                fix="submit the job again, and train on a copy of a table whose old rows change",
            )
        values = list(zip(*rows, strict=True))[1:]
        return {
            one: python_column(
                f"{self._origin}: row", one, list(some), spec, self._nulls[one], int(starts[number]), _python(spec)
            )
            for (one, spec), some in zip(self._specs.items(), values, strict=True)
        }

    def _selected(self, name: str) -> str:
        """A column as SQL that gives plain values: moments as whole numbers, text as text."""
        column, kind = quoted(name), self._declared[name].kind
        if kind in ("timestamp", "timestamptz"):
            return f"(extract(epoch FROM {column}) * 1000000)::bigint"
        if kind == "date":
            return f"({column} - DATE '1970-01-01')::bigint"
        if kind == "numeric":
            return f"{column}::float8"
        return f"{column}::text" if self._specs[name].dtype == "str" else column

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        moments = {name: _MOMENTS[one.kind] for name, one in self._declared.items() if one.kind in _MOMENTS}
        return Metadata(list(self._specs), {**type_words(self._specs), **moments}, self.kind)


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine, run in a thread of its own: the caller's may have a loop that runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _parsed(url: str) -> tuple[str, str, dict[str, str]]:
    """The source without ``until``, the address of the database, and our parameters of a URL."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    asked = {name: value for name, value in given if name in ("table", "key", "until")}
    rest = [(name, value) for name, value in given if name not in asked]
    refuse_passwords(parts, [name for name, _ in rest])
    names = [name for name, _ in given]
    if parts.fragment or not asked.get("table") or not parts.path.strip("/") or len(set(names)) != len(names):
        raise ReaderParamsError(f"{url}: is no table of a database", fix=f"write {_FORM}")
    where = f"postgresql://{parts.netloc}{parts.path}"
    source = [*rest, ("table", asked["table"]), *((name, asked[name]) for name in ("key",) if name in asked)]
    dsn = f"{where}?{urlencode(rest)}" if rest else where
    return f"{where}?{urlencode(source, quote_via=quote, safe='/')}", dsn, asked


def _python(spec: ColumnSpec) -> type | tuple[type, ...]:
    """The types that the library gives values of a column."""
    if spec.shape:
        return list
    kinds: dict[str, type | tuple[type, ...]] = {"str": str, "bytes": bytes, "bool": bool}
    return kinds.get(spec.dtype) or ((int, float) if spec.dtype.startswith("float") else int)
