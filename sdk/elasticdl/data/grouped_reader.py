"""The base of readers of tables whose rows can only be read in groups: row groups, batches, pages.

A group is read and decoded whole, and kept as columns for as long as there is room: rows are taken out of it by their
numbers. Shuffling is told how large groups are, so that records are mixed among as many groups as are kept.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.columns import Columns, ColumnSpec, objects, records_of, weigh
from elasticdl.data.errors import DataError
from elasticdl.data.file_reader import BoundedCache
from elasticdl.data.reader import DataReader, Record, RecordSpec, Shard, ShardLike
from elasticdl.data.table_feed import require_numbers

KEPT_BYTES = 256 << 20
"""Decoded groups that are kept, in bytes."""
_LEAST_GROUPS = 4
_PIECE_RECORDS = 1024


@dataclass(frozen=True)
class _Group:
    """A decoded group.

    Values of one size lie row by row: what is taken of a row is near each other, where a column each would have the
    processor wait for memory once for each value.

    Attributes:
        fields: names of the columns in ``rows``.
        rows: structured array ``[rows]``, a field for each of them.
        others: columns of text, bytes and lists of any length.
        bytes: about how many bytes of memory it takes.
    """

    fields: Sequence[str]
    rows: npt.NDArray[Any]
    others: Columns
    bytes: int

    @classmethod
    def of(cls, columns: Columns, count: int) -> _Group:
        """The group of so many rows that some columns are."""
        fields = [name for name, values in columns.items() if values.dtype != object]
        form = [(f"f{at}", columns[name].dtype, columns[name].shape[1:]) for at, name in enumerate(fields)]
        rows = np.empty(count, form)
        for (field, _, _), name in zip(form, fields, strict=True):
            rows[field] = columns[name]
        return cls(fields, rows, {name: columns[name] for name in columns if name not in fields}, weigh(columns))


_Part: TypeAlias = tuple[_Group, npt.NDArray[np.int64]]
"""A group, and which of its rows are wanted, ascending."""


class GroupedReader(DataReader):
    """Reads rows by the groups that hold them.

    Attributes:
        label: the column that is the label, by the parameter ``label``; None if none is named.
    """

    label: str | None = None
    _to_vector = False

    def __init__(self) -> None:
        self._kept: BoundedCache[_Group] = BoundedCache(KEPT_BYTES, lambda group: group.bytes)

    @property
    @abc.abstractmethod
    def column_specs(self) -> Mapping[str, ColumnSpec]:
        """The columns of a record, in their order."""

    @abc.abstractmethod
    def _starts(self, name: str) -> npt.NDArray[np.int64]:
        """The first row of each group of a source, and last of all the number of its rows."""

    @abc.abstractmethod
    def _load_group(self, name: str, number: int) -> Columns:
        """Reads a group."""

    def _group(self, name: str, number: int) -> _Group:
        return self._kept.get((name, number), lambda: self._checked_group(name, number))

    def _checked_group(self, name: str, number: int) -> _Group:
        columns, starts = self._load_group(name, number), self._starts(name)
        wanted = int(starts[number + 1] - starts[number])
        for column, values in columns.items():
            if self._to_vector and column != self.label:
                _require_exact(name, column, values, int(starts[number]))
            if len(values) != wanted:
                raise DataError(
                    f"{name}: rows {starts[number]} to {starts[number + 1]} were {wanted} when they were listed, and "
                    f"are {len(values)} now (column {column!r})",
                    fix="the data changed after its tasks were planned: submit the job again",
                )
        return _Group.of(columns, wanted)

    def read_columns(
        self,
        places: Sequence[tuple[str, Sequence[int] | npt.NDArray[np.int64]]],
        order: npt.NDArray[np.intp] | None = None,
    ) -> Columns:
        """Single rows of several sources as columns: the ascending numbers of each, one source after the other.

        Args:
            places: sources and numbers.
            order: the place of each of these rows in the columns; by default they follow each other.

        Raises:
            DataError: the data is missing, unreadable, or shorter than the numbers say.
        """
        parts: list[_Part] = []
        for name, numbers in places:
            starts, wanted = self._starts(name), np.asarray(numbers, np.int64)
            if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < starts[-1]:
                raise _too_short(name, int(starts[-1]), int(wanted[0]), int(wanted[-1]) + 1)
            groups = np.searchsorted(starts, wanted, "right") - 1
            for group in np.unique(groups):
                parts.append((self._group(name, int(group)), wanted[groups == group] - starts[group]))
        return _gathered(parts, list(self.column_specs), order) if parts else {}

    def read_places(self, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
        """Single rows of several sources."""
        return list(records_of(self.read_columns(places))) if places else []

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Single rows of a source."""
        return self.read_places([(name, numbers)]) if len(numbers) else []

    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """The rows of a shard as dictionaries by the column's name."""
        for columns in self.column_batches(shard):
            yield from records_of(columns)

    def column_batches(self, shard: ShardLike, max_records: int = _PIECE_RECORDS) -> Iterator[Columns]:
        """The rows of a shard as columns, at most so many at a time."""
        total = int(self._starts(shard.name)[-1])
        if not 0 <= shard.start <= shard.end <= total:
            raise _too_short(shard.name, total, shard.start, shard.end)
        for start in range(shard.start, shard.end, max_records):
            yield self.read_columns([(shard.name, range(start, min(start + max_records, shard.end)))])

    def read_ranges(self, ranges: Sequence[ShardLike]) -> list[Record]:
        """The rows of several ranges, one range after the other."""
        return list(itertools.chain.from_iterable(map(self.read_records, ranges)))

    def vector_label(self) -> str | None:
        """The label, if one is named: the other columns make a float32 vector, which is looked after from now on.

        Raises:
            DataError: a column is no number.
        """
        if self.label is not None:
            require_numbers(self.column_specs, self.label)
            self._to_vector = True
        return self.label

    @property
    def reads_by_index(self) -> bool:
        """Rows are taken out of groups that are kept."""
        return True

    @property
    def gathers(self) -> bool:
        """It does, by the groups."""
        return True

    @property
    def grain(self) -> tuple[int, int] | None:
        """The rows of a group, and the groups among which rows are mixed: about half of those that are kept."""
        for shard in self.create_shards():
            starts = self._starts(shard.name)
            rows = int(np.max(np.diff(starts)))
            first = self._group(shard.name, 0)
            size = max(1, first.bytes * rows // max(1, int(starts[1] - starts[0])))
            return rows, max(_LEAST_GROUPS, KEPT_BYTES // (2 * size))
        return None

    @property
    def records_kind(self) -> RecordSpec:
        """Dictionaries of the columns."""
        return RecordSpec("table", columns=self.column_specs)

    @property
    def columns(self) -> list[str]:
        """The names of the columns of a record, in its order."""
        return list(self.column_specs)

    def _cut(self, name: str, step: int | None) -> Iterator[Shard]:
        """The shards of a source."""
        total = int(self._starts(name)[-1])
        for start in range(0, total, step or max(total, 1)):
            yield Shard(name, start, min(start + (step or total), total))


def _require_exact(name: str, column: str, values: npt.NDArray[Any], first: int) -> None:
    """Refuses whole numbers that become others as float32, so that two ids would become one."""
    if values.dtype.kind not in "iu":
        return
    (inexact,) = np.nonzero(values.astype(np.float32).astype(np.longdouble) != values.astype(np.longdouble))
    if len(inexact):
        raise DataError(
            f"{name}: row {first + inexact[0]}: column {column!r} holds {values[inexact[0]]}, a whole "
            "number that float32 does not have",
            fix="the feed that label= makes takes numbers as float32: leave the column out with the reader parameter "
            "columns, or write a feed, which ids need",
        )


def _gathered(parts: Sequence[_Part], names: Sequence[str], order: npt.NDArray[np.intp] | None) -> Columns:
    """The rows of some parts as columns, which whoever gets them may change; ``order`` as for ``read_columns``."""
    first, count = parts[0][0], sum(len(inside) for _, inside in parts)
    rows, others, at = np.empty(count, first.rows.dtype), {name: np.empty(count, object) for name in first.others}, 0
    for group, inside in parts:
        here = slice(at, at := at + len(inside))
        rows[here] = group.rows.take(inside)
        for name, values in others.items():
            values[here] = _taken(group.others[name], inside)
    if order is not None:  # whole rows, before the columns are apart
        back = np.empty(count, np.intp)
        back[order] = np.arange(count)
        rows, others = rows.take(back), {name: values.take(back) for name, values in others.items()}
    found = {name: np.ascontiguousarray(rows[f"f{number}"]) for number, name in enumerate(first.fields)} | others
    return {name: found[name] for name in names}


def _taken(values: npt.NDArray[Any], inside: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Some values, which whoever gets them may change."""
    found = values[inside]
    if found.dtype == object and len(found) and isinstance(found[0], np.ndarray):
        return objects([one.copy() for one in found])
    return found


def _too_short(name: str, total: int, start: int, end: int) -> DataError:
    return DataError(
        f"{name}: has {total} rows, the rows {start} to {end} are asked for",
        fix="the data changed after its tasks were planned: submit the job again",
    )
