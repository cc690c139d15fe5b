"""Compares the hand-made kernels with plain numba loops: look-ups, gathers, updates, and all three.

./dev bench fast_paths [--quick] [--batch 20000] [--repeats 9]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks.harness import Report, interleaved, parse
from elasticdl_core.model import OptimizerSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.kernels.lines import SLOTS, WORDS, make_map
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.arena import Arena

TABLES = {"in the cache": (20_000, 16), "beyond the cache": (4_000_000, 16), "wide rows": (1_000_000, 64)}
"""Rows and dimension of the tables."""
NUMBERS = Optimizer(OptimizerSpec("adam", {"learning_rate": 0.01})).numbers(1)
LOAD = 0.75
GOAL = 1.1
ABOUT = """\
One step of Adam on {batch:,} random ids of a table: look the ids up, gather their rows, update them. *Ours* are the
kernels of `elasticdl_ps.kernels.compiled`, which prefetch and say which eight columns are worked on at once; *plain*
are the same algorithms as loops over arrays, compiled by numba too. Both sides work on the same arrays in turns, in
one thread; times are processor time, and a ratio is the median of quotients of times taken side by side, above one
where ours is faster. ADR 20 asks for more than a tenth of a whole step; if that is missed where no cache holds the
table, the plain loops should take the place of ours."""
Call = Callable[[], object]


@numba.njit(nogil=True)
def plain_find(table: Any, shape: Any, keys: Any, query: Any, out: Any) -> int:
    """``compiled.rows.find`` without tags and prefetching."""
    missing = 0
    for i in range(query.shape[0]):
        wanted = query[i]
        low = _mixed(np.uint64(wanted)) & np.uint64(0xFFFFFFFF)
        lines = shape[1] if low >= shape[2] else shape[0]
        at, slot = np.uint64((low * lines) >> np.uint64(32)) * np.uint64(WORDS), np.uint64(0)
        row = np.int64(-1)
        while True:
            entry = np.uint64(table[at + slot])
            if entry == np.uint64(0):
                break
            if keys[entry - np.uint64(1)] == wanted:
                row = np.int64(entry) - 1
                break
            slot += np.uint64(1)
            if slot == np.uint64(SLOTS):
                at, slot = at + np.uint64(WORDS), np.uint64(0)
        out[i] = row
        missing += row < 0
    return missing


@numba.njit(nogil=True)
def _mixed(x: Any) -> Any:
    """``elasticdl_runtime.partition.hash_ids`` of one id."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(nogil=True)
def plain_gather(arena: Any, rows: Any, out: Any) -> None:
    """``compiled.rows.gather`` as a loop over arrays."""
    for i in range(rows.shape[0]):
        if rows[i] >= 0:
            source, target = arena[rows[i]], out[i]
            for column in range(target.shape[0]):
                target[column] = source[column]


@numba.njit(nogil=True, error_model="numpy")
def plain_adam(arena: Any, rows: Any, grads: Any, h: Any) -> None:
    """``compiled.updates.adam`` without weight decay, as a loop over arrays."""
    dim = grads.shape[1]
    scale, first, second, epsilon, rate = h[0], h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        record, own = arena[rows[i]], grads[i]
        values, means, squares = record[:dim], record[dim : 2 * dim], record[2 * dim :]
        for column in range(dim):
            g = own[column] * scale
            m = means[column] + (g - means[column]) * first
            v = squares[column] + (g * g - squares[column]) * second
            means[column], squares[column] = m, v
            values[column] -= m * rate / (np.sqrt(v) + epsilon)


class Table:
    """A table of random ids with Adam's slots, and a batch of distinct ids of it.

    Args:
        rows: of the table.
        dim: of a row.
        batch: number of ids.
    """

    def __init__(self, rows: int, dim: int, batch: int) -> None:
        self.kernels = load_kernels()
        random = np.random.default_rng(1)
        ids = np.unique(random.integers(-(1 << 62), 1 << 62, rows))
        random.shuffle(ids)
        (self.map, self.shape), self.keys = make_map(int(len(ids) / LOAD / SLOTS) + 1), np.empty(len(ids), np.int64)
        found = np.empty(len(ids), np.int64)
        self.kernels.find_or_insert(self.map, self.shape, self.keys, ids, found, 0)
        self.records: Any = Arena(3 * dim, np.float32, rows=len(ids)).array
        self.records[:] = 0.1
        self.ids = random.choice(ids, batch, replace=False)
        self.rows, self.out = np.empty(batch, np.int64), np.empty((batch, dim), np.float32)
        self.grads = random.normal(size=(batch, dim)).astype(np.float32)

    def steps(self) -> dict[str, tuple[Call, Call]]:
        """By part of a step: our call and the plain one."""
        place = (self.map, self.shape, self.keys, self.ids, self.rows)
        copied = (self.records, self.rows, self.out)
        updated = (self.records, self.rows, self.grads, NUMBERS)
        ours: dict[str, Call] = {
            "look-up": lambda: self.kernels.find(*place),
            "gather": lambda: self.kernels.gather(*copied),
            "Adam": lambda: self.kernels.adam(*updated),
        }
        plain: dict[str, Call] = {
            "look-up": lambda: plain_find(*place),
            "gather": lambda: plain_gather(*copied),
            "Adam": lambda: plain_adam(*updated),
        }
        ours["step"], plain["step"] = _all(list(ours.values())), _all(list(plain.values()))
        return {name: (ours[name], plain[name]) for name in ours}

    def check(self) -> None:
        """Both sides compute the same.

        Raises:
            ValueError: they do not.
        """
        results = []
        for side in (0, 1):
            self.records[:] = 0.1
            self.rows[:], self.out[:] = -2, -2.0
            self.steps()["step"][side]()
            self.steps()["gather"][side]()
            results.append((self.rows.copy(), self.out.copy()))
        (rows, values), (plain_rows, plain_values) = results
        if not np.array_equal(rows, plain_rows) or not np.allclose(values, plain_values, rtol=1e-5):
            raise ValueError("the plain loops compute something else")


def _all(calls: list[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def main() -> None:
    """Measures all tables."""
    options = parse(__doc__, batch=20_000, repeats=9)
    report = Report("fast_paths", "Hand-made kernels against plain loops", ABOUT.format(batch=options.batch))
    table, ratios, repeats = [], {}, 3 if options.quick else options.repeats
    for name, (rows, dim) in TABLES.items():
        rows = rows // 20 if options.quick and rows > 100_000 else rows
        report.say(f"{name}: {rows:,} rows of dim {dim}")
        made = Table(rows, dim, min(options.batch, rows // 2))
        made.check()
        for part, (ours, plain) in made.steps().items():
            timed = interleaved({"ours": ours, "plain": plain}, repeats, clock=time.thread_time)
            ratios[name, part] = timed["plain"].over(timed["ours"])
            row = [timed["ours"].median * 1e3, timed["plain"].median * 1e3, ratios[name, part]]
            table.append([name, f"{rows:,} x {dim}", part, *row])
    report.text("## Each part of a step")
    report.table(["table", "rows x dim", "part", "ms", "plain ms", "ratio"], table)
    for name in ("beyond the cache", "wide rows"):
        report.target(f"fast_path_step_{name.replace(' ', '_')}", ratios[name, "step"], GOAL)
    report.write()


if __name__ == "__main__":
    main()
