"""The files that predictions become: Parquet, CSV or npz, each prediction beside the record that it is of."""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError, UserCodeError
from elasticdl_core.installation import install_command

FILE, ROW = "file", "row"
"""The columns that say which record a prediction is of: the shard's name, and the record's number in it."""
UNKNOWN_ROW = -1
"""The row in an npz where nobody can know it; nothing in the other formats."""
Columns = Mapping[str, NDArray[Any]]


def require_format(kind: str) -> None:
    """Checks that files of a format can be written here.

    Raises:
        InvalidInputError: a package is missing.
    """
    if kind == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise InvalidInputError(
                "predictions in Parquet need pyarrow, which is not installed where the workers run",
                fix=f"{install_command('parquet')} there, or give --output_format csv or npz",
            ) from None


def check_names(columns: Columns) -> None:
    """Refuses outputs whose names those of the record's columns are.

    Raises:
        UserCodeError: names the output.
    """
    for name in (FILE, ROW):
        if name in columns:
            raise UserCodeError(
                f"the model has an output named {name!r}, as the column that says which record a prediction is of",
                fix="give the output another name",
            )


def write_predictions(kind: str, to: IO[bytes], file: str, rows: NDArray[np.int64], columns: Columns) -> None:
    """Writes the predictions of a task.

    Args:
        kind: ``parquet``, ``csv`` or ``npz``.
        to: the file, opened to write bytes.
        file: the name of the shard.
        rows: the number of each prediction's record; ``UNKNOWN_ROW`` where that is not known.
        columns: outputs by name, each with a row for each prediction.
    """
    {"parquet": _write_parquet, "csv": _write_csv, "npz": _write_npz}[kind](to, file, rows, columns)


def _write_npz(to: IO[bytes], file: str, rows: NDArray[np.int64], columns: Columns) -> None:
    """Writes as ``numpy.savez`` does, which itself takes no array of the name ``file``."""
    arrays: dict[str, NDArray[Any]] = {FILE: np.broadcast_to(np.array(file), len(rows)), ROW: rows, **columns}
    with zipfile.ZipFile(to, "w") as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            # The path in four bytes a character, and the same in each row: compressed it is next to nothing.
            member.compress_type = zipfile.ZIP_DEFLATED if name == FILE else zipfile.ZIP_STORED
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, np.asarray(values), allow_pickle=False)


def _write_csv(to: IO[bytes], file: str, rows: NDArray[np.int64], columns: Columns) -> None:
    """Numbers are the shortest text that reads as the same number of the output's type."""
    titles, cells = [FILE, ROW], [[file] * len(rows), ["" if row == UNKNOWN_ROW else str(row) for row in rows]]
    for name, values in columns.items():
        width = math.prod(values.shape[1:])
        flat = values.reshape(len(values), width)
        titles += [name] if width == 1 else [f"{name}.{number}" for number in range(width)]
        cells += [[_text(value) for value in flat[:, number]] for number in range(width)]
    text = io.TextIOWrapper(to, encoding="utf-8", newline="", errors="surrogateescape")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(zip(*cells, strict=True))
    text.flush()
    text.detach()


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _write_parquet(to: IO[bytes], file: str, rows: NDArray[np.int64], columns: Columns) -> None:
    """One value for a record is a column of its type; several are a list, in row-major order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made: dict[str, Any] = {FILE: pa.array([file] * len(rows)), ROW: pa.array(rows, mask=rows == UNKNOWN_ROW)}
    for name, values in columns.items():
        width = math.prod(values.shape[1:])
        flat = pa.array(values.reshape(-1))
        made[name] = flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    pq.write_table(pa.table(made), to)
