"""Minibatches by a ``feed(columns, mode, metadata)``: columns in, tensors out, and no object for each record."""

from __future__ import annotations

import abc
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticdl.data import DataReader, Shard
from elasticdl.data.columns import Columns, rows_of
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.reader import Feed, Metadata
from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_core.shuffling import Reading
from elasticdl_worker.reporting.accounts import Intake
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors, not_a_pair
from elasticdl_worker.trainers.task_records import TaskRecords, records_at
from elasticdl_worker.user_code import ModelModule

FIRST_ARGUMENT = "columns"
_SAMPLE_RECORDS = 8
_TRIED_RECORDS = 32


def feeds_columns(reader: DataReader, module: ModelModule) -> bool:
    """Whether records go as columns: the module's ``feed`` takes them, or is none and a table has a label."""
    return takes_columns(module.feed) if module.feed is not None else _default_feed(reader) is not None


def takes_columns(feed: Callable[..., object]) -> bool:
    """Whether a ``feed`` takes columns: its first argument is called so."""
    try:
        return next(iter(inspect.signature(feed).parameters), "") == FIRST_ARGUMENT
    except (TypeError, ValueError):  # what has no signature that can be read
        return False


class ColumnFeed(abc.ABC):
    """Minibatches of tasks, for one mode, of a ``feed`` that takes columns.

    ``feed`` is called for each minibatch with the columns of its records, arrays ``[n, ...]`` by name, and gives
    features, or features and labels, of as many rows in the same order.

    Args:
        reader: reads the records.
        module: the user's module, for its ``feed``.
        mode: ``training``, ``evaluation`` or ``prediction``.
        minibatch_size: records in a minibatch; the last one of a task may have fewer.

    Attributes:
        ordered: the record at position ``i`` of a task is record ``i`` of its minibatches.

    Raises:
        UserCodeError: the records have no columns.
    """

    ordered = True

    def __init__(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> None:
        kind = reader.records_kind
        if kind.kind not in ("table", "columns") or kind.window is not None:
            what = "windows" if kind.window is not None else f"{reader.metadata.kind} records"
            raise UserCodeError(
                f"feed in {module.path} takes columns, which {what} do not have",
                fix="convert the data (elasticdl data convert SRC DST --to parquet), or let it take dataset",
            )
        self._reader = reader
        self._module = module
        self._mode = str(mode)
        self._minibatch_size = minibatch_size
        self._records = TaskRecords(reader, module)
        self._fed = 0
        self._feed = module.feed or _default_feed(reader)
        self._seen = _FeedFacts()

    @abc.abstractmethod
    def _as_tensors(self, given: Any) -> Tensors:
        """Makes tensors of the arrays that ``feed`` gave."""

    @abc.abstractmethod
    def _leaves(self, tensors: Tensors) -> Sequence[Any]:
        """The tensors of nested ones."""

    @abc.abstractmethod
    def _values(self, tensor: Any) -> Any:
        """A tensor's values as an array, or None where it has no such form."""

    def minibatches(self, shard: Shard, reading: Reading | None = None) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard; one shard at a time.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed`` or the user's reader raised, or ``feed`` gave rows that are not its records'.
        """
        self._records.begin(shard, reading)
        self._fed = 0
        pieces = self._records.columns(self._minibatch_size)
        while True:
            try:
                columns = next(pieces, None)
                if columns is None:
                    self._records.end(self._fed, exact=True)
                    return
                features, labels = self._called(columns)
            except Exception as error:
                raise self._explain(error, shard, reading) from error
            rows = rows_of(columns)
            first = None if self._records.skipped else shard.start + self._fed
            yield Minibatch(features, labels, rows, shard, first, reading)
            self._fed += rows

    @property
    def intake(self) -> Intake:
        """The intake of the present shard so far."""
        return Intake(self._fed, self._records.skips)

    def sample(self) -> Tensors:
        """The features of a few records, to run the model on; None if there are none.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised.
        """
        found = self.first(min(_SAMPLE_RECORDS, self._minibatch_size))
        return None if found is None else found.features

    def first(self, records: int, at: float = 0.0) -> Minibatch | None:
        """Records of the data from a place on, as part of it, or fewer; None if there are none.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised.
        """
        few = records_at(self._reader, at, max(1, records))
        apart = copy.copy(self)  # whose tasks are not those of this
        apart._records, apart._minibatch_size = TaskRecords(self._reader, self._module), max(1, records)
        return next(apart.minibatches(few), None)

    def _called(self, columns: Columns) -> tuple[Tensors, Tensors]:
        """Features and labels of some records."""
        if not self._seen.tried and rows_of(columns) > 1:
            self._refuse_combining({name: values[:_TRIED_RECORDS] for name, values in columns.items()})
            self._seen.tried = True
        return self._given(columns)

    def _given(self, columns: Columns) -> tuple[Tensors, Tensors]:
        assert self._feed is not None
        rows = rows_of(columns)
        given = self._feed(dict(columns), self._mode, self._reader.metadata)
        if self._mode == "prediction":
            features, labels = self._as_tensors(given), None
        elif isinstance(given, tuple | list) and len(given) == 2:
            features, labels = self._as_tensors(given[0]), self._as_tensors(given[1])
        else:
            raise not_a_pair(given, self._module.path, self._mode)
        found = [*self._leaves(features), *(self._leaves(labels) if labels is not None else ())]
        sizes = sorted({int(one.shape[0]) if len(one.shape) and one.shape[0] is not None else 0 for one in found})
        if sizes != [rows]:
            raise UserCodeError(
                f"feed in {self._module.path} gives {' and '.join(map(str, sizes)) or 'no'} rows for {rows} records",
                fix="give arrays or tensors with a row for each of the records in columns, in their order",
            )
        return features, labels

    def _refuse_combining(self, columns: Columns) -> None:
        """Refuses a ``feed`` whose row of a record depends on the others of its minibatch: they differ each time."""

        def rows(first: int) -> list[Any]:
            some = {name: values[first:].copy() for name, values in columns.items()}
            features, labels = self._given(some)
            both = [*self._leaves(features), *(self._leaves(labels) if labels is not None else ())]
            return [self._values(one) for one in both]

        at = rows_of(columns) // 2
        try:
            whole, again, part = rows(0), rows(0), rows(at)
        except Exception:  # what is wrong is said where the records are fed
            return
        self._seen.draws = not all(map(_alike, whole, again))
        if not self._seen.draws and not all(map(_alike, [None if one is None else one[at:] for one in whole], part)):
            raise UserCodeError(
                f"feed in {self._module.path} makes the row of a record by the other records of its minibatch",
                fix="make each row of one record: tasks and shuffling put others beside it each time. Means and the "
                "like are made once, beforehand, and kept as a file of the model zoo",
            )

    def _explain(self, error: Exception, shard: Shard, reading: Reading | None) -> ElasticDLError:
        """The reader's own error if it failed, else what ``feed`` did, and on which records."""
        if isinstance(error, UserCodeError):
            return error
        start = shard.start + self._fed
        end = min(start + self._minibatch_size, shard.end)
        at = [Shard(shard.name, start, end)] if reading is None else reading.records(start, end)
        return self._records.explain(error, at=() if self._records.skipped or start >= end else at)


def _default_feed(reader: DataReader) -> Feed | None:
    """The feed of a table whose label is named: numbers as a vector, and the label; None for other data."""
    if not isinstance(reader, GroupedReader) or reader.label is None:
        return None
    label = reader.vector_label()

    def feed(columns: Columns, mode: str, metadata: Metadata) -> Any:
        numbers = [columns[name] for name in metadata.column_names if name != label]
        features = np.stack([values.astype(np.float32) for values in numbers], axis=1)
        if mode == "prediction" or label is None:
            return features
        whole = columns[label].dtype.kind != "f"
        return features, columns[label].astype(np.int64 if whole else np.float32)

    return feed


@dataclass
class _FeedFacts:
    """Facts of a ``feed`` that a trial found."""

    tried: bool = False
    draws: bool = False


def _alike(one: Any, other: Any) -> bool:
    """Whether values are the same, but for what sums of another order give."""
    if one is None or other is None:
        return True
    if one.shape != other.shape or one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True))
