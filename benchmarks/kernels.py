"""The PS kernels against the same loops in C++ and against the memory's random-row bandwidth.

    python benchmarks/kernels.py [--rows 1000000] [--batch 100000] [--repeats 9]

Compiled and C++ calls alternate within one run and medians are compared, so that a busy machine slows both. Without a
C++ compiler only absolute times are reported. Results go to benchmarks/results/kernels.md.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.id_map import IdMap

HERE = Path(__file__).resolve().parent
KERNELS = load_kernels()
SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}
NUMBERS = np.array([1.0, 0.01, 0.0, 0.1, 0.001, 1e-7, 0.01, 0.0], np.float32)
Call = Callable[[], Any]


@dataclass(frozen=True)
class Result:
    name: str
    dim: int
    ours_ms: float
    cpp_ms: float | None

    @property
    def ratio(self) -> float | None:
        """C++ time over ours: above one we are faster."""
        return None if self.cpp_ms is None else self.cpp_ms / self.ours_ms


class Cpp:
    """kernels.cpp, compiled for this machine."""

    def __init__(self, scratch: Path) -> None:
        library = scratch / "kernels.so"
        flags = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC"]
        subprocess.run(["g++", *flags, str(HERE / "kernels.cpp"), "-o", str(library)], check=True, timeout=120)
        self._library = ctypes.CDLL(str(library))

    def bind(self, name: str, *arguments: Any) -> Call:
        function = getattr(self._library, name)
        ready = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments
        ]
        return lambda: function(*ready)


def median_ms(calls: list[Call], repeats: int) -> list[float]:
    """Median times of calls that take turns."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) * 1e3 for taken in times]


def zipf_ids(rows: int, count: int, seed: int) -> Any:
    """Ids as clicks have them: a few very often, most hardly ever."""
    random = np.random.default_rng(seed)
    ranks = np.exp(random.uniform(0, np.log(rows), count)).astype(np.int64) % rows
    return random.permutation(rows)[ranks].astype(np.int64)


def compare(dim: int, rows: int, batch: int, repeats: int, cpp: Cpp | None) -> list[Result]:
    results = []
    ids = zipf_ids(rows, batch, 1)
    unique = np.unique(ids)
    np.random.default_rng(2).shuffle(unique)
    id_map = IdMap(KERNELS)
    for at in range(0, rows, 100_000):
        id_map.find_or_insert(np.arange(at, min(at + 100_000, rows)))
    id_map.find_or_insert(np.arange(0))
    table, keys, none = id_map._new, id_map.keys[:rows], np.zeros(0, np.uint64)
    found = np.empty(batch, np.int64)
    arena: Any = Arena(dim, np.float32, rows * dim * 4).array
    arena[:] = 1
    out = np.empty((batch, dim), np.float32)

    def look_up() -> None:
        KERNELS.find(table, none, keys, ids, found)
        KERNELS.gather(arena, found, out)

    calls = [look_up]
    if cpp is not None:
        find = cpp.bind("find", table, len(table), keys, ids, batch, found)
        gather = cpp.bind("gather", arena, dim, found, batch, dim, out)
        calls.append(lambda: (find(), gather()))
    results.append(_result("lookup + gather", dim, median_ms(calls, repeats)))

    grads = np.random.default_rng(3).normal(size=(batch, dim)).astype(np.float32)
    for name, slots in SLOTS.items():
        width = dim * (1 + slots)
        records: Any = Arena(width, np.float32, rows * width * 4).array
        records[:] = 0.1
        touched = id_map.find(unique)
        own = np.ascontiguousarray(grads[: len(unique)])
        update = KERNELS.update(name)
        calls = [lambda u=update, r=records, t=touched, o=own: u(r, t, o, NUMBERS)]
        if cpp is not None:
            calls.append(cpp.bind(name, records, width, touched, len(touched), dim, own, NUMBERS))
        results.append(_result(f"{name}, unique rows", dim, median_ms(calls, repeats)))

    out_ids, out_values = np.empty_like(ids), np.empty_like(grads)
    calls = [lambda: KERNELS.merge_rows(ids, grads, out_ids, out_values)]
    if cpp is not None:
        calls.append(cpp.bind("merge", ids, grads, batch, dim, out_ids, out_values))
    results.append(_result("merge duplicates", dim, median_ms(calls, repeats)))
    return results


def bandwidth(rows: int, batch: int, repeats: int, cpp: Cpp) -> dict[str, float]:
    """Shares of the random-row bandwidth: uniform ids on a table much larger than the cache, dim 64."""
    dim, width = 64, 192
    arena: Any = Arena(width, np.float32, rows * width * 4).array
    arena[:] = 0.1
    picked = np.random.default_rng(4).permutation(rows)[:batch].astype(np.int64)
    grads = np.ones((batch, dim), np.float32)
    out = np.empty((batch, dim), np.float32)
    read = cpp.bind("read_rows", arena, width, picked, batch, dim)
    write = cpp.bind("write_rows", arena, width, picked, batch, width)
    calls: list[Call] = [
        read,
        lambda: KERNELS.gather(arena, picked, out),
        write,
        lambda: KERNELS.adam(arena, picked, grads, NUMBERS),
    ]
    least_read, gather, least_write, adam = median_ms(calls, repeats)
    # A gather also writes what it has read, and Adam also reads gradients; both are counted against them.
    return {
        "gather_limit_ms": least_read,
        "gather_ms": gather,
        "adam_limit_ms": least_write,
        "adam_ms": adam,
        "gather": least_read / gather,
        "adam": least_write / adam,
    }


def _result(name: str, dim: int, times: list[float]) -> Result:
    return Result(name, dim, times[0], times[1] if len(times) > 1 else None)


def target(name: str, value: float, goal: float) -> str:
    return f"TARGET {name} {value:.2f} {goal:.2f} {'met' if value >= goal else 'missed'}"


def report(results: list[Result], shares: dict[str, float], lines: list[str], options: argparse.Namespace) -> str:
    text = [
        "# Kernels",
        "",
        f"{options.rows:,} rows, batches of {options.batch:,} zipf ids, medians of {options.repeats};"
        f" {platform.processor() or platform.machine()}, Python {platform.python_version()}.",
        "Ratio: time of the C++ loop (`-O3 -march=native`) over ours, in the same run.",
        "",
        "| kernel | dim | ms | C++ ms | ratio |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        cpp = "" if result.cpp_ms is None else f"{result.cpp_ms:.2f}"
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        text.append(f"| {result.name} | {result.dim} | {result.ours_ms:.2f} | {cpp} | {ratio} |")
    if shares:
        text += ["", "Random rows, dim 64, uniform ids: a pass that only moves the rows, and the kernel.", ""]
        text += ["| kernel | ms | limit ms | share |", "|---|---|---|---|"]
        for name in ("gather", "adam"):
            ms, limit = shares[f"{name}_ms"], shares[f"{name}_limit_ms"]
            text.append(f"| {name} | {ms:.2f} | {limit:.2f} | {shares[name]:.2f} |")
    return "\n".join([*text, "", "```", *lines, "```", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cpp = Cpp(Path(scratch)) if shutil.which("g++") else None
        if cpp is None:
            print("no g++ here: absolute times only")
        results: list[Result] = []
        for dim in (8, 16, 64):
            print(f"dim {dim} ...", flush=True)
            results += compare(dim, options.rows, options.batch, options.repeats, cpp)
        shares = bandwidth(options.rows, options.batch, options.repeats, cpp) if cpp is not None else {}
    lines = []
    if cpp is not None:
        for result in results:
            assert result.ratio is not None
            label = result.name.split(",")[0].replace(" + ", "_").replace(" ", "_")
            lines.append(target(f"kernel_vs_cpp:{label}:{result.dim}", result.ratio, 0.95))
        lines += [target(f"kernel_bandwidth:{name}:64", shares[name], 0.7) for name in ("gather", "adam")]
    text = report(results, shares, lines, options)
    results_folder = HERE / "results"
    results_folder.mkdir(exist_ok=True)
    (results_folder / "kernels.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
