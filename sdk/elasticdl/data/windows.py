"""Windows over consecutive rows of files as records, as forecasting and sequence models need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.file_reader import BoundedCache, FileDataReader
from elasticdl.data.params import take
from elasticdl.data.reader import DataReader, Metadata, Record, RecordSpec, Shard, ShardLike

WINDOW_PARAMS = ("window", "stride", "group_by")
_WINDOWS_AT_ONCE = 512
_KNOWN_ROWS = 1 << 24
"""Rows whose order by group is remembered: some 128 MB."""


@dataclass(frozen=True)
class _Series:
    """Positions of the windows of a file.

    Attributes:
        ends: of each series (the rows of a group, or of the whole file), the number of windows up to its end.
        firsts: of each series, the place of its first row in ``order``.
        rows: number of rows of the file.
        order: the rows of the file, one series after the other; None where that is the file's own order.
    """

    ends: NDArray[np.int64]
    firsts: NDArray[np.int64]
    rows: int
    order: NDArray[np.int64] | None = None

    @property
    def windows(self) -> int:
        """The number of windows."""
        return int(self.ends[-1]) if len(self.ends) else 0


class WindowedDataReader(DataReader):
    """Makes one record of ``window`` consecutive rows of a file; record ``i + 1`` begins ``stride`` rows after ``i``.

    No window reaches over the end of a file, nor over that of a group. Tasks cut records, not rows: what a window
    holds does not depend on them.

    Args:
        rows: reads the rows.
        records_per_task: cut shards to at most this many windows; by default a shard is a whole file.
        params: ``window``: rows of a record; ``stride``: 1 by default; ``group_by``: the column whose equal values
            make a series of rows, wherever in the file they are; the whole file is one by default.

    Raises:
        ReaderParamsError: a parameter has an impossible value, or does not go with those of ``rows``.
    """

    def __init__(self, rows: FileDataReader[Any], records_per_task: int | None, params: Mapping[str, Any]) -> None:
        self.rows = rows
        self._records_per_task = records_per_task
        self._window = _positive(params, "window", None)
        self._stride = _positive(params, "stride", 1)
        self._group_by = _column(rows, take(params, "group_by", str, None))
        self._series: BoundedCache[_Series] = BoundedCache(_KNOWN_ROWS, lambda one: 1 + one.rows)
        if rows.reader_params.get("on_corrupt") == "skip":
            raise ReaderParamsError(
                "window= does not go with on_corrupt=skip: rows that are passed over would leave gaps in windows",
                fix="mend the data, or leave one of the two out",
            )
        if isinstance(rows, CSVDataReader) and rows.label is not None:
            raise ReaderParamsError(
                "window= does not go with label=: which row of a window has the label is the model's affair",
                fix="leave label= out, and write a feed that makes (features, labels) of the rows of a window",
            )

    def create_shards(self) -> Iterator[Shard]:
        """One shard a file, or several of ``records_per_task`` windows; too short files give none.

        Raises:
            DataError: the data is missing or damaged, or no file has a window.
        """
        count = longest = 0
        for path in self.rows.list_files():
            total = self._series_of(path).windows
            longest = max(longest, self.rows.count_records(path))
            step = self._records_per_task or max(total, 1)
            for start in range(0, total, step):
                count += 1
                yield Shard(path, start, min(start + step, total))
        if not count:
            within = f"rows of one {self._group_by!r}" if self._group_by else "rows"
            raise DataError(
                f"{self.rows.data_origin}: no file has {self._window} {within}, as window={self._window} asks for "
                f"(the longest has {longest} rows)",
                fix="give a smaller window, or files with longer series",
            )

    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """The windows of a shard: lists of rows, each of which is what the reader of rows gives."""
        for start in range(shard.start, shard.end, _WINDOWS_AT_ONCE):
            yield from self.read_numbers(shard.name, range(start, min(start + _WINDOWS_AT_ONCE, shard.end)))

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Single windows of a file; each of their rows is read once."""
        if not len(numbers):
            return []
        series = self._series_of(name)
        wanted = np.asarray(numbers, np.int64)
        if wanted.min() < 0 or wanted.max() >= series.windows:
            raise DataError(
                f"{name}: has {series.windows} windows, asked for {wanted.min()} to {wanted.max() + 1}",
                fix="the file changed after its shards were listed: submit the job again",
            )
        which = np.searchsorted(series.ends, wanted, "right")
        before = np.where(which > 0, series.ends[which - 1], 0)
        starts = series.firsts[which] + (wanted - before) * self._stride
        places = starts[:, None] + np.arange(self._window)
        rows = places if series.order is None else series.order[places]
        needed, at = np.unique(rows, return_inverse=True)
        found = self.rows.read_numbers(name, needed.tolist())
        # A feed may change what it gets, and windows overlap.
        return [[_own(found[i]) for i in one] for one in at.reshape(rows.shape)]

    def read_ranges(self, ranges: Sequence[ShardLike]) -> list[Record]:
        """The windows of several ranges, one range after the other."""
        return [record for one in ranges for record in self.read_records(one)]

    def fingerprint(self, name: str) -> str:
        """The fingerprint of the file."""
        return self.rows.fingerprint(name)

    @property
    def reads_by_index(self) -> bool:
        """Whether single rows cost about as much as those next to each other."""
        return self.rows.reads_by_index

    @property
    def metadata(self) -> Metadata:
        """The metadata of the rows."""
        return self.rows.metadata

    @property
    def records_kind(self) -> RecordSpec:
        """Lists of ``window`` rows."""
        return replace(self.rows.records_kind, window=self._window)

    def _series_of(self, path: str) -> _Series:
        return self._series.get(path, lambda: self._find_series(path))

    def _find_series(self, path: str) -> _Series:
        rows = self.rows.count_records(path)
        if self._group_by is None:
            return self._cut(np.array([0]), np.array([rows]), rows)
        at = self.rows.metadata.column_names.index(self._group_by)
        codes: dict[str, int] = {}
        batches = self.rows.read_batches(Shard(path, 0, rows), 4096)
        found = (codes.setdefault(row[at], len(codes)) for batch in batches for row in batch)
        groups = np.fromiter(found, np.int64, rows)
        sizes = np.bincount(groups, minlength=len(codes))
        return self._cut(np.cumsum(sizes) - sizes, sizes, rows, np.argsort(groups, kind="stable"))

    def _cut(
        self, firsts: NDArray[np.int64], sizes: NDArray[np.int64], rows: int, order: NDArray[np.int64] | None = None
    ) -> _Series:
        windows = np.maximum(0, (sizes - self._window) // self._stride + 1)
        return _Series(np.cumsum(windows), firsts, rows, order)


def _own(row: Record) -> Record:
    return list(row) if isinstance(row, list) else row


def _positive(params: Mapping[str, Any], key: str, default: int | None) -> int:
    value = take(params, key, int, default)
    if value is None or value < 1:
        shown = "is missing" if value is None else f"is {value}"
        raise ReaderParamsError(f"the reader parameter {key} {shown}", fix=f"give a number over 0: {key}=10")
    return int(value)


def _column(rows: FileDataReader[Any], name: str | None) -> str | None:
    names = rows.metadata.column_names
    if name is not None and name not in names:
        raise ReaderParamsError(
            f"there is no column {name!r} to group by", fix=f"use one of: {', '.join(names) or 'none, it is no CSV'}"
        )
    return name
