"""Reading in random order: blocks of 8 to 512 records against the order of the data, for each format.

./dev bench shuffling [--quick] [--records 200000] [--repeats 5]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import Report, Sample, interleaved, parse
from elasticdl.data import DataReader, Shard, create_data_reader, recordio, tfrecord
from elasticdl_core.shuffling import RecordOrder, cut
from elasticdl_worker.trainers.shuffled import ShuffledRecords

TASK, MINIBATCH = 512, 64
FORMATS = ("tfrecord", "recordio", "recordio-none", "csv")
BLOCKS = (8, 16, 32, 64, 512)
DEFAULT = 32
GOAL_US = 3.0
ABOUT = """\
A worker's reading of {tasks} tasks of {task} records from files of {records:,} records of {size} bytes, in
minibatches of {batch}: in the order of the data, and with records shuffled in blocks of several lengths ({default}
is the default for such tasks). Time is the reading thread's on the processor; the file is in the page cache.
RecordIO has chunks of 128 KiB, compressed with snappy or, as *recordio-none*, not at all; the reader keeps 64 MiB of
decompressed chunks, less than the file has. A ratio is the shuffled time over the unshuffled one, the median over
{repeats} rounds of the sides in turns; the spread is half the distance of the quartiles over the median."""


def write(kind: str, folder: Path, records: int, size: int) -> str:
    """A file of records that do not compress well."""
    path = folder / f"data.{kind.partition('-')[0]}"
    random = np.random.default_rng(1)
    if kind == "csv":
        numbers = random.integers(0, 10**6, (records, size // 7))
        np.savetxt(path, numbers, fmt="%d", delimiter=",")
        return str(path)
    compressor = "none" if kind == "recordio-none" else "snappy"
    made = tfrecord.TFRecordWriter(path) if kind == "tfrecord" else recordio.Writer(path, compressor=compressor)
    with made as writer:
        for _ in range(records):
            writer.write(random.bytes(size))
    return str(path)


def consumer(reader: DataReader, parts: list[Shard], chosen: list[int], block: int | None) -> Callable[[], None]:
    """Reads some tasks, in the order of the data where there is no block."""
    order = RecordOrder(seed=1, block=block or 0)
    order.extend(parts)

    def run() -> None:
        for index in chosen:
            part = parts[index]
            if block is None:
                batches = reader.read_batches(part, MINIBATCH)
            else:
                reading = order.reading(1, index, part.start, part.end)
                batches = ShuffledRecords(reader).read_batches(part, reading, MINIBATCH)
            assert sum(map(len, batches)) == part.records

    return run


def compare(kind: str, folder: Path, records: int, size: int, tasks: int, repeats: int) -> dict[str, Sample]:
    """Seconds of all sides for one format."""
    params = {} if kind.startswith("recordio") else {"index_cache": "off"}
    reader = create_data_reader(write(kind, folder, records, size), TASK, params)
    parts = cut(reader.create_shards(), TASK)
    chosen = [int(index) for index in np.linspace(0, len(parts) - 1, tasks)]
    sides: dict[str, Callable[[], object]] = {"straight": consumer(reader, parts, chosen, None)}
    sides |= {str(block): consumer(reader, parts, chosen, block) for block in BLOCKS}
    return interleaved(sides, repeats, clock=time.thread_time)


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse(__doc__, records=200_000, repeats=5)
    records, size, tasks = (20_000 if options.quick else options.records), 400, 20
    about = ABOUT.format(
        tasks=tasks, task=TASK, records=records, size=size, batch=MINIBATCH, default=DEFAULT, repeats=options.repeats
    )
    report = Report("shuffling", "Reading in random order", about)
    with tempfile.TemporaryDirectory() as folder:
        for kind in FORMATS:
            found = compare(kind, Path(folder), records, size, tasks, options.repeats)
            straight = found.pop("straight")
            count = tasks * TASK
            report.text(f"## {kind}")
            rows = [["in order", straight.median / count * 1e6, 1.0, straight.spread]]
            rows += [[name, one.median / count * 1e6, one.over(straight), one.spread] for name, one in found.items()]
            report.table(["block", "µs a record", "ratio", "spread"], rows)
            chosen = found[str(DEFAULT)]
            extra = (chosen.median - straight.median) / count * 1e6
            report.target(f"extra_us_{kind.replace('-', '_')}", extra, GOAL_US, at_least=False)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
