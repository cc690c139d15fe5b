"""Writes Parquet and Arrow IPC files row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.data.errors import DataError

ROW_GROUP = 16_384
"""Rows that are written, and later decoded, together."""
TABLE_KINDS = ("parquet", "arrow")


class TableWriter:
    """Writes rows to a Parquet or Arrow IPC file; types are those of the first rows, if no schema is given.

    Args:
        path: the file, made anew.
        kind: ``parquet`` or ``arrow``.
        schema: of Arrow.
    """

    def __init__(self, path: Path, kind: str, schema: Any = None) -> None:
        self._path = path
        self._kind = kind
        self._held: list[Mapping[str, Any]] = []
        self._schema = schema
        self._writer: Any = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a row."""
        self._held.append(record)
        if len(self._held) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet as pq

        try:
            table = pa.Table.from_pylist(self._held, self._schema)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{self._path}: rows of different types: {error}", fix="give each column one type"
            ) from error
        if self._writer is None:
            self._schema = table.schema
            make = pq.ParquetWriter if self._kind == "parquet" else pa.ipc.new_file
            self._writer = make(str(self._path), table.schema)
        self._writer.write_table(table)
        self._held = []

    def close(self) -> None:
        """Writes what is left, and the footer."""
        if self._held or self._writer is None:
            self._flush()
        self._writer.close()
