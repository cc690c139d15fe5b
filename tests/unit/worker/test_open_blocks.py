"""Single records, or the blocks that they lie in: the same records, by what takes less."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import Shard, create_data_reader, tfrecord
from elasticdl_core.errors import DataError
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shuffling import RecordOrder, cut
from elasticdl_worker.trainers.open_blocks import KEPT_BYTES, SKIPPED, OpenBlocks, read_ranges, weigh

pytestmark = pytest.mark.unit

RECORDS, TASK = 6400, 320


class Clock:
    """Seconds that go on as the reader says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A user's reader: beginning takes ``begin_s``, each record ``record_s``."""

    def __init__(self, clock: Clock, begin_s: float = 1.0, record_s: float = 1.0, records: int = RECORDS) -> None:
        self.clock, self.begin_s, self.record_s, self.records = clock, begin_s, record_s, records
        self.asked: list[tuple[int, int]] = []

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {"a": (0, self.records)}

    def read_records(self, task: Any) -> Iterator[int]:
        self.asked.append((task.start, task.end))
        self.clock.now += self.begin_s + self.record_s * (task.end - task.start)
        yield from range(task.start, task.end)

    @property
    def read(self) -> int:
        """Records that were read."""
        return sum(end - start for start, end in self.asked)


class Indexed(Source):
    """One that says that it reads by index."""

    reads_by_index = True


def readings(workers: int = 1, records: int = RECORDS) -> list[MixedReading]:
    parts = cut(create_data_reader("", custom=Source(Clock(), records=records)).create_shards(), TASK)
    order = RecordOrder(1)
    order.extend(parts)
    found = [order.reading(1, index, part.start, part.end, workers) for index, part in enumerate(parts)]
    assert all(isinstance(one, MixedReading) for one in found)
    return found  # type: ignore[return-value]


def train(source: Source, chosen: Sequence[MixedReading], kept_bytes: int = KEPT_BYTES, step: int = 64) -> list[int]:
    """Reads tasks as a worker does."""
    blocks = OpenBlocks(create_data_reader("", custom=source), kept_bytes, source.clock)
    found: list[int] = []
    for one in chosen:
        for at in range(0, TASK, step):
            found += blocks.take(one, one.numbers[at : at + step])
    assert found == [number for one in chosen for number in one.numbers]
    return found


def test_one_worker_reads_each_block_once() -> None:
    source = Source(Clock())
    train(source, readings())
    assert source.read == RECORDS
    block = readings()[0].block
    assert len(source.asked) <= -(-RECORDS // block) + 1, "as many beginnings as when a task had its own blocks"


def test_a_reader_that_reads_by_index_is_asked_for_the_records_of_a_task_alone() -> None:
    source = Indexed(Clock())
    train(source, readings(workers=4)[::4])
    assert source.read == RECORDS // 4


@pytest.mark.parametrize(("begin_s", "blocks"), [(0.5, False), (200.0, True)])
def test_workers_that_share_the_records_take_what_costs_less(begin_s: float, blocks: bool) -> None:
    """Dear records are read by one worker each; of sources that are slow to begin each worker reads the blocks."""
    source = Source(Clock(), begin_s)
    train(source, readings(workers=4)[::4])
    if blocks:
        assert source.read > 0.8 * RECORDS
        assert len(source.asked) < RECORDS // 8
    else:
        assert source.read < 1.9 * RECORDS / 4, "the first try was of blocks"


def test_no_more_is_kept_than_there_is_room_for() -> None:
    source = Source(Clock())
    small = OpenBlocks(create_data_reader("", custom=source), kept_bytes=500 * weigh(1), clock=source.clock)
    most = 0
    for one in readings():
        assert small.take(one, one.numbers) == list(one.numbers)
        most = max(most, small._held)
    assert most <= 500
    assert source.read < 2 * RECORDS, "what has no room is read alone, not in blocks again and again"


def test_records_without_room_are_read_with_what_lies_between_them_where_beginning_is_dear() -> None:
    """Not one call for each of them, and never more than eight times as many records."""
    calls = {}
    for begin_s in (0.5, 200.0):
        source = Source(Clock(), begin_s)
        train(source, readings(), kept_bytes=1, step=TASK)
        calls[begin_s] = len(source.asked)
        assert source.read < (1.2 if begin_s < 1 else 8) * RECORDS
    assert calls[0.5] > 0.9 * RECORDS
    assert calls[200.0] < 0.75 * calls[0.5]
    dense = Source(Clock(), 200.0, records=2 * TASK)
    train(dense, readings(records=2 * TASK), kept_bytes=1, step=TASK)
    assert max(end - start for start, end in dense.asked) <= 64
    assert len(dense.asked) < 200, "the first task, whose costs were not known, and some ranges"


def test_a_record_between_two_wanted_ones_that_is_not_there_is_named() -> None:
    class Short(Source):
        def read_records(self, task: Any) -> Iterator[int]:
            yield from (number for number in super().read_records(task) if number != bad)

    whole = readings()
    first = sorted(whole[0].numbers)
    bad = next(low + 1 for low, high in itertools.pairwise(first) if high == low + 2)
    source = Short(Clock(), 200.0)
    blocks = OpenBlocks(create_data_reader("", custom=source), 1, source.clock)
    with pytest.raises(DataError, match=r"gave \d+ records for the range \d+ to \d+ of a"):
        for one in whole:
            blocks.take(one, one.numbers)


def test_a_reader_by_index_may_read_many_at_once() -> None:
    class Bulk(Indexed):
        def read_numbers(self, name: str, numbers: Sequence[int]) -> list[int]:
            assert list(numbers) == sorted(set(numbers))
            self.asked.append((0, len(numbers)))
            return list(numbers)

    source = Bulk(Clock())
    train(source, readings(), step=TASK)
    assert len(source.asked) == RECORDS // TASK

    class Short(Bulk):
        def read_numbers(self, name: str, numbers: Sequence[int]) -> list[int]:
            return list(numbers)[:-1]

        def read_records(self, task: Any) -> Iterator[int]:
            yield from ()

    with pytest.raises(DataError, match="gave 0 records for the range"):
        train(Short(Clock()), readings())


def test_records_are_weighed_by_what_they_hold() -> None:
    assert weigh(np.zeros(1000, np.float32)) > 4000
    assert weigh(["a" * 10] * 20) > 20 * 50
    assert weigh({"image": b"x" * 5000, "label": 1}) > 5000
    assert weigh(lambda: 0) == KEPT_BYTES, "nobody knows: none is kept"


@pytest.mark.parametrize("ranges", [[(0, 8)], [(0, 3), (3, 8)], [(4, 7), (1, 2)]])
def test_a_damaged_record_leaves_the_others_in_their_places(ranges: list[tuple[int, int]], tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(tfrecord.encode_record(b"%d" % n) for n in range(8)).replace(b"5", b"x"))
    reader = create_data_reader(str(path), None, {"on_corrupt": "skip"})
    found = read_ranges(reader, [Shard(str(path), start, end) for start, end in ranges])
    assert found == [SKIPPED if n == 5 else b"%d" % n for start, end in ranges for n in range(start, end)]
