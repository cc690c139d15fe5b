"""Reads a table of a DuckDB database, in pages of its row numbers: each record is a dictionary of its columns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import duckdb

from elasticdl.data import columns as cols
from elasticdl.data.columns import Columns, ColumnSpec
from elasticdl.data.database_file import DatabaseFileReader
from elasticdl.data.database_reader import quoted
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.reader import Metadata

PAGE = 8192
_SETTINGS: dict[str, Any] = {"threads": 1, "autoload_known_extensions": False, "autoinstall_known_extensions": False,
             "temp_directory": ""}  # fmt: skip
_NO_TENSORS = ("BIT", "TIME WITH TIME ZONE", "GEOMETRY", "VARIANT")
"""Declared types whose values Arrow would give as something else."""


class DuckDBDataReader(DatabaseFileReader):
    """Reads one table.

    Rows are numbered in the order in which the file has them; a page is a range of row numbers, by which the file
    finds them. It is opened for reading, for each page anew, so that nobody is kept from writing it; that it was
    written is an error.

    Args:
        data_origin: ``duckdb:///folder/file.db?table=NAME``, the table with or without its schema.
        records_per_task: cut shards to at most this many rows; by default the table is one shard.
        reader_params: ``columns``, ``label``, ``nulls`` and ``trained_columns``, as for Parquet.
        predicting: the column of the label may be missing.

    Raises:
        ReaderParamsError: the URL or a parameter has an impossible value.
        DataError: the database is missing or unreadable, or a column is no tensor.
    """

    kind: ClassVar[str] = "duckdb"
    form: ClassVar[str] = "duckdb:///folder/file.db?table=NAME"
    log: ClassVar[str] = ".wal"

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        with self._attached() as connection:
            known = connection.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'source' AND NOT internal"
            ).fetchall()
            found = {name if schema == "main" else f"{schema}.{name}": (schema, name) for schema, name in known}
            schema, name = found.get(self._table.removeprefix("main."), ("", ""))
            if not name:
                tables = ", ".join(sorted(found)) or "none"
                raise ReaderParamsError(
                    f"{data_origin}: there is no table {self._table!r}",
                    fix=f"the tables are {tables}; make a table of a view: CREATE TABLE ... AS",
                )
            self._from = f"source.{quoted(schema)}.{quoted(name)}"
            declared = dict(connection.execute(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'source' "
                "AND schema_name = ? AND table_name = ? ORDER BY column_index", [schema, name]
            ).fetchall())  # fmt: skip
            schema_of_rows = connection.sql(f"SELECT * FROM {self._from} LIMIT 0").to_arrow_table().schema
        if "rowid" in map(str.lower, declared):
            raise DataError(
                f"{data_origin}: has a column 'rowid', which hides the numbers of the rows",
                fix="rename the column: ALTER TABLE ... RENAME COLUMN rowid TO id",
            )
        self._fields = cols.flat_fields(schema_of_rows, self._name)
        self._types = {name: cols.type_at(schema_of_rows, path) for name, path in self._fields.items()}
        self._declared = {name: str(declared[path[0]]) for name, path in self._fields.items()}
        self._choose(data_origin, self._types, self._spec_of, predicting=predicting)

    def _spec_of(self, name: str, kind: Any) -> ColumnSpec:
        """The form of the values of a column."""
        if any(word in self._declared[name] for word in _NO_TENSORS):
            raise DataError(
                f"{self._name}: column {name!r} is {self._declared[name]}, which is no tensor",
                fix="name the columns to read with the reader parameter columns, or cast it in a copy of the table",
            )
        return cols.spec_of(name, kind, self._name)

    @functools.cached_property
    def _library(self) -> Any:
        """A database in memory that can attach this file and reaches nothing else."""
        connection = duckdb.connect(":memory:", config=_SETTINGS)
        connection.execute(f"SET allowed_paths = [{_text(self._path)}, {_text(self._path + self.log)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection

    @contextlib.contextmanager
    def _attached(self) -> Iterator[Any]:
        """The database as ``source``, if it is before and after as it was first."""
        with self._lock:
            try:
                self._library.execute(f"ATTACH {_text(self._path)} AS source (READ_ONLY)")
                try:
                    yield self._library
                finally:
                    self._library.execute("DETACH source")
            except duckdb.Error as error:
                if "Conflicting lock" in str(error):
                    raise DataError(
                        f"{self._name}: another process has it open for writing: {error}",
                        fix="close it there, or train on a copy of the file",
                    ) from error
                raise self._unreadable(error, "check that the file is a whole DuckDB database") from error
            self._require_unchanged()

    def _listed(self) -> tuple[list[int], list[Any]]:
        with self._attached() as connection:
            found = connection.execute(
                f"SELECT count(*), rowid // {PAGE} AS page FROM {self._from} GROUP BY page ORDER BY page"
            ).fetchall()
        return [rows for rows, _ in found], [page * PAGE for _, page in found]

    def _load_group(self, name: str, number: int) -> Columns:
        starts, keys = self._pages
        columns = ", ".join(map(quoted, dict.fromkeys(self._fields[one][0] for one in self._specs)))
        with self._attached() as connection:
            table = connection.sql(
                f"SELECT {columns} FROM {self._from} WHERE rowid >= {keys[number]} AND rowid < {keys[number] + PAGE} "
                "ORDER BY rowid"
            ).to_arrow_table()
        first = int(starts[number])
        return {
            one: cols.to_numpy(one, cols.pick(table, self._fields[one]), spec, self._nulls[one], self._name, first)
            for one, spec in self._specs.items()
        }

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        times = {name: words for name in self._specs if (words := cols.time_words(self._types[name]))}
        return Metadata(list(self._specs), {**cols.type_words(self._specs), **times}, self.kind)


def _text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"
