"""Reading in random order: how fast and how well mixed, for each format.

./dev bench shuffling [--quick] [--records 200000] [--repeats 5]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Report, Sample, interleaved, parse
from benchmarks.harness.order_quality import CLASSES, Numbers, OrderQuality, order_quality
from elasticdl.data import DataReader, Shard, create_data_reader, recordio, tfrecord
from elasticdl.data.reader import Record
from elasticdl_core.shuffling import RecordOrder, cut
from elasticdl_worker.trainers.shuffled import ShuffledRecords

TASK, MINIBATCH, SIZE = 512, 64, 400
BEFORE, MIXED = "blocks", "mixed"
FORMATS = ("tfrecord", "recordio", "recordio-none", "csv", "csv-store", "custom", "custom-by-index")
QUALITY, SPEED = 1.2, 0.9
ABOUT = """\
A worker's reading of an epoch of {records:,} records of {size} bytes in tasks of {task}, in minibatches of {batch}.
The data are sorted by class ({classes} classes), as a folder for each class is. The sides are *in order* of the data;
*blocks*: a task is the records of 16 blocks of 32 in random order, which was the default before single records were
mixed and is what `--shuffle_block 32` gives; *mixed*, the default; and blocks of 512, a whole task.

Time is the reading thread's on the processor, for a record; files are in the page cache. *recordio* is compressed
with snappy in chunks of 128 KiB and read in blocks, for not all of it is kept decompressed, *recordio-none* is not;
*csv-store* is the CSV file behind fsspec, in memory; *custom* is a reader of a model module that yields ranges,
*custom-by-index* says `reads_by_index`. Speed is that of a side over that of *blocks*, the median over {repeats}
rounds of the sides in turns; the spread is half the distance of the quartiles over the median.

Quality is the standard deviation of the share of a class in 256 records that follow each other, in a minibatch, and
in 8 minibatches that follow each other, and how many records of a minibatch are from one neighbourhood of 32, each as
a multiple of that of full shuffles, from the records as they were read; *correlation* is that of neighbours' places.
"""
HEADER = (
    "order", "µs a record", "speed", "spread", "256", "minibatch", "8 minibatches", "neighbours", "correlation",
)  # fmt: skip


class Yields:
    """A reader as a model module has it: yields the records of a range."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records

    def create_shards(self) -> dict[str, tuple[int, int]]:
        """One shard."""
        return {"records": (0, len(self.records))}

    def read_records(self, task: Any) -> Iterator[bytes]:
        """The records of a range."""
        for number in range(task.start, task.end):
            yield self.records[number]


class Indexed(Yields):
    """One that says that it reads by index."""

    reads_by_index = True


def make_reader(kind: str, folder: Path, records: int) -> DataReader:
    """The reader of records that do not compress well, and that begin with their number."""
    random = np.random.default_rng(1)
    if kind.startswith("csv"):
        path = folder / "data.csv"
        columns = random.integers(0, 10**6, (records, SIZE // 7))
        columns[:, 0] = np.arange(records)
        np.savetxt(path, columns, fmt="%d", delimiter=",")
        params = {"index_cache": "off", "with_header": False}
        if kind == "csv":
            return create_data_reader(str(path), TASK, params)
        import fsspec

        with fsspec.open("memory://bench/data.csv", "wb") as file:
            file.write(path.read_bytes())
        return create_data_reader("memory://bench/data.csv", TASK, params)
    made = (number.to_bytes(8, "little") + random.bytes(SIZE - 8) for number in range(records))
    if kind.startswith("custom"):
        return create_data_reader("", TASK, custom=(Indexed if kind == "custom-by-index" else Yields)(list(made)))
    path = folder / f"data.{kind.partition('-')[0]}"
    compressor = "none" if kind == "recordio-none" else "snappy"
    writer = tfrecord.TFRecordWriter(path) if kind == "tfrecord" else recordio.Writer(path, compressor=compressor)
    with writer as file:
        for record in made:
            file.write(record)
    return create_data_reader(str(path), TASK, {} if kind.startswith("recordio") else {"index_cache": "off"})


@dataclass(frozen=True)
class Epochs:
    """Reads whole epochs of a reader's records."""

    reader: DataReader
    parts: Sequence[Shard]

    def read(self, order: RecordOrder | None, take: Callable[[list[Record]], None] = lambda _: None) -> None:
        """One epoch; without an order that of the data."""
        shuffled, count = ShuffledRecords(self.reader), 0
        for index, part in enumerate(self.parts):
            if order is None:
                batches = self.reader.read_batches(part, MINIBATCH)
            else:
                batches = shuffled.read_batches(part, order.reading(1, index, part.start, part.end), MINIBATCH)
            for batch in batches:
                count += len(batch)
                take(batch)
        assert count == sum(part.records for part in self.parts)

    def order(self, block: int = 0, *, mixed: bool | None = None) -> RecordOrder:
        """An order of the parts."""
        made = RecordOrder(1, block, mixed=mixed)
        made.extend(self.parts)
        return made

    def numbers(self, order: RecordOrder) -> Numbers:
        """The numbers of the records, in the order in which they came."""
        found: list[int] = []
        self.read(order, lambda batch: found.extend(map(_number, batch)))
        return np.array(found)


def _number(record: Record) -> int:
    return int(record[0]) if isinstance(record, list) else int.from_bytes(record[:8], "little")


def compare(kind: str, folder: Path, records: int, repeats: int) -> tuple[dict[str, Sample], dict[str, OrderQuality]]:
    """Seconds of all sides for one format, and the quality of the orders."""
    reader = make_reader(kind, folder, records)
    epochs = Epochs(reader, cut(reader.create_shards(), TASK))
    orders = {BEFORE: epochs.order(mixed=False), MIXED: epochs.order(), "blocks of 512": epochs.order(512)}
    sides: dict[str, Callable[[], object]] = {"in order": lambda: epochs.read(None)}
    sides |= {name: lambda one=one: epochs.read(one) for name, one in orders.items()}  # type: ignore[misc]
    quality = {name: order_quality([epochs.numbers(one)], MINIBATCH) for name, one in orders.items()}
    return interleaved(sides, repeats, clock=time.thread_time), quality


def measures(found: OrderQuality | None) -> list[float | str]:
    """The columns of an order's quality."""
    if found is None:
        return [""] * 5
    return [found.in_256, found.in_minibatch, found.in_8_minibatches, found.neighbours, found.correlation]


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse(__doc__, records=200_000, repeats=5)
    records = 20_000 if options.quick else options.records
    about = ABOUT.format(
        records=records, size=SIZE, task=TASK, batch=MINIBATCH, classes=CLASSES, repeats=options.repeats
    )
    report = Report("shuffling", "Reading in random order", about)
    with tempfile.TemporaryDirectory() as folder:
        for kind in FORMATS:
            times, quality = compare(kind, Path(folder), records, options.repeats)
            before = times[BEFORE]
            report.text(f"## {kind}")
            rows = [
                [name, one.median / records * 1e6, before.over(one), one.spread, *measures(quality.get(name))]
                for name, one in times.items()
            ]
            report.table(HEADER, rows)
            word = kind.replace("-", "_")
            report.target(f"order_quality_{word}", quality[MIXED].worst, QUALITY, at_least=False)
            report.target(f"speed_{word}", before.over(times[MIXED]), SPEED)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
