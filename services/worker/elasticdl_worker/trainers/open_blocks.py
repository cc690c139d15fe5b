"""Reads single records out of all over the data, or the blocks that they lie in, whichever takes less."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from elasticdl.data import DataReader, Shard
from elasticdl.data.reader import Record
from elasticdl_core.errors import DataError
from elasticdl_core.mixed_order import MixedReading

SKIPPED = object()
"""In the place of a record that the reader passed over as corrupt."""
_TAKEN = object()
KEPT_BYTES = 128 << 20
"""What is kept of blocks: without an index, records would else be read one by one."""
_POOLS = 2
_BETWEEN = 7
"""Records between two wanted ones that are read with them at most: never more than eight times what is wanted."""
_RUN = 64
"""Records of a range that is read for the wanted ones in it, at most."""
_AT_ONCE = 256
"""Records that are read at a time, about, where some of them are not wanted."""


class OpenBlocks:
    """Reads the records of numbers, and keeps what it read beside them for the next ones.

    A reader that reads by index is asked for single records. Else their blocks are read whole and kept until their
    records are asked for: who has all tasks to itself reads each block once. Workers that share them each read all
    blocks, so several of them compare: both ways are tried, and the one is taken that takes less time a record. The
    records and their order are the same by either.

    Args:
        reader: reads records.
        kept_bytes: how much is kept, about; the records of further blocks are read one by one, or with what lies
            between two of them where that takes less than to begin once more.
        clock: seconds that go on.
    """

    def __init__(
        self, reader: DataReader, kept_bytes: int = KEPT_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._most = kept_bytes
        self._clock = clock
        self._pools: OrderedDict[str, dict[int, list[Record]]] = OrderedDict()
        self._held = self._record_bytes = 0
        self._single_s = self._whole_s = self._begin_s = 0.0

    def take(self, reading: MixedReading, numbers: Sequence[int]) -> list[Record]:
        """The records of some numbers, in their order; each is given once, for whoever gets it may change it.

        Raises:
            DataError: the data is missing, unreadable, or shorter than the numbers say.
        """
        if self._reader.reads_by_index:
            alone = self._read_singles(reading, numbers)
            return [alone[number] for number in numbers]
        kept, block = self._kept(reading.pool), reading.block
        if self._prefers_blocks(reading):
            unread = {number // block for number in numbers}.difference(kept)
            if unread:
                self._read_blocks(reading, sorted(unread), kept)
        found = [kept[number // block][number % block] if number // block in kept else _TAKEN for number in numbers]
        missing = [number for number, record in zip(numbers, found, strict=True) if record is _TAKEN]
        self._held -= len(found) - len(missing)
        for number in numbers:
            if number // block in kept:
                kept[number // block][number % block] = _TAKEN
        if missing:
            singles = self._read_singles(reading, missing)
            found = [singles[n] if one is _TAKEN else one for n, one in zip(numbers, found, strict=True)]
        return found

    def _kept(self, pool: str) -> dict[int, list[Record]]:
        """The kept part of a pool, by the block; that before the last one is given up."""
        if pool not in self._pools:
            while len(self._pools) >= _POOLS:
                _, old = self._pools.popitem(last=False)
                self._held -= sum(one is not _TAKEN for records in old.values() for one in records)
            self._pools[pool] = {}
        return self._pools[pool]

    def _prefers_blocks(self, reading: MixedReading) -> bool:
        if reading.readers <= 1 or not self._whole_s:
            return True
        return self._single_s > 0 and self._whole_s * reading.readers < self._single_s

    def _read_blocks(self, reading: MixedReading, blocks: list[int], kept: dict[int, list[Record]]) -> None:
        """Keeps the records of blocks, as far as there is room."""
        if not self._record_bytes:
            self._read_whole(reading, blocks[:1], kept)
            del blocks[0]
        room = max(0, self._most // self._record_bytes - self._held) // reading.block
        self._read_whole(reading, blocks[:room], kept)

    def _read_whole(self, reading: MixedReading, blocks: Sequence[int], kept: dict[int, list[Record]]) -> None:
        pieces = [piece for block in blocks for piece in reading.pieces(block)]
        if not pieces:
            return
        began, size = self._clock(), reading.block
        records = read_ranges(self._reader, [piece for _, piece in pieces])
        self._whole_s = (self._clock() - began) / len(records)
        self._held += len(records)
        sample = records[::size]
        self._record_bytes = max(self._record_bytes, sum(map(weigh, sample)) // len(sample), 1)
        at = 0
        for first, piece in pieces:
            place = kept.setdefault(first // size, [_TAKEN] * size)
            place[first % size : first % size + piece.records] = records[at : at + piece.records]
            at += piece.records

    def _read_singles(self, reading: MixedReading, numbers: Sequence[int]) -> dict[int, Record]:
        """Reads single records, and what lies between them where that takes less than to begin once more."""
        wanted, began = sorted(numbers), self._clock()
        places = list(reading.located(wanted))
        known = self._whole_s > 0 and not self._reader.gathers
        between = min(_BETWEEN, int(self._begin_s / self._whole_s)) if known else 0
        runs = list(_runs(places, between)) if between else []
        records = _read_runs(self._reader, runs) if runs else _read_alone(self._reader, places)
        begun, read = len(runs) or len(wanted), sum(shard.records for shard, _ in runs) or len(wanted)
        took = self._clock() - began
        self._single_s = took / len(wanted)
        self._begin_s = max(0.0, (took - read * self._whole_s) / begun)
        return dict(zip(wanted, records, strict=True))


def _read_alone(reader: DataReader, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
    skipped = reader.skipped_records
    records = reader.read_places(places)
    if reader.skipped_records > skipped or len(records) != sum(len(numbers) for _, numbers in places):
        return read_ranges(reader, [Shard(name, at, at + 1) for name, numbers in places for at in numbers])
    return records


_Run: TypeAlias = tuple[Shard, list[int]]
"""A range, and the numbers of the wanted records in it."""


def _runs(places: Sequence[tuple[str, Sequence[int]]], between: int) -> Iterator[_Run]:
    """Ranges that hold the records of places, and at most so many others between two of them."""
    for name, numbers in places:
        run = [numbers[0]]
        for at in numbers[1:]:
            if at - run[-1] > between + 1 or at - run[0] >= _RUN:
                yield Shard(name, run[0], run[-1] + 1), run
                run = []
            run.append(at)
        yield Shard(name, run[0], run[-1] + 1), run


def _read_runs(reader: DataReader, runs: Sequence[_Run]) -> list[Record]:
    """The wanted records of ranges; not many of the others at a time."""
    records: list[Record] = []
    while runs:
        ends = itertools.accumulate(shard.records for shard, _ in runs)
        some = runs[: max(1, sum(end <= _AT_ONCE for end in ends))]
        read = iter(read_ranges(reader, [shard for shard, _ in some]))
        for shard, wanted in some:
            whole = list(itertools.islice(read, shard.records))
            records += [whole[at - shard.start] for at in wanted]
        runs = runs[len(some) :]
    return records


def weigh(record: Record) -> int:
    """About how many bytes of memory a record takes."""
    if isinstance(record, bytes | str):
        return len(record) + 50
    if isinstance(record, dict):
        return sum(map(weigh, record.values())) + 100
    if isinstance(record, list | tuple):
        return sum(map(weigh, record)) + 60
    if isinstance(size := getattr(record, "nbytes", None), int):
        return size + 100
    try:
        return len(pickle.dumps(record)) + 100
    except Exception:  # an object of the user's; who knows how large it is
        return KEPT_BYTES


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


def read_ranges(reader: DataReader, ranges: Sequence[Shard]) -> list[Record]:
    """The records of ranges, ``SKIPPED`` in the place of each that the reader passed over."""
    skipped = reader.skipped_records
    records = reader.read_ranges(ranges)
    if reader.skipped_records == skipped and len(records) == sum(one.records for one in ranges):
        return records
    if len(ranges) > 1:  # each record has to be in its place, and an error names the range: it is found by halves
        half = len(ranges) // 2
        return read_ranges(reader, ranges[:half]) + read_ranges(reader, ranges[half:])
    return [record for one in ranges for record in _all_of(reader, one)]


def _all_of(reader: DataReader, shard: Shard) -> list[Record]:
    """The records of a range, each in its place, also one that the reader passes over as corrupt."""
    skipped = reader.skipped_records
    records = [record for batch in reader.read_batches(shard, max(shard.records, 1)) for record in batch]
    missing = reader.skipped_records - skipped
    require_all(shard, len(records), missing)
    if missing and shard.records > 1:
        return read_ranges(reader, [Shard(shard.name, at, at + 1) for at in range(shard.start, shard.end)])
    return records or [SKIPPED]
