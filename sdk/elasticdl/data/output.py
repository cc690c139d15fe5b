"""Writing data files: one interface over the formats, and atomic replacement of outputs."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elasticdl.data import recordio, tfrecord
from elasticdl.data.errors import DataError
from elasticdl_runtime import durable

SUFFIXES = {"recordio": ".recordio", "tfrecord": ".tfrecord", "csv": ".csv", "parquet": ".parquet", "arrow": ".arrow"}
_OURS = re.compile(r"(part-\d{5,}|train|validation)\.(recordio|tfrecord|csv|parquet|arrow)|truth\.json")


class RecordWriter(Protocol):
    """The interface of all writers."""

    def write(self, record: Any) -> None:
        """Adds a record: bytes, or a row of values for CSV."""

    def close(self) -> None:
        """Finishes the file."""


class CSVWriter:
    """Writes rows to a CSV file, with a header.

    Args:
        path: the file, made anew.
        header: names of the columns, or ``None`` for no header.
    """

    def __init__(self, path: Path, header: Sequence[str] | None) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        # Before Python 3.11.9 the csv module leaves a carriage return unquoted, which then ends the line for readers.
        self._quoting_writer = csv.writer(self._file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        if header is not None:
            self.write(header)

    def write(self, record: Sequence[Any]) -> None:
        """Adds a row."""
        returns = any(isinstance(value, str) and "\r" in value for value in record)
        (self._quoting_writer if returns else self._writer).writerow(record)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def open_writer(
    path: Path,
    kind: str,
    *,
    compressor: str = "snappy",
    records_per_chunk: int | None = None,
    header: Sequence[str] | None = None,
    schema: Any = None,
) -> RecordWriter:
    """A writer of one file.

    Args:
        path: the file, made anew.
        kind: one of ``SUFFIXES``.
        compressor: of RecordIO chunks.
        records_per_chunk: at most so many records in a RecordIO chunk.
        header: names of the columns of CSV.
        schema: types of the columns of Parquet and Arrow; those of the first rows by default.

    Raises:
        DataError: the kind or compressor does not exist, or the file cannot be made.
    """
    if kind == "recordio":
        return recordio.Writer(path, compressor=compressor, records_per_chunk=records_per_chunk)
    if kind == "tfrecord":
        return tfrecord.TFRecordWriter(path)
    if kind == "csv":
        return CSVWriter(path, header)
    if kind in SUFFIXES:
        from elasticdl.data.table_writer import TableWriter

        return TableWriter(path, kind, schema)
    raise DataError(f"there is no format {kind!r}", fix=f"use one of: {', '.join(SUFFIXES)}")


class PartsWriter:
    """Writes records to one file, or to ``part-00000``, ``part-00001``, ... in a folder.

    Args:
        target: the file, or the folder if ``records_per_file`` is given.
        kind: ``recordio``, ``tfrecord`` or ``csv``.
        records_per_file: records in each part; one file by default.
        settings: further arguments of ``open_writer``.

    Attributes:
        files: the files written so far.
        records: the records written so far.
    """

    def __init__(self, target: Path, kind: str, records_per_file: int | None = None, **settings: Any) -> None:
        if records_per_file is not None and records_per_file < 1:
            raise DataError(f"{records_per_file} records in a file", fix="give a number over 0")
        self._target = target
        self._kind = kind
        self._limit = records_per_file
        self._settings = settings
        self._writer: RecordWriter | None = None
        self._in_part = 0
        self.files: list[Path] = []
        self.records = 0
        if records_per_file is not None:
            target.mkdir(parents=True, exist_ok=True)

    def write(self, record: Any) -> None:
        """Adds a record, in a new part if the current one is full."""
        if self._writer is None:
            self._open()
        elif self._in_part == self._limit:
            self._writer.close()
            self._open()
        assert self._writer is not None
        self._writer.write(record)
        self._in_part += 1
        self.records += 1

    def _open(self) -> None:
        path = self._target
        if self._limit is not None:
            path = path / f"part-{len(self.files):05d}{SUFFIXES[self._kind]}"
        self._writer = open_writer(path, self._kind, **self._settings)
        self._in_part = 0
        self.files.append(path)

    def close(self) -> None:
        """Finishes the last part; without any record, a single file is still made, empty."""
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.close()


@contextlib.contextmanager
def replacing(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary path that replaces ``target`` on success and is removed on failure.

    Args:
        target: a file or folder.
        force: replace a target that exists. A folder is replaced only if all its files have names that we give.

    Yields:
        A path beside the target, on the same file system, that does not exist yet.

    Raises:
        DataError: the target exists, or cannot be written.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not force:
            raise DataError(f"{target}: exists already", fix="give another place, or replace it with --force")
        _refuse_foreign(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        durable.make_folder(target.absolute().parent)
        yield temporary
        durable.swap(temporary, target)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written: {error.strerror or error}",
            fix="check the folder, its rights and its space",
        ) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def _refuse_foreign(target: Path) -> None:
    if not target.is_dir():
        return
    foreign = next((path for path in target.rglob("*") if path.is_file() and not _OURS.fullmatch(path.name)), None)
    if foreign is not None:
        raise DataError(
            f"{target}: will not be replaced, it holds {foreign.relative_to(target)}, which was not written by "
            "convert or generate",
            fix="give another folder, or remove this one yourself",
        )


def example_values(row: Sequence[str], names: Sequence[str], types: Mapping[str, str]) -> dict[str, Any]:
    """The features of a row of strings by the types of its columns.

    Raises:
        ValueError: a value is not of its column's type; the message names the column.
    """
    features: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        kind = types[name]
        try:
            features[name] = int(value) if kind == "int64" else float(value) if kind == "float" else value
        except ValueError:
            raise ValueError(f"column {name}: {value!r} is not {kind}") from None
    return features
