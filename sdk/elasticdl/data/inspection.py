"""Looks at data and says what it is, for ``elasticdl data inspect``."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from elasticdl.data import files
from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example
from elasticdl.data.factory import create_data_reader
from elasticdl.data.file_reader import FileDataReader
from elasticdl.data.image_reader import ImageDataReader, require_sound
from elasticdl.data.reader import DataReader, Record, Shard
from elasticdl.data.recordio_reader import RecordIODataReader
from elasticdl.data.windows import WindowedDataReader

_SHOWN_VALUES = 8
_SHOWN_BYTES = 48


@dataclass
class FileReport:
    """A summary of one file.

    Attributes:
        path: the file.
        records: number of records.
        bytes: size of the file.
        chunks: number of RecordIO chunks; 0 for other kinds.
    """

    path: str
    records: int
    bytes: int
    chunks: int = 0


@dataclass
class DataReport:
    """A summary of a data set.

    Attributes:
        kind: ``recordio``, ``tfrecord``, ``csv``, ``text``, ``parquet``, ``arrow``, ``images`` or a kind of database.
        files: the files in order.
        records: number of records in all files.
        bytes: size of all files.
        compressors: RecordIO compressor -> number of chunks.
        columns: column of CSV files and tables -> type.
        empty: CSV column -> number of empty cells among the records that were looked at, where there are any.
        looked_at: records of which empty cells were counted: all with ``verify``, else the first 1,024.
        separator: what divides the fields of CSV files.
        with_header: whether CSV files have a header; ``None`` for other kinds.
        classes: of images each class, in the order of the labels -> number of its images.
        features: names of the features when the first record is a ``tf.train.Example`` -> type and count.
        first_records: the first records, in a form to show.
        verified: records read and checked, when asked for.
        skipped: corrupt records met, with ``on_corrupt=skip``.
        damaged: files whose rest cannot be read, with ``on_corrupt=skip`` -> what is wrong with them.
    """

    kind: str
    files: list[FileReport] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    compressors: dict[str, int] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    looked_at: int = 0
    separator: str = ""
    with_header: bool | None = None
    classes: dict[str, int] = field(default_factory=dict)
    features: dict[str, str] = field(default_factory=dict)
    first_records: list[Any] = field(default_factory=list)
    verified: int | None = None
    skipped: int = 0
    damaged: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def inspect_data(
    origin: str,
    *,
    reader_params: Mapping[str, Any] | str | None = None,
    records: int = 3,
    verify: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DataReport:
    """Reports kind, sizes and first records of some data, from its indexes.

    Args:
        origin: the data, as for ``create_data_reader``.
        reader_params: parameters of the reader.
        records: how many of the first records to show.
        verify: read every record, so that damage anywhere is found.
        on_progress: called while verifying with the records done and the number of all.

    Raises:
        DataError: the data is missing, unreadable or damaged.
    """
    reader = create_data_reader(origin, reader_params=reader_params)
    next(iter(reader.create_shards()))  # refuses data without a record, as a job does
    if isinstance(reader, WindowedDataReader):
        sum(1 for _ in reader.create_shards())  # refuses what no window fits
        reader = reader.rows
    report = DataReport(reader.metadata.kind)
    if isinstance(reader, FileDataReader):
        _add_files(reader, report)
    else:
        weigh = reader.bytes_of if isinstance(reader, ImageDataReader) else lambda _: 0
        report.files = [FileReport(one.name, one.records, weigh(one.name)) for one in reader.create_shards()]
    report.records = sum(item.records for item in report.files)
    report.bytes = sum(item.bytes for item in report.files)
    report.columns = dict(reader.metadata.column_types)
    if isinstance(reader, CSVDataReader):
        report.with_header, report.separator = reader.with_header, reader.separator
    if isinstance(reader, ImageDataReader):
        report.classes = reader.counts()
    _show_first(reader, report, records)
    _read_all(reader, report, verify, on_progress)
    report.damaged = reader.damaged_files
    return report


def _add_files(reader: FileDataReader[Any], report: DataReport) -> None:
    compressors: Counter[str] = Counter()
    for path in reader.list_files():
        item = FileReport(path, reader.count_records(path), files.stamp(path).size)
        if isinstance(reader, RecordIODataReader):
            chunks = reader.index_of(path).chunks
            item.chunks = len(chunks)
            compressors.update(chunk.compressor.name.lower() for chunk in chunks)
        report.files.append(item)
    report.compressors = dict(compressors)


def _show_first(reader: DataReader, report: DataReport, count: int) -> None:
    shards = (Shard(item.path, 0, item.records) for item in report.files if item.records)
    found = itertools.chain.from_iterable(reader.read_records(shard) for shard in shards)
    for record in itertools.islice(found, count):
        report.first_records.append(_shown(record, list(report.columns)))
        if not report.features and isinstance(record, bytes):
            report.features = _features(record)


def _read_all(reader: DataReader, report: DataReport, verify: bool, on_progress: Callable[[int, int], None]) -> None:
    """Reads all records, or of CSV files the first ones, and counts empty cells."""
    skipped_before = reader.skipped_records
    names = [] if report.with_header is None else list(report.columns)  # else there are no cells of text
    done, empty = 0, Counter[str]()
    shards = (Shard(item.path, 0, item.records) for item in report.files)
    batches = itertools.chain.from_iterable(reader.read_batches(shard, 1024) for shard in shards)
    for batch in batches if verify else itertools.islice(batches, 1 if names else 0):
        done += len(batch)
        if verify and isinstance(reader, ImageDataReader):
            require_sound(batch)
        if names:
            empty.update(name for row in batch for name, cell in zip(names, row, strict=True) if not cell.strip())
        if verify:
            on_progress(done, report.records)
    report.empty, report.looked_at = {name: empty[name] for name in names if empty[name]}, done if names else 0
    if verify:
        report.verified = done
    report.skipped = reader.skipped_records - (skipped_before if verify else 0)


def _features(record: bytes) -> dict[str, str]:
    try:
        decoded = decode_example(record)
    except DataError:
        return {}
    kinds = {bytes: "bytes", float: "float", int: "int64"}
    return {
        name: f"{kinds[type(values[0])]}[{len(values)}]" if values else "empty"
        for name, values in sorted(decoded.items())
    }


def _shown(record: Record, columns: list[str]) -> Any:
    """A record as short JSON values."""
    if isinstance(record, dict):
        return {name: _value(value) for name, value in record.items()}
    if not isinstance(record, bytes):
        return dict(zip(columns, record, strict=True))
    try:
        features = decode_example(record)
    except DataError:
        features = {}
    if not features:
        return _short(record)
    shown: dict[str, Any] = {}
    for name, values in sorted(features.items()):
        some = [_short(value) for value in values[:_SHOWN_VALUES]]
        shown[name] = [*some, "..."] if len(values) > _SHOWN_VALUES else some
    return shown


def _value(value: Any) -> Any:
    """A value of a table as a short JSON value."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list):
        return _short(plain)
    return [*map(_short, plain[:_SHOWN_VALUES]), *["..."] * (len(plain) > _SHOWN_VALUES)]


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(str(np.float32(value)))  # the shortest text of that float32
    if not isinstance(value, bytes):
        return value
    cut = value[:_SHOWN_BYTES]
    try:
        text = cut.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        text = cut.hex(" ")
    return f"{text}... ({len(value)} bytes)" if len(value) > _SHOWN_BYTES else text
