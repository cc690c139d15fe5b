"""Reads CSV files: each record is the list of its columns as strings."""

from __future__ import annotations

import csv
import functools
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, ClassVar, Literal

from elasticdl.data import csv_columns, csv_index, files
from elasticdl.data.csv_columns import INTEGER, NUMBER, Layout, numbered, shown
from elasticdl.data.csv_index import Dialect
from elasticdl.data.errors import CorruptDataError, DataError, ReaderParamsError
from elasticdl.data.file_reader import BoundedCache, first_file
from elasticdl.data.line_reader import LineFileReader
from elasticdl.data.offset_index import OffsetIndex
from elasticdl.data.params import TRAINED_COLUMNS, take, take_names
from elasticdl.data.reader import Feed, Metadata, Record, RecordSpec, Shard, ShardLike

_SEPARATORS = (",", ";", "\t", "|")
_KNOWN_LAYOUTS = 1024
_SAMPLED_RECORDS = 101
"""Records that are read to infer the columns."""
_FIX_OF_NUMBERS = (
    "the feed that label= makes takes numbers only, and labels like the first ones: name the columns of numbers with "
    "the reader parameter columns, mend the data (21.0 in place of 21 where labels have fractions), or write a feed"
)
_FIX_OF_EXACT = (
    "the feed that label= makes gives float32, in which neighbouring ids are one: write a feed that gives the column "
    "as int64, or as float32 if its last digits do not matter; or leave it out with the reader parameter columns"
)
_SURROGATE = re.compile("[\udc80-\udcff]")
_WIDE_ENCODINGS = ("utf-16", "utf_16", "utf16", "utf-32", "utf_32", "utf32")

_log = logging.getLogger("elasticdl.data")

csv.field_size_limit(1 << 30)  # the limit of 128 KiB would refuse long text columns


class CSVDataReader(LineFileReader):
    """Reads CSV files. Each record is a list of strings, one for each selected column.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas; all with the same columns.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: all optional.
            ``sep``: the separator; by default ``,`` (a tab for ``.tsv`` files), or what divides all lines alike of
            ``;``, a tab and ``|`` where a comma does not divide the first;
            ``with_header``: whether the first record names the columns; by default the hundred after it tell
            (``csv_columns.is_header``), or ``columns`` and ``label`` do, which are among its fields. Where it stays
            open it must be said. Of several columns of one name the second is called ``name.1``;
            ``columns``: names of the columns to give, in that order; all by default;
            ``column_names``: names for the columns of files without a header, else ``c0``, ``c1``, ...;
            ``label``: the column that the default feed gives as the label, as a float or int;
            ``trained_columns``: the columns that the model was trained on. Those of files that name their columns
            come in this order, and may be no others. Jobs say it by themselves;
            ``encoding``: ``utf-8``; any encoding in which a newline is one byte;
            ``quoting``: ``true``; with ``false`` quotes are plain characters;
            ``skip_spaces``: ``false``; with ``true`` spaces after a separator are no part of the field;
            ``on_corrupt``: ``fail`` (default) or ``skip``, which passes over records with a wrong number of
            columns or undecodable bytes;
            ``index_cache``: a folder for indexes, or ``off``; by default the user's cache folder.
        predicting: the column of the label may be missing.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
        DataError: the data is missing or unreadable.
    """

    kind: ClassVar[str] = "csv"
    params: ClassVar[tuple[str, ...]] = (
        "sep", "with_header", "columns", "column_names", "label", "encoding", "quoting", "skip_spaces",
        "index_cache", TRAINED_COLUMNS,
    )  # fmt: skip

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        params = self.reader_params
        self._predicting = predicting
        first = first_file(self)
        self._layouts: BoundedCache[Layout] = BoundedCache(max_weight=_KNOWN_LAYOUTS)
        self._sep = _one_byte(
            take(params, "sep", str, "\t" if files.name_of(first).lower().endswith(".tsv") else ",")
        )
        quoting = take(params, "quoting", bool, True)
        spaces = take(params, "skip_spaces", bool, False)
        self._dialect = Dialect(self._sep.encode(), b'"' if quoting else b"", spaces)
        self._encoding = _byte_wise(take(params, "encoding", str, "utf-8"))
        self._label: str | None = take(params, "label", str, None)
        self._first = self._telling_file()
        if "sep" not in params:
            self._sniff_separator(self._first)
        self._set_columns(self._first)

    def _telling_file(self) -> str:
        """The first file with a record below a header, which tells the columns; else the first that has a row at all.

        Those who write in parts leave some empty, and markers.
        """
        found = ""
        for path in self.list_files():
            rows = len(self._head_rows(path, records=2))
            if rows > 1:
                return path
            found = found or (path if rows else "")
        if not found:
            for path in self.list_files():
                self._require_unchanged(path, files.stamp(path))  # of a job they may have been full
            raise DataError(f"{self.data_origin}: all files are empty", fix="check how the data was written")
        return found

    def _set_columns(self, first: str) -> None:
        """Infers the columns from the first records of the first file."""
        params = self.reader_params
        rows = self._head_rows(first, _SAMPLED_RECORDS)
        wanted, given, trained = (take_names(params, key) for key in ("columns", "column_names", TRAINED_COLUMNS))
        header = params.get("with_header")
        if header is not None and not isinstance(header, bool):
            raise ReaderParamsError(f"reader parameter with_header={header!r}", fix="give true or false")
        self.with_header = (
            header if header is not None else not given and self._is_header(first, rows, wanted, trained)
        )
        self._named = self.with_header and not given
        by_job = trained if not given and not wanted else None
        if given:
            names = self._as_given(first, len(rows[0]), given)
        elif self._named:
            names = numbered(rows[0])
        else:
            names = self._by_place(first, len(rows[0]), by_job)
        lacks_label = self._predicting and self._label not in names
        self._check_names(names, wanted, trained, lacks_label=lacks_label)
        self._takes_all = wanted is None
        chosen = wanted or (self._as_trained(first, names, by_job) if by_job and self._named else names)
        self._given_columns = [name for name in chosen if not lacks_label or name != self._label]
        self._first_layout = self._layout_by_name(first, names)

    def _sniff_separator(self, path: str) -> None:
        """Takes another separator than the comma where it divides all lines alike, and the comma not the first."""
        rows = self._head_rows(path, _SAMPLED_RECORDS)
        if len(rows) < 2 or len(rows[0]) > 1:
            return
        lines = [self._sep.join(row) for row in rows]
        counts = {sep: {line.count(sep) for line in lines} for sep in _SEPARATORS if sep != self._sep}
        found = [sep for sep, numbers in counts.items() if len(numbers) == 1 and 0 not in numbers]
        if len(found) > 1:
            raise ReaderParamsError(
                f"{path}: its lines are divided by {' or by '.join(map(repr, found))}",
                fix=f"say which with the reader parameter sep={json.dumps(found[0])}, or sep={json.dumps(self._sep)} "
                "if each line is one field",
            )
        if found:
            self._sep = found[0]
            self._dialect = replace(self._dialect, sep=self._sep.encode())
            _log.info("%s: fields are divided by %r", path, self._sep)

    def _as_given(self, path: str, width: int, given: list[str]) -> list[str]:
        """The names that the user gave; files to predict with may lack the label."""
        if self._predicting and width == len(given) - 1:
            given = [name for name in given if name != self._label]
        if width != len(given):
            raise ReaderParamsError(
                f"{path}: has {width} columns, column_names has {len(given)} names",
                fix="name every column of the file",
            )
        return given

    def _by_place(self, path: str, width: int, trained: list[str] | None) -> list[str]:
        """Names for columns without any: those of the columns that the model was trained on, else ``c0``, ``c1``."""
        if not trained:
            return [f"c{i}" for i in range(width)]
        if self._predicting and width == len(trained) - 1:
            trained = [name for name in trained if name != (self._label or trained[-1])]
        if width != len(trained):
            raise _other_width(path, width, trained)
        return trained

    def _check_names(
        self, names: list[str], wanted: list[str] | None, trained: list[str] | None, *, lacks_label: bool
    ) -> None:
        """Sees that the columns are there that the parameters name."""
        for name in wanted or ():
            if name not in names and not (lacks_label and name == self._label):
                raise ReaderParamsError(
                    f"{self.data_origin}: there is no column {name!r}",
                    fix=f"the columns are {', '.join(names)}; check sep and with_header too",
                )
        known = wanted or (trained if lacks_label else names)
        if self._label is not None and known is not None and self._label not in known:
            raise ReaderParamsError(
                f"{self.data_origin}: the label {self._label!r} is not among the columns", fix=f"use one of {known}"
            )

    def _as_trained(self, path: str, names: list[str], trained: list[str]) -> list[str]:
        """The columns of the job where files name theirs: those that the model was trained on, in that order."""
        if _made_up(trained):
            if len(names) != len(trained) - (self._predicting and len(names) < len(trained)):
                raise _other_width(path, len(names), trained)
            return names
        # Where the label is not named it may be any one column: the user's feed makes what it can of the others.
        lacking = [name for name in trained if name not in names]
        unknown_label = self._predicting and self._label is None and len(lacking) == 1
        return [name for name in trained if not unknown_label or name not in lacking]

    def _layout_by_name(self, path: str, header: list[str]) -> Layout:
        label = self._label if self._predicting else None
        return csv_columns.find(path, header, self._given_columns, all_of_them=self._takes_all, label=label)

    def _layout_of(self, path: str) -> Layout:
        """The positions of the job's columns in a file."""
        return self._layouts.get(path, lambda: self._make_layout(path))

    def _make_layout(self, path: str) -> Layout:
        if not self._named:
            self._require_no_header(path)
            return self._first_layout
        rows = self._head_rows(path, records=1)
        return self._layout_by_name(path, numbered(rows[0])) if rows else self._first_layout  # of an empty one: any

    def _require_no_header(self, path: str) -> None:
        """Refuses a further file that names its columns where the first does not, and nobody said so."""
        told = {"with_header", "column_names", TRAINED_COLUMNS} & self.reader_params.keys()
        if told or path == self._first or not csv_columns.is_header(rows := self._head_rows(path, _SAMPLED_RECORDS)):
            return
        raise ReaderParamsError(
            f"{path}: its first row, {csv_columns.shown_row(rows[0])}, names the columns, that of {self._first} "
            "does not",
            fix="give all files a header or none, or say with with_header=false that it is a record",
        )

    def _is_header(
        self, path: str, rows: list[list[str]], wanted: list[str] | None, trained: list[str] | None
    ) -> bool:
        label = [] if self._label is None else [self._label]
        named = set(wanted or label)
        if named and named <= set(rows[0]):
            return True
        if trained is not None and not _made_up(trained) and len(set(trained) - set(rows[0])) <= self._predicting:
            return True
        found = csv_columns.is_header(rows)
        if found is None and not named and trained is None:
            raise csv_columns.refuse_open(path, rows[0])
        return bool(found)

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The selected columns; the types are those of the first records, ``int64``, ``float`` or ``string``."""
        layout = self._layout_of(self._first)
        rows = self._head_rows(self._first, _SAMPLED_RECORDS)[1 if self.with_header else 0 :]
        rows = [layout.select(row) for row in rows if len(row) == layout.width]
        types = {name: infer_type(row[i] for row in rows) for i, name in enumerate(self._given_columns)}
        return Metadata(list(self._given_columns), types, self.kind)

    @property
    def records_kind(self) -> RecordSpec:
        """Lists of as many strings as columns are selected."""
        return RecordSpec("columns", width=len(self._given_columns))

    @property
    def columns(self) -> list[str]:
        """The names of the columns of a record, in its order."""
        return list(self._given_columns)

    @property
    def separator(self) -> str:
        """The character between fields."""
        return self._sep

    @property
    def label(self) -> str | None:
        """The column that is the label, by the parameter ``label``."""
        return self._label

    def default_feed(self) -> Feed | None:
        """With the parameter ``label``: the other columns as a float32 vector, and the label as a number.

        Whole numbers of columns of whole numbers that float32 does not have are no features: they may be ids.
        """
        if self._label is None:
            return None
        if self._label not in self._given_columns:
            return functools.partial(_numeric_feed, None)
        return functools.partial(_numeric_feed, self._given_columns.index(self._label))

    def explain_unreadable(self, shard: ShardLike) -> DataError | None:
        """The first field of some records that the default feed cannot read as a number, if there is one."""
        return next(self._misfits(shard, self._kinds_of_feed()), None)

    def misfits(self, shard: ShardLike) -> Iterator[DataError]:
        """The fields that are not of their column's type, or, with ``label``, that the default feed cannot read."""
        types = self.metadata.column_types
        kinds = [types[name] for name in self._given_columns] if self._label is None else self._kinds_of_feed()
        return self._misfits(shard, kinds)

    def _kinds_of_feed(self) -> list[str]:
        """The types that the default feed needs of the columns."""
        types = self.metadata.column_types
        kinds = ["exact" if types[name] == "int64" else "float" for name in self._given_columns]
        if self._label in self._given_columns and types[self._label] != "string":
            kinds[self._given_columns.index(self._label)] = types[self._label]
        return kinds

    def _misfits(self, shard: ShardLike, kinds: Sequence[str]) -> Iterator[DataError]:
        for number, row in self._numbered(shard):
            for column, kind, value in zip(self._given_columns, kinds, row, strict=True):
                if self._predicting and column == self._label:
                    continue  # it is not read
                if wrong := csv_columns.misfit(value, kind):
                    yield DataError(
                        f"{shard.name}: record {number}: column {column!r} holds {shown(value)}, which {wrong}",
                        fix=_FIX_OF_EXACT if kind == "exact" and csv_columns.is_inexact(value) else _FIX_OF_NUMBERS,
                    )

    def locate_value(self, shard: ShardLike, message: str) -> str:
        """The record whose value an error quotes, of those that are not like the first ones of their columns."""
        kinds = [self.metadata.column_types[name] for name in self._given_columns]
        for number, row in self._numbered(shard):
            for column, kind, value in zip(self._given_columns, kinds, row, strict=True):
                if value.strip() and value in message and csv_columns.misfit(value, kind):
                    return f"record {number} of {shard.name} (column {column!r} holds {shown(value)})"
        return ""

    def _numbered(self, shard: ShardLike) -> Iterator[tuple[int, list[str]]]:
        """The records of a shard with their numbers in the file."""
        rows = list(self.read_records(shard))
        if len(rows) == shard.end - shard.start:
            yield from enumerate(rows, shard.start)
            return
        for number in range(shard.start, shard.end):  # some were passed over
            yield from ((number, row) for row in self.read_records(Shard(shard.name, number, number + 1)))

    def _head_rows(self, path: str, records: int) -> list[list[str]]:
        data = csv_index.head_of(path, self._dialect, records)
        text = self._decode(data, path, 0, 0)
        return [row for row in self._parse(text, path, 0) if row][:records]

    def _load_index(self, path: str) -> OffsetIndex:
        self._layout_of(path)
        return super()._load_index(path)

    def _parse_singles(self, path: str, parts: list[bytes]) -> list[Record] | None:
        layout = self._layout_of(path)
        data = b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts)
        try:
            rows = [row for row in self._parse(data.decode(self._encoding), "", 0) if row]
        except (UnicodeDecodeError, CorruptDataError):
            return None
        if len(rows) != len(parts) or any(len(row) != layout.width for row in rows):
            return None
        return rows if layout.selected is None else [layout.select(row) for row in rows]

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        layout = self._layout_of(path)
        for data, first_byte, low, high in self._read_pieces(file, path, start, end):
            rows = self._rows(data, path, first_byte, low, high)
            good = self._valid_rows(rows, layout.width, data, path, first_byte, low)
            yield good if layout.selected is None else [layout.select(row) for row in good]

    def _rows(self, data: bytes, path: str, base: int, number: int, end: int) -> list[list[str]]:
        rows = [row for row in self._parse(self._decode(data, path, base, number), path, base) if row]
        self._check_count(len(rows), end - number, path, base, base + len(data))
        return rows

    def _valid_rows(
        self, rows: list[list[str]], width: int, data: bytes, path: str, base: int, low: int
    ) -> list[list[str]]:
        """The rows that have the right number of columns and no undecodable bytes."""
        good = [row for row in rows if len(row) == width]
        if len(good) != len(rows) and not self._skip:
            at = next(i for i, row in enumerate(rows) if len(row) != width)
            raise CorruptDataError(
                f"has {len(rows[at])} columns, the file has {width}",
                path=path, record=low + at,
                offset=csv_index.locate(data, self._dialect, path, base, at),
            )  # fmt: skip
        if self._skip:
            good = [row for row in good if not any(map(_SURROGATE.search, row))]
        if len(good) < len(rows):
            kept = {id(row) for row in good}
            first = next(i for i, row in enumerate(rows) if id(row) not in kept)
            self._count_skipped(len(rows) - len(good), path, low + first)
        return good

    def _parse(self, text: str, path: str, base: int) -> Iterator[list[str]]:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._dialect.quote else csv.QUOTE_NONE
        try:
            yield from csv.reader(
                io.StringIO(text, newline=""),
                delimiter=self._sep,
                quoting=quoting,
                skipinitialspace=self._dialect.skip_spaces,
            )
        except csv.Error as error:
            raise CorruptDataError(str(error), path=path, offset=base) from error


def infer_type(values: Iterator[str]) -> str:
    """``int64`` when all values are integers, ``float`` when all are numbers, else ``string``."""
    kind = "int64"
    empty = True
    for value in values:
        empty = False
        if not NUMBER.fullmatch(value):
            return "string"
        if not INTEGER.fullmatch(value):
            kind = "float"
    return "string" if empty else kind


def _one_byte(sep: str) -> str:
    if len(sep.encode()) != 1 or sep in '"\r\n':
        raise ReaderParamsError(
            f"the separator {sep!r} is not one ASCII character", fix='give one, e.g. sep=";" or sep="\\t"'
        )
    return sep


def _byte_wise(encoding: str) -> str:
    try:
        "".encode(encoding)
    except LookupError:
        raise ReaderParamsError(f"there is no encoding {encoding!r}", fix="use utf-8, latin-1, cp1252, ...") from None
    if encoding.lower().startswith(_WIDE_ENCODINGS):
        raise ReaderParamsError(f"{encoding} has newlines of several bytes", fix="convert the files to utf-8")
    return encoding


def _other_width(path: str, width: int, trained: list[str]) -> DataError:
    return DataError(
        f"{path}: has {width} columns, the model was trained on {len(trained)}: {trained}",
        fix="give files with the same columns, or name those to read with the reader parameter columns",
    )


def _made_up(names: list[str]) -> bool:
    """Whether names are those of columns that have none."""
    return names == [f"c{i}" for i in range(len(names))]


def _numeric_feed(label: int | None, dataset: Any, mode: str, metadata: Metadata) -> Any:
    """Turns rows of strings into a float32 vector and a label; in prediction, into the vector alone."""
    import tensorflow as tf

    whole = [metadata.column_types[name] == "int64" for name in metadata.column_names]
    label_type = tf.int64 if label is not None and whole[label] else tf.float32
    if label is not None:
        del whole[label]

    def numbers(texts: Any) -> Any:
        if any(whole):
            values = tf.strings.to_number(texts, tf.float64)
            changed = tf.cast(tf.cast(values, tf.float32), tf.float64) != values
            changed |= (tf.abs(values) >= csv_columns.EXACT_FLOAT64) & tf.math.is_finite(values)
            # What is no number any more fails below, and `explain_unreadable` says what was wrong with it.
            texts = tf.where(changed & whole & (tf.floor(values) == values), "inexact", texts)
        return tf.strings.to_number(texts, tf.float32)

    def split(row: Any) -> Any:
        if label is None:
            return numbers(row)
        features = numbers(tf.concat([row[:label], row[label + 1 :]], axis=0))
        if mode == "prediction":
            return features
        return features, tf.strings.to_number(row[label], label_type)

    return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE)
