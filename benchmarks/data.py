"""Parquet files: shuffled as minibatches, beside pyarrow alone in order; and many of them listed for a plan.

./dev bench data [--quick] [--records 400000] [--repeats 5]
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import resource
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
median over {repeats} rounds of the sides in turns. Ours is shuffled, and includes the order.

A plan is of {files:,} files of {file_rows:,} rows: shards, their states and the grain, in a process of its own, in
the seconds of a clock and with the most memory that the process had."""
FILES, FILE_ROWS = 10_000, 10_000


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


def many_files(folder: Path, count: int) -> None:
    """Writes files of one content, whose columns take little room."""
    folder.mkdir()
    row = {f"i{number}": np.zeros(FILE_ROWS, np.int64) for number in range(IDS)}
    pq.write_table(pa.table({**row, "y": np.zeros(FILE_ROWS, np.int64)}), folder / "0.parquet")
    content = (folder / "0.parquet").read_bytes()
    for number in range(1, count):
        (folder / f"{number}.parquet").write_bytes(content)


def planned(folder: Path) -> tuple[int, float, float]:
    """The rows of a plan as a master makes it, the seconds that took, and the memory of this process in MiB."""
    begun = time.monotonic()
    reader = create_data_reader(str(folder), TASK)
    shards = list(reader.create_shards())
    states = {name: reader.fingerprint(name) for name in {shard.name for shard in shards}}
    assert reader.grain is not None
    assert all(states.values())
    seconds = time.monotonic() - begun
    return sum(shard.records for shard in shards), seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse(__doc__, records=400_000, repeats=5)
    count = 40_000 if options.quick else options.records
    files = 500 if options.quick else FILES
    about = ABOUT.format(
        ids=IDS, numbers=NUMBERS, records=count, group=GROUP, batch=MINIBATCH, repeats=options.repeats,
        files=files, file_rows=FILE_ROWS,
    )  # fmt: skip
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
        many_files(Path(folder) / "many", files)
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            rows, seconds, memory = pool.submit(planned, Path(folder) / "many").result(600)
        assert rows == files * FILE_ROWS
    header = ["side", "rows/s", "over pyarrow", "spread"]
    report.table(
        header, [[name, count / one.median, times[RAW].over(one), one.spread] for name, one in times.items()]
    )
    report.target("parquet_columns_over_pyarrow", times[RAW].over(times[COLUMNS]), 0.9)
    report.target("plan_seconds", seconds, 10.0, at_least=False)
    report.target("plan_memory_mib", memory, 300.0, at_least=False)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
