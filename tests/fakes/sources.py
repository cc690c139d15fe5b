"""Data of each kind that is files, small and with numbered records, for suites that try all of them alike."""

from __future__ import annotations

import contextlib
import io
import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from elasticdl.data import recordio, tfrecord


@dataclass(frozen=True)
class Source:
    """How to make files of a kind, and which number a record of it has."""

    write: Callable[[Path, range], None]
    number: Callable[[Any], int]


def numbered(numbers: range) -> pa.Table:
    """A table of numbers and texts."""
    texts = pa.array([f"row {one}" for one in numbers], pa.string())
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": texts})


def _rows(path: Path, numbers: range) -> None:
    """A table whose rows were put in backwards."""
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        rows = [(one, f"row {one}") for one in reversed(numbers)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)


def _duckdb_rows(path: Path, numbers: range) -> None:
    """A table of which every other row was taken out again, so that row numbers are not those of the file."""
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, text VARCHAR)")
        connection.execute(f"INSERT INTO t SELECT i // 2, 'row ' || i // 2 FROM range({2 * len(numbers)}) r(i)")
        connection.execute("DELETE FROM t WHERE rowid % 2 = 1")


def _samples(path: Path, numbers: range) -> None:
    """Samples of a number and a text."""
    with tarfile.open(path, "w") as archive:
        for one in numbers:
            for ending, data in (("cls", b"%d" % one), ("txt", b"row %d" % one)):
                member = tarfile.TarInfo(f"{one:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _pictures(folder: Path, numbers: range) -> None:
    """Images by the name alone, of two classes: what a reader gives are their bytes."""
    for one in numbers:
        path = folder / ("a" if one < len(numbers) // 2 else "b") / f"{one:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % one)


def _lines(path: Path, numbers: range) -> None:
    path.write_text("id,text\n" + "".join(f"{one},row {one}\n" for one in numbers))


def _bytes(writer: Callable[[Path], Any]) -> Callable[[Path, range], None]:
    def write(path: Path, numbers: range) -> None:
        with writer(path) as file:
            for one in numbers:
                file.write(b"%d" % one)

    return write


SOURCES = {
    "recordio": Source(_bytes(lambda path: recordio.Writer(path, 200)), int),
    "tfrecord": Source(_bytes(tfrecord.TFRecordWriter), int),
    "csv": Source(_lines, lambda record: int(record[0])),
    "parquet": Source(lambda path, rows: pq.write_table(numbered(rows), path, 16), lambda record: int(record["id"])),
    "sqlite": Source(_rows, lambda record: int(record["id"])),
    "duckdb": Source(_duckdb_rows, lambda record: int(record["id"])),
    "tar": Source(_samples, lambda record: int(record["cls"])),
    "images": Source(_pictures, lambda record: int(record["image"])),
    "arrow": Source(
        lambda path, rows: pyarrow.feather.write_feather(numbered(rows), str(path), chunksize=16),
        lambda record: int(record["id"]),
    ),
}
