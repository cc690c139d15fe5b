"""Writes tables: DataFrames, Arrow tables and dictionaries of arrays as files that jobs read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.columns import is_index
from elasticdl.data.errors import DataError
from elasticdl.data.example import encode_example
from elasticdl.data.output import SUFFIXES, PartsWriter, replacing
from elasticdl.data.table_writer import ROW_GROUP, TABLE_KINDS


def write(
    data: Any,
    path: str | Path,
    format: str | None = None,
    *,
    records_per_file: int | None = None,
    force: bool = False,
) -> list[Path]:
    """Writes a table, so that jobs can read it.

    Args:
        data: what gives Arrow data (pandas, polars, pyarrow, DuckDB ...), or a dictionary of columns: name -> values.
        path: a file, or a folder of parts if ``records_per_file`` is given or the path has no suffix.
        format: ``parquet``, ``arrow``, ``csv``, ``recordio`` or ``tfrecord`` (both of Examples); by
            default that of the path's suffix, else ``parquet``.
        records_per_file: rows of each part.
        force: replace what is there.

    Returns:
        The files.

    Raises:
        DataError: the data is no table, has a column that the format does not have, or cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file.name for file in write({"age": [30, 40], "clicked": [0, 1]}, folder / "train.parquet")]
    ['train.parquet']
    """
    target = Path(path)
    kinds = {suffix: kind for kind, suffix in SUFFIXES.items()}
    kind = format or kinds.get(target.suffix.lower(), "parquet")
    if kind not in SUFFIXES:
        raise DataError(f"there is no format {kind!r}", fix=f"use one of: {', '.join(SUFFIXES)}")
    table = arrow_of(data)
    if not table.num_columns or not table.num_rows:
        raise DataError(f"the table has {table.num_rows} rows of {table.num_columns} columns", fix="give rows")
    if records_per_file is None and not target.suffix:
        records_per_file = 1 << 62  # a folder with one part
    settings: dict[str, Any] = {"header": table.column_names} if kind == "csv" else {}
    if kind in TABLE_KINDS:
        settings = {"schema": table.schema}
    with replacing(target, force=force) as temporary:
        parts = PartsWriter(temporary, kind, records_per_file, **settings)
        try:
            for row in _rows(table, kind):
                parts.write(row)
        finally:
            parts.close()
    return [target / file.relative_to(temporary) for file in parts.files]


def arrow_of(data: Any) -> Any:
    """An Arrow table of what holds one, without the index that a DataFrame had and without notes on where it was.

    Raises:
        DataError: it is no table.
    """
    import pyarrow as pa

    try:
        table = pa.table(dict(data) if isinstance(data, Mapping) else data).replace_schema_metadata(None)
        return table.select([name for name in table.column_names if not is_index(name)])
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"a {type(data).__name__} is no table: {error}",
            fix="give a DataFrame, an Arrow table, or a dictionary of columns of one length",
        ) from error


def _rows(table: Any, kind: str) -> Iterator[Any]:
    names = table.column_names
    number = -1
    for batch in table.to_batches(max_chunksize=ROW_GROUP):
        for row in batch.to_pylist():
            number += 1
            if kind in TABLE_KINDS:
                yield row
                continue
            missing = next((name for name in names if row[name] is None), None)
            if missing is not None:
                raise DataError(
                    f"row {number}: column {missing!r} has no value, which {kind} cannot say",
                    fix="fill it, or write parquet",
                )
            yield csv_row(row, names) if kind == "csv" else encode_example(row)


def csv_row(row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A row of a table as fields of CSV.

    Raises:
        DataError: a column holds lists or bytes.
    """
    values = [row[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bytes | list | dict | np.ndarray):
            raise DataError(f"column {name!r} holds {type(value).__name__}, which CSV has not", fix="write parquet")
    return values
