"""Reads the records of a task in the order that the plan gave them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from elasticdl.data import DataReader, Shard
from elasticdl.data.reader import Record
from elasticdl_core.errors import DataError
from elasticdl_core.shuffling import Reading, Window

_SKIPPED = object()
_TAKEN = object()


def _ignore(_: object) -> None:
    """Ignores the call."""


class ShuffledRecords:
    """Reads records at positions, and keeps what it read of the last window and nobody has taken yet.

    Who reads a task in small parts (a member of a group, a microbatch at a time) takes a window in many pieces: it is
    read once for all of them.

    Args:
        reader: reads ranges of records; any reader can.
    """

    def __init__(self, reader: DataReader) -> None:
        self._reader = reader
        self._ranges: Sequence[Shard] = ()
        self._left: list[Record] = []
        # A dataset that was given up may still read ahead while the next one reads.
        self._lock = threading.Lock()

    def read_batches(
        self,
        shard: Shard,
        reading: Reading,
        size: int,
        on_read: Callable[[Sequence[Shard]], None] = _ignore,
        on_skipped: Callable[[int], None] = _ignore,
    ) -> Iterator[list[Record]]:
        """The records at the positions of a shard, as lists of ``size`` records; only the last may be shorter.

        Args:
            shard: the positions.
            reading: where their records lie.
            size: records in a list.
            on_read: called with the ranges that are read next.
            on_skipped: called with how many of the positions hold a record that the reader skipped as corrupt. The
                reader's own count says more: it is of all that was looked at.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the ranges say.
        """
        held: list[Record] = []
        for window in reading.windows(shard.start, shard.end):
            on_read(window.ranges)
            chosen = self._take(window)
            good = [record for record in chosen if record is not _SKIPPED]
            on_skipped(len(chosen) - len(good))
            held += good
            whole = len(held) - len(held) % size
            for position in range(0, whole, size):
                yield held[position : position + size]
            held = held[whole:]
        if held:
            yield held

    def _take(self, window: Window) -> list[Record]:
        """The records of a window in their order; each is given once, for whoever gets it may change it."""
        with self._lock:
            if window.ranges != self._ranges or any(self._left[index] is _TAKEN for index in window.order):
                self._ranges, self._left = (), []  # not two windows at once
                self._left = _read(self._reader, window.ranges)
                self._ranges = window.ranges
            chosen = [self._left[index] for index in window.order]
            for index in window.order:
                self._left[index] = _TAKEN
            return chosen


def require_all(shard: Shard, seen: int, skipped: int) -> None:
    """Checks that every record of a range was either read or skipped.

    Raises:
        DataError: the reader gave more records or fewer.
    """
    if seen + skipped != shard.records:
        raise DataError(
            f"the reader gave {seen} records for the range {shard.start} to {shard.end} of {shard.name}, "
            f"which has {shard.records}",
            fix="let read_records(task) yield exactly the records task.start to task.end",
        )


def _read(reader: DataReader, ranges: Sequence[Shard]) -> list[Record]:
    skipped = reader.skipped_records
    records = reader.read_ranges(ranges)
    if reader.skipped_records > skipped or len(records) != sum(one.records for one in ranges):
        # Range by range: each record has to be in its place, and an error names the range.
        records = [record for one in ranges for record in _all_of(reader, one)]
    return records


def _all_of(reader: DataReader, shard: Shard) -> list[Record]:
    """The records of a range, each in its place, also one that the reader passes over as corrupt."""
    skipped = reader.skipped_records
    records = [record for batch in reader.read_batches(shard, max(shard.records, 1)) for record in batch]
    missing = reader.skipped_records - skipped
    require_all(shard, len(records), missing)
    if missing and shard.records > 1:
        singles = (Shard(shard.name, number, number + 1) for number in range(shard.start, shard.end))
        return [record for single in singles for record in _all_of(reader, single)]
    return records or [_SKIPPED]
