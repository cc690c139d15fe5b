"""Picks the reader for a data origin, by the names of its files and by their first bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from elasticdl.data import files, recordio, tfrecord
from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.custom_reader import CustomDataReader
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.file_reader import FileDataReader
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.image_reader import ImageDataReader
from elasticdl.data.images import IMAGE_SUFFIXES
from elasticdl.data.params import TRAINED_COLUMNS, parse_reader_params
from elasticdl.data.reader import DataReader
from elasticdl.data.recordio_reader import RecordIODataReader
from elasticdl.data.text_reader import TextDataReader
from elasticdl.data.tfrecord_reader import TFRecordDataReader
from elasticdl.data.webdataset_reader import WebDatasetReader
from elasticdl.data.windows import WINDOW_PARAMS, WindowedDataReader
from elasticdl.extras import require

READERS: dict[str, type[FileDataReader[Any]]] = {
    "recordio": RecordIODataReader,
    "tfrecord": TFRecordDataReader,
    "csv": CSVDataReader,
    "text": TextDataReader,
    "webdataset": WebDatasetReader,
}
_OF_COLUMNS = (CSVDataReader.kind, WebDatasetReader.kind)
#: Tables in files, whose readers are imported when they are needed.
_TABLES = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_DATABASES = {
    "sqlite://": "sqlite", "duckdb://": "duckdb", "postgresql://": "postgres", "postgres://": "postgres",
    "odps://": "odps",
}  # fmt: skip
_IMAGES = "images"
KINDS = sorted({*READERS, *_TABLES.values(), *_DATABASES.values(), _IMAGES})
_SUFFIXES = {
    ".recordio": "recordio", ".rio": "recordio", ".edl": "recordio",
    ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
    ".csv": "csv", ".tsv": "csv", ".tar": "webdataset",
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    **dict.fromkeys(IMAGE_SUFFIXES, _IMAGES),
}  # fmt: skip
#: How many files are compared before the first shard; a mixed kind further on is found when it is indexed.
_COMPARED_FILES = 64
_FOREIGN = {
    b"\x89HDF": "an HDF5 file", b"PK\x03\x04": "a zip archive",
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image",
    b"\x28\xb5\x2f\xfd": "compressed with zstd", b"BZh": "compressed with bzip2", b"\xfd7zX": "compressed with xz",
    b"\x04\x22\x4d\x18": "compressed with lz4", b"7z\xbc\xaf": "a 7z archive", b"Rar!": "a RAR archive",
    b"\x93NUMPY": "an array of NumPy", b"Obj\x01": "an Avro file", b"%PDF-": "a PDF document",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel", b"\x7fELF": "a program",
    b"\x78\x01": "compressed with zlib", b"\x78\x9c": "compressed with zlib", b"\x78\xda": "compressed with zlib",
}  # fmt: skip
_DATABASE_FILES = {"sqlite": (0, b"SQLite format 3\0"), "duckdb": (8, b"DUCK")}
"""By kind the first byte and the bytes by which the file of a database is known."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
#: Text that may have separators in it, and is no table.
_OTHER_TEXTS = {
    ".json": "JSON", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".md": "Markdown", ".rst": "documentation",
    ".html": "HTML", ".xml": "XML", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".py": "Python",
    ".log": "a log",
}  # fmt: skip
_OTHER_BEGINNINGS = (b"<!doctype html", b"<html"), (b"<?xml",), (b'{"', b'[{"')
"""Of texts that are saved under the name of a table: an error page, an answer of an API."""
_SEP_LINE = re.compile(rb"(?:\xef\xbb\xbf)?sep=(.)\r?\n", re.IGNORECASE)
_COMPARED_LINES = 20


def create_data_reader(
    data_origin: str,
    records_per_task: int | None = None,
    reader_params: Mapping[str, Any] | str | None = None,
    custom: Callable[..., Any] | DataReader | None = None,
    *,
    predicting: bool = False,
) -> DataReader:
    """Makes the reader of a data origin.

    Args:
        data_origin: a file, directory, glob or fsspec URL, or several of them separated by commas. A custom
            reader may give it any meaning.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: parameters of the reader, as a dict or as text for ``parse_reader_params``. ``kind`` names
            the reader (``recordio``, ``tfrecord``, ``csv``, ``text``, ``images`` ...) where the files do not tell.
        custom: the model module's ``custom_data_reader(data_origin, records_per_task=None, **params)``, or a reader.
        predicting: the data need not have the label.

    Raises:
        DataError: the data is missing, unreadable, of no known kind, or of several kinds.
        ReaderParamsError: a parameter is unknown or has an impossible value.
    """
    params = parse_reader_params(reader_params) if isinstance(reader_params, str) else dict(reader_params or {})
    trained = params.pop(TRAINED_COLUMNS, None)  # said by jobs, whatever the kind of their data
    if custom is not None:
        return _custom(data_origin, records_per_task, params, custom)
    kind = params.get("kind")
    if kind is None:
        kind = kind_of_origin(data_origin)
    elif kind not in KINDS:
        raise ReaderParamsError(f"there is no reader {kind!r}", fix=f"use one of: {', '.join(KINDS)}")
    windows = {key: params.pop(key) for key in WINDOW_PARAMS if key in params}
    make: Callable[..., DataReader] = READERS.get(kind) or _table_reader(kind, data_origin)
    reader: DataReader
    if kind in READERS and kind not in _OF_COLUMNS:
        reader = make(data_origin, records_per_task, params)
    else:
        params = params if trained is None else {**params, TRAINED_COLUMNS: trained}
        reader = make(data_origin, records_per_task, params, predicting=predicting)
    if not windows:
        return reader
    if not isinstance(reader, FileDataReader) or isinstance(reader, GroupedReader | WebDatasetReader):
        raise ReaderParamsError(
            f"window= does not go with {kind} data", fix="convert it to CSV, or make windows in a custom_data_reader"
        )
    return WindowedDataReader(reader, records_per_task, windows)


def _table_reader(kind: str, data_origin: str) -> Callable[..., DataReader]:
    """The reader of a kind of tables: of images, of a database, or of files that need pyarrow."""
    if kind == _IMAGES:
        return ImageDataReader
    if kind == "sqlite":
        from elasticdl.data.sqlite_reader import SQLiteDataReader

        return SQLiteDataReader
    if kind == "duckdb":
        require(f"{data_origin.split('?')[0]}: a table of DuckDB", "duckdb")
        from elasticdl.data.duckdb_reader import DuckDBDataReader

        return DuckDBDataReader
    if kind == "odps":
        require(f"{data_origin.split('?')[0]}: a table of MaxCompute", "odps")
        from elasticdl.data.odps_reader import OdpsDataReader

        return OdpsDataReader
    if kind == "postgres":
        from elasticdl.data.postgres_reader import PostgresDataReader

        require(f"{data_origin.split('?')[0]}: a table of Postgres", "postgres")
        return PostgresDataReader
    try:
        from elasticdl.data.arrow_reader import ArrowDataReader, ParquetDataReader
    except ImportError as error:
        raise DataError(
            f"{data_origin}: {kind} files need pyarrow: {error}",
            fix="install the extra: pip install 'elasticdl-train[parquet]', also where the workers run",
        ) from error
    return {"parquet": ParquetDataReader, "arrow": ArrowDataReader}[kind]


def params_like(reader: DataReader, params: Mapping[str, Any]) -> dict[str, Any]:
    """The reader parameters for other data of a job: its columns come in the order of those of a first reader."""
    return with_columns(params, columns_of(reader))


def columns_of(reader: DataReader) -> list[str] | None:
    """The names of the columns of a reader of tables, in the order of a record; None for others.

    Of images it is the names of their classes, in the order of their labels.
    """
    rows = reader.rows if isinstance(reader, WindowedDataReader) else reader
    if isinstance(rows, ImageDataReader):
        return rows.classes or None
    return rows.columns if isinstance(rows, CSVDataReader | GroupedReader | WebDatasetReader) else None


def with_columns(params: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Reader parameters that say which columns the model was trained on, where that is known and not said yet."""
    return dict(params) if not columns else {TRAINED_COLUMNS: list(columns), **params}


def _custom(origin: str, records_per_task: int | None, params: dict[str, Any], custom: Any) -> DataReader:
    reader = custom
    if (callable(custom) and not hasattr(custom, "create_shards")) or isinstance(custom, type):
        reader = custom(origin, records_per_task=records_per_task, **params)
    if reader is None:
        raise DataError("custom_data_reader returned None", fix="let it return a reader")
    return reader if isinstance(reader, DataReader) else CustomDataReader(reader)


def kind_of_origin(data_origin: str) -> str:
    """The kind of the files of a data origin; all of the first 64 must agree.

    Raises:
        DataError: missing or unreadable data, an unknown kind, or mixed kinds.
    """
    for scheme, database in _DATABASES.items():
        if data_origin.startswith(scheme):
            return database
    found: dict[str, str] = {}
    for number, path in enumerate(files.list_files(data_origin)):
        if number == _COMPARED_FILES:
            break
        kind = kind_of_file(path)
        if kind is not None:
            found.setdefault(kind, path)
    if len(found) > 1:
        examples = ", ".join(f"{kind}: {path}" for kind, path in sorted(found.items()))
        raise DataError(
            f"{data_origin}: holds files of several kinds ({examples})",
            fix="give one kind at a time, e.g. with a glob such as 'data/*.recordio'",
        )
    if not found:
        raise DataError(f"{data_origin}: all files are empty", fix="check how the data was written")
    return next(iter(found))


def kind_of_file(path: str) -> str | None:
    """The kind of a file by its name and first bytes; ``None`` for an empty file of unknown name.

    Raises:
        DataError: unreadable, of no known kind, or not what its name says.
    """
    with files.open_for_reading(path, block_size=4096) as file:
        head = file.read(4096)
    suffix = PurePosixPath(files.name_of(path)).suffix.lower()
    named = _SUFFIXES.get(suffix)
    if not head:
        return named
    if head.startswith(_LFS_POINTER):
        raise DataError(f"{path}: is a pointer of Git LFS, not the data", fix="fetch the data: git lfs pull")
    for database, (at, magic) in _DATABASE_FILES.items():
        if head[at:].startswith(magic):
            raise DataError(
                f"{path}: is a database of {database}", fix=f"name a table of it: '{database}://{path}?table=NAME'"
            )
    if named == _IMAGES:
        return named
    if named is None and suffix in _OTHER_TEXTS:
        raise _no_table(path, _OTHER_TEXTS[suffix])
    seen = _kind_of_bytes(head)
    if {named, seen} <= {None, CSVDataReader.kind}:
        _refuse_other_text(path, head)
    if seen is None and named is not None and not head.startswith((tfrecord.GZIP_MAGIC, *_FOREIGN)):
        return named  # its reader says what is wrong, and where
    if seen is None and head.lstrip().startswith((b"{", b"[{")):
        raise _no_table(path, "JSON")
    if seen is None:
        raise _unknown_kind(path, head)
    if named is not None and named != seen:
        raise DataError(
            f"{path}: is named {PurePosixPath(files.name_of(path)).suffix} but its bytes are {seen}",
            fix=f"rename it, or say which it is with the reader parameter kind={seen}",
        )
    return seen


def _refuse_other_text(path: str, head: bytes) -> None:
    """Refuses what reads like a table, or is named as one, and begins as something else does."""
    begun = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for what, beginnings in zip(("HTML", "XML", "JSON"), _OTHER_BEGINNINGS, strict=True):
        if begun.startswith(beginnings):
            raise _no_table(path, what)
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        raise DataError(f"{path}: is UTF-32", fix="convert it: iconv -f UTF-32 -t UTF-8")
    halves = any(head[:32:2]), any(head[1:32:2])
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (halves[0] != halves[1] and len(head) > 3):
        raise DataError(f"{path}: is UTF-16", fix="convert it: iconv -f UTF-16 -t UTF-8")
    if found := _SEP_LINE.match(head):
        raise DataError(
            f"{path}: begins with {found[0].strip().decode('ascii', 'replace')!r}, a line for spreadsheets",
            fix=f"remove that line, and give the reader parameter sep={json.dumps(found[1].decode('latin-1'))}",
        )


def _kind_of_bytes(head: bytes) -> str | None:
    if head.startswith(recordio.MAGIC_BYTES):
        return "recordio"
    if tfrecord.looks_like_tfrecord(head):
        return "tfrecord"
    if head[257:].startswith(b"ustar"):
        return WebDatasetReader.kind
    if found := next((kind for magic, kind in _TABLES.items() if head.startswith(magic)), None):
        return found
    return "csv" if _is_table(head) else None


def _is_table(head: bytes) -> bool:
    """Whether text has the same separator as often in each of its first lines; quotes are left to the reader."""
    if b"\0" in head or b"\n" not in head or head.lstrip().startswith((b"{", b"[{")):
        return False
    lines = [line for line in head.split(b"\n")[:-1] if line.strip()][:_COMPARED_LINES]
    if b'"' in head:
        lines = lines[:1]
    counts = ({line.count(sep) for line in lines} for sep in (b",", b";", b"\t", b"|"))
    return any(len(found) == 1 and 0 not in found for found in counts)


def _no_table(path: str, what: str) -> DataError:
    return DataError(
        f"{path}: is {what}, not a table",
        fix="leave it out, e.g. with a glob such as 'data/*.csv', convert it, or say what it is with the reader "
        "parameter kind=csv, or kind=text, which makes a record of each line",
    )


def _unknown_kind(path: str, head: bytes) -> DataError:
    if head.startswith(tfrecord.GZIP_MAGIC):
        return DataError(
            f"{path}: is compressed with gzip, so a worker cannot start at a record in its middle",
            fix="gunzip it; RecordIO has compression inside: elasticdl data convert SRC DST --to recordio",
        )
    what = next((name for magic, name in _FOREIGN.items() if head.startswith(magic)), "of an unknown kind")
    return DataError(
        f"{path}: is {what} (first bytes {head[:8].hex(' ')})",
        fix="convert it to Parquet, RecordIO, TFRecord or CSV, name its kind with the reader parameter kind=... "
        "(text: a record of each line), or give a custom_data_reader in the model module",
    )
