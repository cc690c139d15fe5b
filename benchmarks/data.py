"""A shuffled Parquet file as minibatches: as columns, as records, and as pyarrow alone reads it in order.

./dev bench data [--quick] [--records 400000] [--repeats 5]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Report, interleaved, parse
from elasticdl.data import create_data_reader
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.trainers.task_records import TaskRecords
from elasticdl_worker.user_code import ModelModule

TASK, MINIBATCH, GROUP = 4096, 512, 50_000
IDS, NUMBERS = 10, 13
RAW, COLUMNS, RECORDS = "pyarrow, in order", "columns, shuffled", "records, shuffled"
ABOUT = """\
Clicks: {ids} whole numbers, {numbers} floats and a label in each of {records:,} rows, in row groups of {group:,}. An
epoch in minibatches of {batch}, to numpy arrays; *pyarrow* is `ParquetFile.iter_batches`. Time is all of the process'
threads' on the processor, files are in the page cache; the ratio is the rows a second over those of pyarrow, the
median over {repeats} rounds of the sides in turns. Ours is shuffled, and includes the order."""


def raw(path: Path) -> int:
    """Rows as pyarrow gives them."""
    rows = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(MINIBATCH):
            rows += len(
                {name: column.to_numpy() for name, column in zip(batch.schema.names, batch, strict=True)}["y"]
            )
    return rows


def ours(path: Path, *, columns: bool) -> int:
    """An epoch of a worker that is alone."""
    reader = create_data_reader(str(path))
    shards = list(reader.create_shards())
    parts = joined_parts(shards, TASK)
    order = RecordOrder(7, 0, grain=reader.grain)
    order.extend(parts, shards)
    records, rows = TaskRecords(reader, ModelModule(path, (path.parent,), lambda: None)), 0
    for index, part in enumerate(parts):
        records.begin(part, order.reading(0, index, part.start, part.end))
        if columns:
            rows += sum(len(one["y"]) for one in records.columns(MINIBATCH))
        else:
            rows += sum(len(one) for one in records.batches(MINIBATCH, list))
    return rows


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse(__doc__, records=400_000, repeats=5)
    count = 40_000 if options.quick else options.records
    about = ABOUT.format(
        ids=IDS, numbers=NUMBERS, records=count, group=GROUP, batch=MINIBATCH, repeats=options.repeats
    )
    report = Report("data", "Reading tables", about)
    with tempfile.TemporaryDirectory() as folder:
        path, drawing = Path(folder) / "clicks.parquet", np.random.default_rng(1)
        ids = {f"i{number}": drawing.integers(0, 10**6, count) for number in range(IDS)}
        numbers = {f"x{number}": drawing.random(count, np.float32) for number in range(NUMBERS)}
        pq.write_table(pa.table({**ids, **numbers, "y": drawing.integers(0, 2, count)}), path, GROUP)
        sides = {
            RAW: lambda: raw(path),
            COLUMNS: lambda: ours(path, columns=True),
            RECORDS: lambda: ours(path, columns=False),
        }
        if any(side() != count for side in sides.values()):
            raise AssertionError("a side did not read all rows")
        times = interleaved(sides, options.repeats, clock=time.process_time)
    header = ["side", "rows/s", "over pyarrow", "spread"]
    report.table(
        header, [[name, count / one.median, times[RAW].over(one), one.spread] for name, one in times.items()]
    )
    report.target("parquet_columns_over_pyarrow", times[RAW].over(times[COLUMNS]), 0.9)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
