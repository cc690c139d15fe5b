"""The raw records of one task after the other, as a pipeline of any framework reads them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elasticdl.data import DataReader, Shard
from elasticdl.data.columns import Columns, columns_of_records, objects, rows_of
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.reader import Record
from elasticdl_core.errors import DataError, ElasticDLError, UserCodeError
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shuffling import Reading, described
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_worker.trainers.open_blocks import require_all
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from elasticdl_worker.user_code import ModelModule, guarded

T = TypeVar("T")
_READ_ROWS = 4096
"""Rows that are read as columns at a time, about."""
_BUILDS = "let feed say what is done with each record, by map and filter; records are read when it has returned"


def records_at(reader: DataReader, at: float, records: int) -> Shard:
    """Some records of the data, all of one shard.

    Args:
        reader: of the data.
        at: where they begin, as part of all records.
        records: how many there are at most.
    """
    shards = reader.create_shards()
    shard = next(shards)
    place = 0
    if at:
        every = [shard, *shards]
        place = int(at * sum(one.end - one.start for one in every))
        for shard in every:
            if place < shard.end - shard.start:
                break
            place -= shard.end - shard.start
    start = shard.start + place
    return Shard(shard.name, start, min(shard.end, start + records))


class _Pass:
    """One reading of a task's records: an iterator that was given up may still read while the next one does.

    Attributes:
        taken: records that were given out.
        passed_over: records that could not be read, where they are shuffled.
    """

    def __init__(self) -> None:
        self.taken = self.passed_over = 0


class TaskRecords:
    """The records of the present task: counts what the reader passed over, and explains what went wrong.

    Attributes:
        shard: the present one; None before the first.
    """

    def __init__(self, reader: DataReader, module: ModelModule) -> None:
        self._reader = reader
        self._shuffled = ShuffledRecords(reader)
        self._module = module
        self._reading: Reading | None = None
        self._looking_at: Callable[[], Sequence[Shard]] = tuple
        self._error: BaseException | None = None
        self._skipped_before = 0
        self._passes: list[_Pass] = []
        self._closed = False
        self._left_out = Skips()
        self._by_columns = False
        self.shard: Shard | None = None

    def begin(self, shard: Shard, reading: Reading | None = None) -> None:
        """Begins a task.

        Args:
            shard: its records, or their positions.
            reading: where the records of the positions lie, if they are shuffled.
        """
        self.shard, self._reading, self._error, self._by_columns = shard, reading, None, False
        self._looking_at = lambda: (shard,)
        self._skipped_before, self._passes, self._left_out = self._reader.skipped_records, [], Skips()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """No record is read meanwhile: ``feed`` is called to say what is done with them."""
        self._closed, self._error = True, None
        try:
            yield
        except UserCodeError:
            if isinstance(self._error, UserCodeError):
                raise self._error from None
            raise
        finally:
            self._closed = False

    def end(self, fed: int, *, taken: int | None = None, exact: bool = False, not_drawn: int = 0) -> None:
        """Ends a task of which ``feed`` has given all: what it left out counts as passed over.

        Args:
            fed: rows that came out of it.
            taken: records that it took; None if that is known here.
            exact: whether it makes one row of each record.
            not_drawn: of how many it gave no row, where that is known: others may have come more than once.

        Raises:
            UserCodeError: it did not take all of the records that it was given.
            DataError: it gave another number of rows than it should.
        """
        assert self.shard is not None
        readable = self.shard.records - self.skipped
        took = max((one.taken for one in self._passes), default=0) if taken is None else taken
        if took < readable:
            raise UserCodeError(
                f"feed took {took} of {self._where()}: the rest would not be in the model",
                fix="let feed go over all records that it is given, and give nothing for those that are to be left "
                "out: it sees the records of one task at a time, not all of the data",
            )
        if exact and fed != readable:
            raise DataError(
                f"{fed} rows came out of feed for {readable} records ({self._where()}), of which it makes one each",
                fix="this is a defect of ElasticDL, not of the model module: keep the job's logs and report it",
            )
        left_out = min(max(readable - fed, not_drawn), readable)
        if left_out > 0:
            words = f"{self._where()}: feed gave {fed} rows for {readable} records"
            self._left_out = Skips.of(SkipReason.FEED, left_out, words)

    def _where(self) -> str:
        return described(self._task_ranges())

    def batches(self, size: int, convert: Callable[[Any], T]) -> Iterator[T]:
        """The records of the present task, ``size`` at a time.

        Args:
            size: records in a batch; the last may have fewer.
            convert: makes of a batch what is given; what it raises counts as the reader's.

        Raises:
            DataError: the data cannot be read, or the reader gave fewer records or more.
            UserCodeError: the user's reader raised.
        """
        shard = self.shard
        if self._closed:
            self._error = UserCodeError(f"feed in {self._module.path} reads its records itself", fix=_BUILDS)
            raise self._error
        if shard is None:
            return
        self._skipped_before = self._reader.skipped_records
        passes, own = self._passes, _Pass()
        passes.append(own)
        try:
            with guarded("the data reader", self._module.roots):
                for records in self._records(shard, size, own):
                    own.taken += rows_of(records) if isinstance(records, dict) else len(records)
                    yield convert(records)
            if passes is self._passes:
                require_all(shard, own.taken, self.skipped)
        except GeneratorExit:
            raise
        except BaseException as error:
            if passes is self._passes:
                self._error = error
            raise

    def columns(self, size: int) -> Iterator[Columns]:
        """The records of the present task as columns, ``size`` at a time; of tables no record is made on the way.

        Raises:
            DataError: the data cannot be read, or the reader gave fewer records or more.
            UserCodeError: the user's reader raised.
        """
        self._by_columns = isinstance(self._reader, GroupedReader)
        return self.batches(size, self._as_columns)

    def _as_columns(self, records: Any) -> Columns:
        if isinstance(records, dict):
            return records
        if specs := self._reader.records_kind.columns:
            return columns_of_records(records, specs)
        names = self._reader.metadata.column_names
        return {name: objects(values) for name, values in zip(names, zip(*records, strict=True), strict=True)}

    @property
    def skipped(self) -> int:
        """Records of the present task that the reader passed over so far."""
        if self._reading is not None:
            return max((one.passed_over for one in self._passes), default=0)
        return self._reader.skipped_records - self._skipped_before

    @property
    def skips(self) -> Skips:
        """The same with an example, and what ``feed`` left out of a task that has ended."""
        return Skips.of(SkipReason.CORRUPT, self.skipped, self._reader.skipped_example) + self._left_out

    def explain(
        self,
        error: Exception,
        shown: Callable[[Exception], Exception] = lambda raised: raised,
        at: Sequence[Shard] = (),
    ) -> ElasticDLError:
        """Explains an error that came out of the pipeline: the reader's own, else what ``feed`` did.

        Args:
            error: as the pipeline raised it.
            shown: takes the framework's frames out of it.
            at: the records that it is about, where that is known better than what is being read.
        """
        if isinstance(self._error, ElasticDLError):
            return self._error
        if isinstance(self._error, OSError):
            place = described(at or self._looking_at())
            return DataError(f"{place}: {self._error}", fix="make the data readable to the workers")
        cause = self._error if isinstance(self._error, Exception) else shown(error)
        where = ""
        # What a framework works on was read some time ago: any record of the task may be meant.
        with contextlib.suppress(DataError):
            for shard in at or self._task_ranges():
                if self._module.feed is not None:
                    where = where or self._reader.locate_value(shard, f"{error} {cause}")
                elif (known := self._reader.explain_unreadable(shard)) is not None:
                    return known
        where = where or described(at or self._looking_at())
        try:
            with self._module.guard(f"feed, on {where},"):
                raise cause
        except UserCodeError as explained:
            return explained
        raise AssertionError("the guard turns every exception into a UserCodeError")

    def _task_ranges(self) -> Sequence[Shard]:
        if self.shard is None:
            return ()
        shard, reading = self.shard, self._reading
        return (shard,) if reading is None else reading.records(shard.start, shard.end)

    def _records(self, shard: Shard, size: int, own: _Pass) -> Iterator[list[Record]] | Iterator[Columns]:
        tabular = self._reader if self._by_columns and isinstance(self._reader, GroupedReader) else None
        if self._reading is None:
            return self._reader.read_batches(shard, size) if tabular is None else tabular.column_batches(shard, size)
        if tabular is not None and isinstance(self._reading, MixedReading):
            return self._mixed_columns(tabular, shard, self._reading, size)

        def look(ranges: Callable[[], Sequence[Shard]]) -> None:
            self._looking_at = ranges

        def pass_over(records: int) -> None:
            own.passed_over += records

        return self._shuffled.read_batches(shard, self._reading, size, look, pass_over)

    def _mixed_columns(
        self, reader: GroupedReader, shard: Shard, reading: MixedReading, size: int
    ) -> Iterator[Columns]:
        """The rows at the positions of a shard, many of which are read at once."""
        step = size * max(1, _READ_ROWS // size)
        for start in range(shard.start, shard.end, step):
            end = min(start + step, shard.end)
            self._looking_at = functools.partial(reading.records, start, end)
            numbers = np.array(reading.numbers_at(start, end), np.int64)
            order = np.argsort(numbers)
            mixed = reader.read_columns(_located(reading, numbers[order]), order)
            for at in range(0, len(order), size):
                yield {name: values[at : at + size] for name, values in mixed.items()}


def _located(reading: MixedReading, numbers: npt.NDArray[np.int64]) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """``MixedReading.located`` of an array, without an object for each number."""
    places, low = [], 0
    for source, base in zip(reading.sources, reading.bases, strict=True):
        high = int(np.searchsorted(numbers, base + source.records))
        if low < high:
            places.append((source.name, numbers[low:high] + (source.start - base)))
        low = high
    return places
