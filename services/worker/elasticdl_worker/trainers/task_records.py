"""The raw records of one task after the other, as a pipeline of any framework reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from elasticdl.data import DataReader, Shard
from elasticdl.data.reader import Record
from elasticdl_core.errors import DataError, ElasticDLError, UserCodeError
from elasticdl_core.shuffling import Reading, described
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_worker.trainers.shuffled import ShuffledRecords, require_all
from elasticdl_worker.user_code import ModelModule, guarded

T = TypeVar("T")


class TaskRecords:
    """The records of the present task: counts what the reader passed over, and explains what went wrong.

    Args:
        reader: reads the records.
        module: the user's module.

    Attributes:
        shard: the present one; None before the first.
    """

    def __init__(self, reader: DataReader, module: ModelModule) -> None:
        self._reader = reader
        self._shuffled = ShuffledRecords(reader)
        self._module = module
        self._reading: Reading | None = None
        self._looking_at: Sequence[Shard] = ()
        self._error: BaseException | None = None
        self._skipped_before = 0
        self._passed_over = 0
        self.shard: Shard | None = None

    def begin(self, shard: Shard, reading: Reading | None = None) -> None:
        """Begins a task.

        Args:
            shard: its records, or their positions.
            reading: where the records of the positions lie, if they are shuffled.
        """
        self.shard, self._reading, self._error = shard, reading, None
        self._looking_at = (shard,)
        self._skipped_before, self._passed_over = self._reader.skipped_records, 0

    def batches(self, size: int, convert: Callable[[list[Record]], T]) -> Iterator[T]:
        """The records of the present task, ``size`` at a time.

        Args:
            size: records in a batch; the last may have fewer.
            convert: makes of a batch what is given; what it raises counts as the reader's.

        Raises:
            DataError: the data cannot be read, or the reader gave fewer records or more.
            UserCodeError: the user's reader raised.
        """
        shard = self.shard
        if shard is None:
            return
        seen, self._passed_over, self._skipped_before = 0, 0, self._reader.skipped_records
        try:
            with guarded("the data reader", self._module.roots):
                for records in self._records(shard, size):
                    seen += len(records)
                    yield convert(records)
            require_all(shard, seen, self.skipped)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._error = error
            raise

    @property
    def skipped(self) -> int:
        """Records of the present task that the reader passed over so far."""
        if self._reading is not None:
            return self._passed_over
        return self._reader.skipped_records - self._skipped_before

    @property
    def skips(self) -> Skips:
        """The same, with an example."""
        return Skips.of(SkipReason.CORRUPT, self.skipped, self._reader.skipped_example)

    def explain(
        self,
        error: Exception,
        shown: Callable[[Exception], Exception] = lambda raised: raised,
        at: Sequence[Shard] = (),
    ) -> ElasticDLError:
        """What to tell of an error that came out of the pipeline: the reader's own, else what ``feed`` did.

        Args:
            error: as the pipeline raised it.
            shown: takes the framework's frames out of it.
            at: the records that it is about, where that is known better than what is being read.
        """
        where = described(at or self._looking_at)
        if isinstance(self._error, ElasticDLError):
            return self._error
        if isinstance(self._error, OSError):
            return DataError(f"{where}: {self._error}", fix="make the data readable to the workers")
        if self._module.feed is None:
            for shard in self._looking_at:
                if (known := self._reader.explain_unreadable(shard)) is not None:
                    return known
        cause = self._error if isinstance(self._error, Exception) else shown(error)
        try:
            with self._module.guard(f"feed, on {where},"):
                raise cause
        except UserCodeError as explained:
            return explained
        raise AssertionError("the guard turns every exception into a UserCodeError")

    def _records(self, shard: Shard, size: int) -> Iterator[list[Record]]:
        if self._reading is None:
            return self._reader.read_batches(shard, size)

        def look(ranges: Sequence[Shard]) -> None:
            self._looking_at = ranges

        def pass_over(records: int) -> None:
            self._passed_over += records

        return self._shuffled.read_batches(shard, self._reading, size, look, pass_over)
