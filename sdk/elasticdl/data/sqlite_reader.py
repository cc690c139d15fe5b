"""Reads a table of an SQLite database, in pages of its key: each record is a dictionary of its columns."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

import numpy.typing as npt

from elasticdl.data.columns import Columns, ColumnSpec, python_column, type_words
from elasticdl.data.database_file import DatabaseFileReader
from elasticdl.data.database_reader import quoted
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.reader import Metadata

PAGE = 8192
_BUSY_S = 30.0
_TYPES = (
    ("INT", "int64"), ("CHAR", "str"), ("CLOB", "str"), ("TEXT", "str"), ("BLOB", "bytes"), ("BOOL", "int64"),
    ("DATE", "str"), ("TIME", "str"),
)  # fmt: skip
_PYTHON = {"int64": int, "float64": (int, float), "str": str, "bytes": bytes}


class SQLiteDataReader(DatabaseFileReader):
    """Reads one table.

    Rows are numbered in the order of a key that is unique; a page is a range of keys, so that reading one costs what
    it holds. The file must stay as it was listed: a page that was read while it changed is an error.

    Args:
        data_origin: ``sqlite:///folder/file.db?table=NAME``; ``&key=COLUMN`` names the key, by default the primary
            key of one column, else the row's number.
        records_per_task: cut shards to at most this many rows; by default the table is one shard.
        reader_params: ``columns``, ``label``, ``nulls`` and ``trained_columns``, as for Parquet.
        predicting: the column of the label may be missing.

    Raises:
        ReaderParamsError: the URL or a parameter has an impossible value.
        DataError: the database is missing or unreadable, or a column is no tensor.
    """

    kind: ClassVar[str] = "sqlite"
    form: ClassVar[str] = (
        "sqlite:///folder/file.db?table=NAME, and &key=COLUMN where the table has no primary key of one column"
    )
    asked: ClassVar[tuple[str, ...]] = ("key",)
    log: ClassVar[str] = "-wal"
    beside: ClassVar[tuple[str, ...]] = ("-journal", "-shm")

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        with self._connection() as connection:
            known = connection.execute(f"PRAGMA table_info({quoted(self._table)})").fetchall()
            if not known:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
                raise ReaderParamsError(
                    f"{data_origin}: there is no table {self._table!r}",
                    fix=f"the tables are {', '.join(name for (name,) in tables)}",
                )
            declared = {name: kind for _, name, kind, *_ in known}
            self._key = self._chosen_key(
                connection, self._asked.get("key"), [one[1] for one in known if one[5]], declared
            )
        self._choose(data_origin, declared, lambda _, kind: ColumnSpec(_dtype(kind)), predicting=predicting)

    def _chosen_key(
        self, connection: sqlite3.Connection, key: str | None, primary: Sequence[str], declared: Mapping[str, str]
    ) -> str:
        """The SQL that rows are ordered by."""
        if key is None and len(primary) != 1:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute(f"SELECT rowid FROM {quoted(self._table)} LIMIT 1")
                kind = "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE"
                if ("table",) in connection.execute(kind, (self._table,)).fetchall():  # views have none, or nulls
                    return "rowid"
            raise ReaderParamsError(f"{self._name}: the table has no key of one column", fix=f"write {self.form}")
        name = key or primary[0]
        if name not in declared:
            raise ReaderParamsError(
                f"{self._name}: there is no column {name!r}", fix=f"the columns are {', '.join(declared)}"
            )
        if [name] != list(primary) and not any(
            [row[2] for row in connection.execute(f"PRAGMA index_info({quoted(index[1])})")] == [name]
            for index in connection.execute(f"PRAGMA index_list({quoted(self._table)})").fetchall()
            if index[2] and not index[4]
        ):
            raise ReaderParamsError(
                f"{self._name}: the key {name!r} has no unique index", fix="create one, or name a column that has one"
            )
        return quoted(name)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """The database, if it is before and after as it was first."""
        try:
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro", uri=True, timeout=_BUSY_S, check_same_thread=False
            )
            with contextlib.closing(connection), self._lock:
                yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._unreadable(error, "check that the file is an SQLite database") from error
        self._require_unchanged()

    def _listed(self) -> tuple[list[int], list[Any]]:
        sizes, firsts = list[int](), list[Any]()
        with self._connection() as connection:
            found = connection.execute(f"SELECT {self._key} FROM {quoted(self._table)} ORDER BY {self._key}")
            while keys := found.fetchmany(PAGE):
                if keys[0][0] is None:
                    raise DataError(f"{self._name}: the key {self._key} is null in a row", fix="name another key")
                firsts.append(keys[0][0])
                sizes.append(len(keys))
        return sizes, firsts

    def _load_group(self, name: str, number: int) -> Columns:
        starts, firsts = self._pages
        bounds = firsts[number : number + 2]
        where = f"{self._key} >= ?" + f" AND {self._key} < ?" * (len(bounds) == 2)
        columns = ", ".join(map(quoted, self._specs))
        with self._connection() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM {quoted(self._table)} WHERE {where} ORDER BY {self._key}", bounds
            ).fetchall()
        values = zip(*rows, strict=True) if rows else [()] * len(self._specs)
        first = int(starts[number])
        return {one: self._column(one, list(some), first) for one, some in zip(self._specs, values, strict=True)}

    def _column(self, name: str, values: list[Any], first: int) -> npt.NDArray[Any]:
        """Values of a column, each of which is what the column is declared as."""
        spec, policy = self._specs[name], self._nulls[name]
        for at, value in enumerate(values):
            if spec.dtype == "float64" and isinstance(value, int) and float(value) != value:
                raise DataError(
                    f"{self._name}: row {first + at}: column {name!r} holds {value}, a whole number that "
                    "float64 does not have",
                    fix="declare the column as INTEGER",
                )
        return python_column(f"{self._name}: row", name, values, spec, policy, first, _PYTHON[spec.dtype])

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        return Metadata(list(self._specs), type_words(self._specs), self.kind)


def _dtype(declared: str) -> str:
    """The type of a column by SQLite's own rules of affinity; what is declared as nothing is a number."""
    upper = re.sub(r"\(.*", "", declared.upper())
    return next((dtype for word, dtype in _TYPES if word in upper), "float64")
