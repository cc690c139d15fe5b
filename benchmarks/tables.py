"""Embedding tables of growing size and dimension: lookups and updates per second, and bytes per row.

./dev bench tables [--quick] [--batch 100000] [--repeats 7]
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import Report, Sample, interleaved, parse, zipf_ids
from benchmarks.harness.plots import bars, lines
from elasticdl_core.model import OptimizerSpec, TableSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.table import EmbeddingTable

KERNELS = load_kernels()
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
DIMS = (8, 16, 32, 64, 128)
ROWS, DIM = 1_000_000, 16
LARGE_ROWS = 10_000_000
SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}
TIMED = ("sgd", "adam")
GOAL_BYTES = 1.3
FILL = 1 << 18
ABOUT = """\
One table of one parameter server, in one process and one thread: `EmbeddingTable.read` and `.update` (map lookup and
kernel) on {batch:,} zipf ids (the different ones of them for updates), ids of any int64 as a hash would give them.
The peer is numpy on an array of the same rows, with the rows already looked up for it: `take` for lookups, and for
updates the optimizer in numpy's array arithmetic on the rows taken out and put back. `take` knows the rows that ours
must look up; *search* finds them as numpy can, by `searchsorted`. A ratio is numpy's time over ours. Bytes per row
are what the resident memory of a fresh process grew by while the table was filled; the least is the value, the
optimizer's slots and a key of eight bytes. Before each reading the C library gives back what is left of freed memory
(`malloc_trim`), which else includes the inputs of the filling."""


@dataclass(frozen=True)
class Result:
    """One table.

    Attributes:
        optimizer: its name.
        dim: length of a vector.
        rows: number of rows.
        fill_rate: rows inserted per second.
        read: seconds of a lookup call, by side.
        update: seconds of an update call, by side.
        different: ids in an update.
    """

    optimizer: str
    dim: int
    rows: int
    fill_rate: float
    read: dict[str, Sample]
    update: dict[str, Sample]
    different: int


def least_bytes(optimizer: str, dim: int) -> int:
    """Value, slots and key."""
    return 4 * dim * (1 + SLOTS[optimizer]) + 8


def scattered(numbers: Any) -> Any:
    """Different int64 for different numbers, without any order."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(1)).astype(np.int64)


def fill(optimizer: str, dim: int, rows: int) -> tuple[EmbeddingTable, float]:
    """A table with rows, and how many were made per second."""
    block = np.zeros((min(FILL, rows), dim), np.float32)
    table = EmbeddingTable(TableSpec("t", dim), Optimizer(OptimizerSpec(optimizer)), KERNELS)
    spent = 0.0
    for at in range(0, rows, FILL):
        ids = scattered(np.arange(at, min(at + FILL, rows)))
        started = time.perf_counter()
        table.read(ids, block[: len(ids)])
        spent += time.perf_counter() - started
    return table, rows / spent


def held_bytes() -> int:
    """Resident memory of this process, without what was freed but not given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def resident(optimizer: str, dim: int, rows: int) -> tuple[float, float, float]:
    """Resident bytes of a row, reported bytes of a row, rows made per second; for a process of its own."""
    # Grows once, so that all kernels are loaded before.
    fill(optimizer, dim, 20_000)
    before = held_bytes()
    table, rate = fill(optimizer, dim, rows)
    grown = held_bytes() - before
    return grown / rows, table.nbytes / rows, rate


def in_own_process(optimizer: str, dim: int, rows: int) -> tuple[float, float, float]:
    """``resident`` where no other memory comes or goes."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(resident, optimizer, dim, rows).result(300)


def numpy_update(optimizer: str, records: Any, rows: Any, grads: Any, h: Any) -> None:
    """A plain numpy update of rows of value, momentum and velocity."""
    dim = grads.shape[1]
    if optimizer == "sgd":
        records[rows] -= grads * h[1]
        return
    taken = records[rows]
    w, m, v = taken[:, :dim], taken[:, dim : 2 * dim], taken[:, 2 * dim :]
    m += (grads - m) * h[3]
    v += (grads * grads - v) * h[4]
    w -= m * h[6] / (np.sqrt(v) + h[5])
    records[rows] = taken


def measure(optimizer: str, dim: int, rows: int, batch: int, repeats: int) -> Result:
    """Fills a table and times it against numpy."""
    table, fill_rate = fill(optimizer, dim, rows)
    positions = zipf_ids(rows, batch, 1)
    ids = scattered(positions)
    different = np.unique(positions)
    np.random.default_rng(2).shuffle(different)
    own = scattered(different)
    grads = np.full((len(own), dim), 1e-3, np.float32)
    numbers = Optimizer(OptimizerSpec(optimizer)).numbers(1)
    records = np.full((rows, dim * (1 + SLOTS[optimizer])), 0.1, np.float32)
    values = records[:, :dim] if SLOTS[optimizer] else records
    out, theirs = np.zeros((batch, dim), np.float32), np.zeros((batch, dim), np.float32)

    def take() -> None:
        if SLOTS[optimizer]:
            theirs[:] = values[positions]
        else:
            np.take(values, positions, axis=0, out=theirs, mode="clip")

    known = scattered(np.arange(rows))
    order = np.argsort(known)
    known = known[order]

    def search() -> None:
        theirs[:] = values[order[np.searchsorted(known, ids)]]

    read: dict[str, Callable[[], object]] = {
        "ours": lambda: table.read(ids, out),
        "numpy": take,
        "search": search,
    }
    update: dict[str, Callable[[], object]] = {
        "ours": lambda: table.update(own, grads, numbers),
        "numpy": lambda: numpy_update(optimizer, records, different, grads, numbers),
    }
    return Result(
        optimizer,
        dim,
        rows,
        fill_rate,
        interleaved(read, repeats, clock=time.thread_time),
        interleaved(update, repeats, clock=time.thread_time),
        len(own),
    )


def show(report: Report, results: list[Result], batch: int) -> None:
    """One row for each table."""
    header = ["optimizer", "rows", "dim", "M lookups/s", "over take", "over search"]
    header += ["M updates/s", "over numpy", "M inserts/s"]
    rows = []
    for one in results:
        rows.append(
            [
                *(one.optimizer, f"{one.rows:,}", one.dim),
                *(batch / 1e6 / one.read["ours"].median, one.read["numpy"].over(one.read["ours"])),
                one.read["search"].over(one.read["ours"]),
                *(one.different / 1e6 / one.update["ours"].median, one.update["numpy"].over(one.update["ours"])),
                one.fill_rate / 1e6,
            ]
        )
    report.table(header, rows)


def memory(report: Report, dims: tuple[int, ...], *, large: bool) -> None:
    """Bytes per row at a million rows, and ten million rows with Adam if ``large``."""
    found = {}
    for optimizer in SLOTS:
        for dim in dims:
            report.say(f"memory of {optimizer}, dim {dim}")
            found[optimizer, dim] = in_own_process(optimizer, dim, ROWS)
    report.text("## Bytes per row, a million rows")
    header = ["optimizer", "dim", "resident", "reported", "least", "resident / least"]
    rows = [
        [name, dim, grown, told, least_bytes(name, dim), grown / least_bytes(name, dim)]
        for (name, dim), (grown, told, _) in found.items()
    ]
    report.table(header, rows)
    ratios = {(row[0], row[1]): row[-1] for row in rows}
    for (optimizer, dim), ratio in ratios.items():
        report.target(f"row_bytes_{optimizer}_{dim}", ratio, GOAL_BYTES, at_least=False)
    series = {name: [ratios[name, dim] for dim in dims] for name in SLOTS}
    figure = bars([f"dim {dim}" for dim in dims], series, "bytes per row / least", goal=GOAL_BYTES)
    report.plot("bytes", figure, "Resident bytes of a row over its value, slots and key")
    if not large:
        return
    report.say("10 M rows x 16 with Adam")
    grown, told, rate = in_own_process("adam", DIM, LARGE_ROWS)
    least = least_bytes("adam", DIM)
    report.text("## Ten million rows of dim 16 with Adam")
    report.table(
        ["resident MB", "reported MB", "least MB", "resident / least", "M inserts/s"],
        [[*(part * LARGE_ROWS / 1e6 for part in (grown, told, least)), grown / least, rate / 1e6]],
    )


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, batch=100_000, repeats=7)
    repeats = 3 if options.quick else options.repeats
    sizes, dims = (SIZES[:2], (8, 64)) if options.quick else (SIZES, DIMS)
    report = Report("tables", "Tables", ABOUT.format(batch=options.batch))
    by_size, by_dim = {}, {}
    for optimizer in TIMED:
        for rows in sizes:
            report.say(f"{optimizer}, {rows:,} rows")
            by_size[optimizer, rows] = measure(optimizer, DIM, rows, options.batch, repeats)
        for dim in dims:
            report.say(f"{optimizer}, dim {dim}")
            by_dim[optimizer, dim] = measure(optimizer, dim, ROWS, options.batch, repeats)
    report.text("## Size")
    show(report, list(by_size.values()), options.batch)
    rates = {
        f"{what}, {optimizer}": [
            (options.batch if what == "lookups" else one.different)
            / 1e6
            / (one.read if what == "lookups" else one.update)["ours"].median
            for one in (by_size[optimizer, rows] for rows in sizes)
        ]
        for optimizer in TIMED
        for what in ("lookups", "updates")
    }
    figure = lines([float(rows) for rows in sizes], rates, "rows", "M rows/s", log_x=True)
    report.plot("size", figure, "Lookups and updates per second by the size of the table, dim 16")
    report.text("## Dimension")
    show(report, list(by_dim.values()), options.batch)
    memory(report, dims, large=not options.quick)
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
