"""Reads Parquet and Arrow IPC files: each record is a dictionary of its columns."""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from elasticdl.data import columns as cols
from elasticdl.data import files
from elasticdl.data.columns import Columns, ColumnSpec
from elasticdl.data.errors import CorruptDataError, DataError, ReaderParamsError
from elasticdl.data.file_reader import BoundedCache, FileDataReader
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.params import TRAINED_COLUMNS, take, take_names
from elasticdl.data.reader import Feed, Metadata, Record, Shard
from elasticdl.data.table_feed import table_feed
from elasticdl_core.mixed_order import Span

_FOOTERS = 16
"""Files whose footers are read at once."""
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_Opened: TypeAlias = tuple[Any, Sequence[int], Callable[[int, list[str]], Any]]
"""The schema of a file, the rows of each group, and what reads some columns of a group."""


@dataclass(frozen=True)
class TableIndex:
    """The contents of a file's footer.

    Attributes:
        starts: int64 ``[groups + 1]``: the first row of each group, and the number of rows.
        schema: the Arrow schema.
        partitions: hive partitions: the column's name -> its value in this file, as text.
    """

    starts: npt.NDArray[np.int64]
    schema: Any
    partitions: Mapping[str, str]


class ArrowFileReader(GroupedReader, FileDataReader[TableIndex]):
    """Reads tables in files of one kind.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas. Folders called ``name=value`` are hive
            partitions: each is a column.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: all optional.
            ``columns``: names of the columns to read, in that order; all by default. A column of a struct is called
            ``outer.inner``;
            ``label``: the column that the default feed gives as the label;
            ``nulls``: what missing values become: ``fail`` (default), ``default`` (0, ``""``, NaN, an empty list), or
            a value for each column;
            ``trained_columns``: the columns that the model was trained on; jobs say it by themselves.
        predicting: the column of the label may be missing.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
        DataError: the data is missing or unreadable, or a column is no tensor.
    """

    params: ClassVar[tuple[str, ...]] = ("columns", "label", "nulls", TRAINED_COLUMNS)

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        FileDataReader.__init__(self, data_origin, records_per_task, reader_params)
        GroupedReader.__init__(self)
        if self._skip:
            raise ReaderParamsError(
                f"on_corrupt=skip is not possible for {self.kind} files, where damage is not of single records",
                fix="leave it out, and restore damaged files from their source",
            )
        self._indexes: BoundedCache[TableIndex] = BoundedCache(max_weight=1 << 30)
        self.label = take(self.reader_params, "label", str, None)
        first = next(iter(self.list_files()))
        index = self.index_of(first)
        self._fields = cols.flat_fields(index.schema, first)
        self._types = {name: cols.type_at(index.schema, path) for name, path in self._fields.items()}
        both = self._fields.keys() & index.partitions.keys()
        if both:
            raise DataError(f"{first}: {min(both)!r} is a column and a partition", fix="rename one of them")
        wanted, trained = (take_names(self.reader_params, key) for key in ("columns", TRAINED_COLUMNS))
        self._chosen = cols.chosen_columns(
            data_origin, [*self._fields, *index.partitions], wanted, trained, label=self.label, predicting=predicting
        )
        self._specs = {
            name: cols.spec_of(name, self._types[name], first)
            if name in self._types
            else ColumnSpec("int64" if _INTEGER.fullmatch(index.partitions[name]) else "str")
            for name in self._chosen
        }
        self._nulls = cols.nulls_policy(self.reader_params.get("nulls", "fail"), self._specs)
        if predicting and self.label in self._nulls:
            self._nulls[self.label] = "default"  # nobody reads it

    @property
    def column_specs(self) -> Mapping[str, ColumnSpec]:
        """The columns of a record, in their order."""
        return self._specs

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        return Metadata(list(self._specs), cols.type_words(self._specs), self.kind)

    def default_feed(self) -> Feed | None:
        """With the parameter ``label``: the other columns as a float32 vector, and the label as a number."""
        return table_feed(self._specs, self.vector_label())

    def create_shards(self) -> Iterator[Shard]:
        """One shard a file, or several of ``records_per_task`` rows; footers are read many at once."""
        count, paths = 0, self.list_files()
        with ThreadPoolExecutor(_FOOTERS, "elasticdl-footers") as threads:
            while some := list(itertools.islice(paths, 16 * _FOOTERS)):
                for path, _ in zip(some, threads.map(self.index_of, some), strict=True):
                    for shard in self._cut(path, self._records_per_task):
                        count += 1
                        yield shard
        if not count:
            raise DataError(f"{self.data_origin}: the files hold no record", fix="check how the data was written")

    def _starts(self, name: str) -> npt.NDArray[np.int64]:
        return self.index_of(name).starts

    def _load_index(self, path: str) -> TableIndex:
        with _damage_told(path), self._table(path) as (schema, sizes, _):
            starts = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))]).astype(np.int64)
        index = TableIndex(starts, schema, _partitions(path))
        if hasattr(self, "_specs"):
            self._check_columns(path, index)
        return index

    def _check_columns(self, path: str, index: TableIndex) -> None:
        """Refuses a file whose columns are others than those of the first."""
        fields = cols.flat_fields(index.schema, path)
        for name in self._chosen:
            if name not in (fields if name in self._fields else index.partitions):
                raise DataError(
                    f"{path}: has no column {name!r}, as the first file has",
                    fix="write all files with the same columns, or name those to read: columns=[...]",
                )
            if name not in self._fields:
                continue
            stored = cols.type_at(index.schema, fields[name])
            kind = cols.spec_of(name, stored, path)
            times = [cols.time_words(one) for one in (stored, self._types[name])]
            if times[0] != times[1]:
                raise DataError(
                    f"{path}: column {name!r} is {stored} here, and {self._types[name]} in the first file: "
                    "their numbers count other moments",
                    fix="write all files with the same types",
                )
            if _family(kind) != _family(self._specs[name]):
                raise DataError(
                    f"{path}: column {name!r} is {_words(kind)} here, and {_words(self._specs[name])} in the first "
                    "file",
                    fix="write all files with the same types",
                )

    def _load_group(self, name: str, number: int) -> Columns:
        index = self.index_of(name)
        stored = [column for column in self._chosen if column in self._fields]
        fields = cols.flat_fields(index.schema, name)
        with _damage_told(name), self._table(name) as (_, _, read):
            table = read(number, sorted({".".join(fields[column]) for column in stored}))
            first, rows = int(index.starts[number]), int(index.starts[number + 1] - index.starts[number])
            found = {
                column: cols.to_numpy(
                    column, cols.pick(table, fields[column]), self._specs[column], self._nulls[column], name, first
                )
                for column in stored
            }
        for column in self._chosen:
            if column not in found:
                found[column] = self._partition(name, column, index.partitions[column], rows)
        return {column: found[column] for column in self._chosen}

    def _partition(self, path: str, name: str, text: str, rows: int) -> npt.NDArray[Any]:
        """The column of a hive partition."""
        spec = self._specs[name]
        if text == _HIVE_NULL:
            column = pa.chunked_array([pa.nulls(1, pa.int64() if spec.dtype == "int64" else pa.string())])
            value = cols.to_numpy(name, column, spec, self._nulls[name], path, 0)[0]
        elif spec.dtype == "int64":
            if not _INTEGER.fullmatch(text):
                raise DataError(
                    f"{path}: the partition {name}={text} is no whole number, as those of the first file are",
                    fix="name the columns to read with the reader parameter columns, without this one",
                )
            value = int(text)
        else:
            value = text
        return np.full(rows, value, object if spec.dtype == "str" else np.int64)

    @abc.abstractmethod
    def _table(self, path: str) -> AbstractContextManager[_Opened]:
        """Opens a file: a context with its schema, the rows of each group, and what reads columns of a group."""

    def _file(self, path: str) -> BinaryIO:
        """Opens a file; once it is indexed, only as it was then."""
        return files.open_for_reading(path) if self._indexes.find(path) is None else self._open(path)

    # A group is read at once, so that nothing here is read by the byte.

    def _count(self, index: TableIndex) -> int:
        return int(index.starts[-1])

    def _byte_spans(self, path: str, start: int, end: int) -> Iterator[Span]:
        raise NotImplementedError

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        raise NotImplementedError

    def read_batches(self, shard: Any, max_records: int = 256) -> Iterator[list[Record]]:
        """The rows of a shard in lists of ``max_records``; only the last may be shorter."""
        for columns in self.column_batches(shard, max_records):
            yield list(cols.records_of(columns))


@contextlib.contextmanager
def _damage_told(path: str) -> Iterator[None]:
    """Turns Arrow's errors about a damaged file into errors of ours."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        fix = "restore the file from its source"
        raise CorruptDataError(f"cannot be read: {error}", path=path, offset=0, fix=fix) from error


class ParquetDataReader(ArrowFileReader):
    """Reads Parquet files; a group is a row group."""

    kind: ClassVar[str] = "parquet"

    @contextlib.contextmanager
    def _table(self, path: str) -> Iterator[_Opened]:
        with self._file(path) as file, pq.ParquetFile(file) as found:
            about = found.metadata
            sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
            yield found.schema_arrow, sizes, lambda number, names: found.read_row_group(number, columns=names)


class ArrowDataReader(ArrowFileReader):
    """Reads Arrow IPC files (``.arrow``, Feather version 2); a group is a record batch."""

    kind: ClassVar[str] = "arrow"

    @contextlib.contextmanager
    def _table(self, path: str) -> Iterator[_Opened]:
        with self._file(path) as file, pa.ipc.open_file(file) as found:
            sizes = [found.get_batch(number).num_rows for number in range(found.num_record_batches)]
            yield found.schema, sizes, lambda number, _: pa.Table.from_batches([found.get_batch(number)])


def _partitions(path: str) -> dict[str, str]:
    """The hive partitions in a path."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {unquote(name): unquote(value) for name, found, value in pairs if found and name}


def _words(spec: ColumnSpec) -> str:
    return f"{spec.dtype} {spec.shape}" if spec.shape else spec.dtype


def _family(spec: ColumnSpec) -> tuple[str, Any]:
    """The family of a type: numbers of any width can become those of the first file, or are refused by value."""
    kind = spec.dtype if spec.dtype in ("str", "bytes") else np.dtype(spec.dtype).kind
    return {"u": "i"}.get(kind, kind), spec.shape
