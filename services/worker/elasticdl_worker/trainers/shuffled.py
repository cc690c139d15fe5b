"""Reads the records of a task in the order that the plan gave them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from elasticdl.data import DataReader, Shard
from elasticdl.data.reader import Record
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shuffling import BlockReading, Reading, Window
from elasticdl_worker.trainers.open_blocks import SKIPPED, OpenBlocks, read_ranges

_TAKEN = object()
_READ_RECORDS = 256
"""Single records that are read at a time, about: sorted by place, and each file looked up once."""


def _ignore(_: object) -> None:
    """Ignores the call."""


class ShuffledRecords:
    """Reads records at positions, and keeps what it read beside them and nobody has taken yet.

    Who reads a task in small parts (a member of a group, a microbatch at a time) takes a window in many pieces: it is
    read once for all of them. Where single records are mixed, there are no windows: see ``OpenBlocks``.

    Args:
        reader: reads ranges of records; any reader can.
    """

    def __init__(self, reader: DataReader) -> None:
        self._reader = reader
        self._ranges: Sequence[Shard] = ()
        self._left: list[Record] = []
        self._blocks = OpenBlocks(reader)
        # A dataset that was given up may still read ahead while the next one reads.
        self._lock = threading.Lock()

    def read_batches(
        self,
        shard: Shard,
        reading: Reading,
        size: int,
        on_read: Callable[[Callable[[], Sequence[Shard]]], None] = _ignore,
        on_skipped: Callable[[int], None] = _ignore,
    ) -> Iterator[list[Record]]:
        """The records at the positions of a shard, as lists of ``size`` records; only the last may be shorter.

        Args:
            shard: the positions.
            reading: where their records lie.
            size: records in a list.
            on_read: called with what tells the ranges that are read next.
            on_skipped: called with how many of the positions hold a record that the reader skipped as corrupt. The
                reader's own count says more: it is of all that was looked at.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the ranges say.
        """
        held: list[Record] = []
        if isinstance(reading, MixedReading):
            pieces = self._mixed(shard, reading, size, on_read)
        else:
            pieces = self._in_windows(shard, reading, on_read)
        for chosen in pieces:
            good = [record for record in chosen if record is not SKIPPED]
            on_skipped(len(chosen) - len(good))
            held += good
            whole = len(held) - len(held) % size
            for position in range(0, whole, size):
                yield held[position : position + size]
            held = held[whole:]
        if held:
            yield held

    def _in_windows(
        self, shard: Shard, reading: BlockReading, on_read: Callable[[Callable[[], Sequence[Shard]]], None]
    ) -> Iterator[list[Record]]:
        for window in reading.windows(shard.start, shard.end):
            on_read(functools.partial(tuple, window.ranges))
            yield self._take(window)

    def _mixed(
        self,
        shard: Shard,
        reading: MixedReading,
        size: int,
        on_read: Callable[[Callable[[], Sequence[Shard]]], None],
    ) -> Iterator[list[Record]]:
        step = size * max(1, _READ_RECORDS // size)
        for start in range(shard.start, shard.end, step):
            end = min(start + step, shard.end)
            on_read(functools.partial(reading.records, start, end))
            with self._lock:
                records = self._blocks.take(reading, reading.numbers_at(start, end))
            yield records

    def _take(self, window: Window) -> list[Record]:
        """The records of a window in their order; each is given once, for whoever gets it may change it."""
        with self._lock:
            if window.ranges != self._ranges or any(self._left[index] is _TAKEN for index in window.order):
                self._ranges, self._left = (), []  # not two windows at once
                self._left = read_ranges(self._reader, window.ranges)
                self._ranges = window.ranges
            chosen = [self._left[index] for index in window.order]
            for index in window.order:
                self._left[index] = _TAKEN
            return chosen
