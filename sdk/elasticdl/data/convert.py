"""Converts data between RecordIO, TFRecord, CSV, Parquet and Arrow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example, encode_example
from elasticdl.data.factory import create_data_reader
from elasticdl.data.output import SUFFIXES, PartsWriter, example_values, replacing
from elasticdl.data.reader import DataReader, Shard
from elasticdl.data.table_writer import TABLE_KINDS
from elasticdl.data.tables import csv_row
from elasticdl.data.windows import WindowedDataReader

#: Called with the records done and the records of the files opened so far.
OnProgress = Callable[[int, int], None]

TYPES = ("int64", "float", "bytes")
_NO_PROGRESS: OnProgress = lambda done, total: None  # noqa: E731 (a default argument)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        files: files written.
        records: records written.
        bytes: bytes written.
        skipped: corrupt records that were passed over.
        types: the type that each CSV column got in Examples.
    """

    files: list[Path]
    records: int
    bytes: int
    skipped: int = 0
    types: dict[str, str] = field(default_factory=dict)


def convert(
    source: str,
    target: str | Path,
    to: str,
    *,
    reader_params: Mapping[str, Any] | str | None = None,
    types: Mapping[str, str] | None = None,
    compressor: str = "snappy",
    records_per_file: int | None = None,
    records_per_chunk: int | None = None,
    force: bool = False,
    on_progress: OnProgress = _NO_PROGRESS,
) -> Conversion:
    """Reads all records of a source and writes them in another format.

    RecordIO and TFRecord records are copied as they are. CSV rows become ``tf.train.Example`` messages with one
    value for each column. Examples become CSV rows; a feature of n values becomes columns ``name.0`` to ``name.n-1``.
    Rows of Parquet and Arrow files become Examples or CSV rows by their columns, and these become such rows.

    Args:
        source: the data to read, as for ``create_data_reader``.
        target: a file; a folder of parts if ``records_per_file`` is given or the target has no suffix.
        to: ``recordio``, ``tfrecord``, ``csv``, ``parquet`` or ``arrow``.
        reader_params: parameters of the source's reader.
        types: type of CSV columns: ``int64``, ``float`` or ``bytes``. Others are inferred from the first 100 records.
        compressor: of RecordIO chunks: ``none``, ``snappy`` or ``gzip``.
        records_per_file: write parts of so many records.
        records_per_chunk: at most so many records in a RecordIO chunk.
        force: replace a target that exists.
        on_progress: called now and then with the records done and known.

    Raises:
        DataError: the source cannot be read, a record cannot be converted, or the target cannot be written.
    """
    if to not in SUFFIXES:
        raise DataError(f"there is no format {to!r}", fix=f"use one of: {', '.join(SUFFIXES)}")
    reader = create_data_reader(source, reader_params=reader_params)
    if isinstance(reader, WindowedDataReader):
        raise DataError("rows are converted, not windows of them", fix="leave window=, stride= and group_by= out")
    target = Path(target)
    if records_per_file is None and not target.suffix:
        records_per_file = 1 << 62  # a folder with one part
    column_types = _column_types(reader, types or {})
    encode, header = _encoder(reader, to, column_types)
    settings: dict[str, Any] = {"header": header} if to == "csv" else {}
    if to == "recordio":
        settings = {"compressor": compressor, "records_per_chunk": records_per_chunk}
    with replacing(target, force=force) as temporary:
        parts = PartsWriter(temporary, to, records_per_file, **settings)
        try:
            for record in _records(reader, encode, on_progress):
                parts.write(record)
        finally:
            parts.close()
        size = sum(path.stat().st_size for path in parts.files)
    files = [target / path.relative_to(temporary) for path in parts.files]
    return Conversion(files, parts.records, size, reader.skipped_records, column_types if to != "csv" else {})


def _records(reader: DataReader, encode: Callable[[Any], Any], on_progress: OnProgress) -> Iterator[Any]:
    done = total = 0
    for shard in reader.create_shards():
        total += shard.records
        position = shard.start
        for batch in reader.read_batches(shard, 1024):
            for record in batch:
                try:
                    yield encode(record)
                except (ValueError, DataError) as error:
                    raise _refused(error, shard, position) from None
                position += 1
            done += len(batch)
            on_progress(done, total)


def _refused(error: Exception, shard: Shard, position: int) -> DataError:
    message = error.message if isinstance(error, DataError) else str(error)
    fix = error.fix if isinstance(error, DataError) else "say what it is, e.g. --types 'price=float,name=bytes'"
    return DataError(f"{shard.name}: record {position}: {message}", fix=fix)


def _column_types(reader: DataReader, given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(reader, CSVDataReader):
        if given:
            raise DataError("types are for CSV sources; this source has no columns", fix="leave --types out")
        return {}
    metadata = reader.metadata
    for name, kind in given.items():
        if name not in metadata.column_names:
            raise DataError(f"there is no column {name!r}", fix=f"the columns are {metadata.column_names}")
        if kind not in TYPES:
            raise DataError(f"column {name}: there is no type {kind!r}", fix=f"use one of: {', '.join(TYPES)}")
    inferred = {name: "bytes" if kind == "string" else kind for name, kind in metadata.column_types.items()}
    return {**inferred, **given}


def _encoder(reader: DataReader, to: str, types: Mapping[str, str]) -> tuple[Callable[[Any], Any], list[str] | None]:
    """The function from a record of the source to one of the target, and the header if the target is CSV."""
    if isinstance(reader, CSVDataReader):
        names = reader.metadata.column_names
        if to == "csv":
            return (lambda row: row), names
        if to in TABLE_KINDS:
            return (lambda row: example_values(row, names, types)), None
        return (lambda row: encode_example(example_values(row, names, types))), None
    if reader.records_kind.kind == "table":
        if to == "csv":
            columns = list(reader.records_kind.columns)
            return (lambda row: csv_row(row, columns)), columns
        return (encode_example if to not in TABLE_KINDS else lambda row: row), None
    if to in TABLE_KINDS:
        first = decode_example(next(iter(reader.read_records(next(iter(reader.create_shards()))))))
        single = {name for name, values in first.items() if len(values) == 1}
        return functools.partial(_table_row, single, set(first)), None
    if to != "csv":
        return (lambda record: record), None
    return _example_to_row(next(iter(reader.read_records(next(reader.create_shards())))))


def _example_to_row(first: bytes) -> tuple[Callable[[bytes], list[Any]], list[str]]:
    widths = {name: len(values) for name, values in sorted(decode_example(first).items())}
    header = [
        column for name, width in widths.items()
        for column in ([name] if width == 1 else [f"{name}.{i}" for i in range(width)])
    ]  # fmt: skip

    def row(record: bytes) -> list[Any]:
        features = decode_example(record)
        if {name: len(values) for name, values in features.items()} != widths:
            raise DataError(
                "its features or their sizes differ from those of the first record",
                fix="CSV needs the same columns in every record: keep such data in RecordIO or TFRecord",
            )
        return [_text(value) for name in widths for value in features[name]]

    return row, header


def _table_row(single: set[str], known: set[str], record: bytes) -> dict[str, Any]:
    """The features of an Example: those of the first, of which those of one value are single values in all."""
    features = decode_example(record)
    if further := features.keys() - known:
        raise DataError(
            f"feature {min(further)!r} is not in the first record, whose features are the columns",
            fix="keep such data in RecordIO or TFRecord",
        )
    for name in single:
        if len(features.get(name, ())) != 1:
            raise DataError(
                f"feature {name!r} has {len(features.get(name, ()))} values, and one in the first record",
                fix="keep such data in RecordIO or TFRecord",
            )
    return {name: values[0] if name in single else values for name, values in features.items()}


def _text(value: bytes | float | int) -> Any:
    if isinstance(value, float):
        return str(np.float32(value))  # the shortest text of that float32
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError("a bytes feature is not UTF-8 text", fix="keep such data in RecordIO or TFRecord") from None
