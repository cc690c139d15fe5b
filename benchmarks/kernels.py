"""The PS kernels against the same loops in C++, the memory's random-row bandwidth, and PyTorch's optimizers.

./dev bench kernels [--quick] [--rows 1000000] [--batch 100000] [--repeats 15]
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Report, Sample, interleaved, parse, zipf_ids
from benchmarks.harness.plots import bars
from elasticdl_core.model import OptimizerSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.kernels.lines import SLOTS as SLOTS_OF_LINE
from elasticdl_ps.kernels.lines import make_map
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.arena import Arena

KERNELS = load_kernels()
OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd"),
    "adagrad": OptimizerSpec("adagrad"),
    "adam": OptimizerSpec("adam"),
    "torch_momentum": OptimizerSpec("torch.sgd", {"momentum": 0.9, "weight_decay": 0.01}),
    "torch_adagrad": OptimizerSpec("torch.adagrad", {"weight_decay": 0.01}),
    "torch_adam": OptimizerSpec("torch.adamw"),
}
"""By kernel, an optimizer that uses it. Those of Keras and of PyTorch differ in their arithmetic."""
DENSE_SIZE = 1 << 20
STEP = 10
LOAD = 0.75
DIMS = (8, 16, 64)
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC")
LIMIT_AHEAD = (4, 8, 16, 32)
LARGE_DIM, LARGE_WIDTH = 64, 192
GOAL_CPP, GOAL_LIMIT, GOAL_TORCH = 0.95, 0.7, 1.0
TORCH_DIM = 16
ABOUT = """\
One call of each kernel on {batch:,} zipf ids of a table of {rows:,} rows, against the same loop in C++ (`{command}`;
without `-fno-math-errno` square roots are not vectorised). Both sides work on the same arrays in turns, in one
thread; times are processor time. A ratio is the median of the quotients of times taken side by side, above one where
ours is faster. `lookup` is the search of the ids in the table's map."""
LIMIT_ABOUT = """\
Uniform ids over records of 768 bytes (value and two slots of dim 64) in huge pages, {size:.1f} GB in all. The limit
is the fastest of several C++ loops that only move the same bytes, with different distances of prefetching: for gather
from random rows to consecutive ones, through the cache and past it; for Adam the records to the processor and back
with the gradients added, without Adam's arithmetic. `read only` has no output at all."""
TORCH_ABOUT = """\
One update of a dense parameter of {size:,} numbers by `torch.optim` with `fused=True`, and of the rows that a batch
of {batch:,} zipf ids touches, in tables of {rows:,} rows of {dim}, by the optimizers that take sparse gradients. All
in one thread; processor time."""
Call = Callable[[], object]


class Cpp:
    """kernels.cpp, compiled for this machine."""

    def __init__(self, scratch: Path) -> None:
        library = scratch / "kernels.so"
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run(["g++", *FLAGS, str(source), "-o", str(library)], check=True, timeout=120)
        self._library = ctypes.CDLL(str(library))

    def bind(self, name: str, *arguments: Any) -> Call:
        """A call with fixed arguments."""
        function = getattr(self._library, name)
        ready = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments
        ]
        return lambda: function(*ready)


def table_of(rows: int) -> tuple[Any, Any, Any]:
    """A map of the ids 0 to ``rows``, each in the row of the same number, with its shape and keys."""
    (table, shape), keys = make_map(int(rows / LOAD / SLOTS_OF_LINE)), np.empty(rows, np.int64)
    KERNELS.find_or_insert(table, shape, keys, np.arange(rows), np.empty(rows, np.int64), 0)
    return table, shape, keys


def sides_of(dim: int, rows: int, batch: int, cpp: Cpp | None) -> dict[str, tuple[Call, Call | None]]:
    """By kernel: our call and the same in C++."""
    sides: dict[str, tuple[Call, Call | None]] = {}
    ids = zipf_ids(rows, batch, 1)
    unique = np.unique(ids)
    np.random.default_rng(2).shuffle(unique)
    grads = np.random.default_rng(3).normal(size=(batch, dim)).astype(np.float32)
    if dim == DIMS[0]:
        table, shape, keys = table_of(rows)
        found = np.empty(batch, np.int64)
        sides["lookup"] = (
            lambda: KERNELS.find(table, shape, keys, ids, found),
            cpp and cpp.bind("find", table, shape, keys, ids, batch, found),
        )
    arena: Any = Arena(dim, np.float32, rows=rows).array
    arena[:] = 1
    out = np.ones((batch, dim), np.float32)
    sides["gather"] = (
        lambda: KERNELS.gather(arena, ids, out),
        cpp and cpp.bind("gather", arena, dim, ids, batch, dim, out),
    )
    for name, spec in OPTIMIZERS.items():
        optimizer = Optimizer(spec)
        width = dim * (1 + len(optimizer.slots))
        records: Any = Arena(width, np.float32, rows=rows).array
        records[:] = 0.1
        own = np.ascontiguousarray(grads[: len(unique)])
        update, numbers = KERNELS.update(optimizer.kernel), optimizer.numbers(STEP)
        sides[name] = (
            lambda u=update, r=records, o=own, n=numbers: u(r, unique, o, n),
            cpp and cpp.bind(name, records, width, unique, len(unique), dim, own, numbers),
        )
    out_ids, out_values = np.empty_like(ids), np.ones_like(grads)
    sides["merge"] = (
        lambda: KERNELS.merge_rows(ids, grads, out_ids, out_values),
        cpp and cpp.bind("merge", ids, grads, batch, dim, out_ids, out_values),
    )
    return sides


def compare(report: Report, options: argparse.Namespace, cpp: Cpp | None) -> None:
    """All kernels at all dimensions."""
    rows, ratios = [], {}
    for dim in DIMS:
        for name, (ours, theirs) in sides_of(dim, options.rows, options.batch, cpp).items():
            report.say(f"{name}, dim {dim}")
            timed = interleaved(
                {"ours": ours} | ({"cpp": theirs} if theirs else {}), options.repeats, clock=time.thread_time
            )
            other = timed.get("cpp")
            ratio = other.over(timed["ours"]) if other else None
            rows.append(
                [
                    name,
                    dim,
                    timed["ours"].median * 1e3,
                    other.median * 1e3 if other else "",
                    ratio or "",
                    spread(timed),
                ]
            )
            ratios[name, dim] = ratio
    report.text("## Against C++")
    report.table(["kernel", "dim", "ms", "C++ ms", "ratio", "spread of the times"], rows)
    if cpp is None:
        return
    for (name, dim), ratio in ratios.items():
        if name != "lookup":
            report.target(f"kernel_vs_cpp_{name}_{dim}", ratio, GOAL_CPP)
    names = ["gather", *OPTIMIZERS, "merge"]
    series = {f"dim {dim}": [ratios[name, dim] for name in names] for dim in DIMS}
    figure = bars(names, series, "C++ time / our time", goal=GOAL_CPP)
    report.plot("cpp", figure, "Speed of each kernel against the same loop in C++")


def spread(timed: dict[str, Sample]) -> str:
    """The wider of the sides' spreads."""
    return f"{max(sample.spread for sample in timed.values()):.0%}"


def bandwidth(report: Report, options: argparse.Namespace, cpp: Cpp) -> None:
    """Gather and Adam at dim 64 on a table that no cache holds."""
    report.say("bandwidth: filling the table")
    rows, batch = options.rows, options.batch
    arena: Any = Arena(LARGE_WIDTH, np.float32, rows=rows).array
    arena[:] = 0.1
    picked = np.random.default_rng(4).permutation(rows)[:batch].astype(np.int64)
    grads = np.ones((batch, LARGE_DIM), np.float32)
    out: Any = Arena(LARGE_DIM, np.float32, rows=batch).array
    out[:] = 0
    same = (arena, LARGE_WIDTH, picked, batch)
    numbers = Optimizer(OPTIMIZERS["adam"]).numbers(STEP)
    sides: dict[str, Call] = {
        "gather": lambda: KERNELS.gather(arena, picked, out),
        "adam": lambda: KERNELS.adam(arena, picked, grads, numbers),
    }
    for ahead in LIMIT_AHEAD:
        sides[f"move {ahead}"] = cpp.bind("move_rows", *same, LARGE_DIM, ahead, out)
        sides[f"stream {ahead}"] = cpp.bind("stream_rows", *same, LARGE_DIM, ahead, out)
        sides[f"change {ahead}"] = cpp.bind("change_rows", *same, LARGE_WIDTH, LARGE_DIM, grads, ahead)
        sides[f"read only {ahead}"] = cpp.bind("read_rows", *same, LARGE_DIM, ahead)
    report.say("bandwidth: measuring")
    timed = interleaved(sides, options.repeats, clock=time.thread_time)
    moved = {"gather": 2 * LARGE_DIM * 4, "adam": 2 * LARGE_WIDTH * 4 + LARGE_DIM * 4}
    shown, shares = [], {}
    for name, kinds in {"gather": ("move", "stream"), "adam": ("change",)}.items():
        best = fastest(timed, kinds)
        shares[name] = timed[best].over(timed[name])
        speed = moved[name] * batch / 1e9
        shown.append([name, timed[name].median * 1e3, speed / timed[name].median, "", ""])
        shown.append([f"limit: {best}", timed[best].median * 1e3, speed / timed[best].median, shares[name], ""])
    best = fastest(timed, ("read only",))
    sample = timed[best]
    shown.append([best, sample.median * 1e3, moved["gather"] / 2 * batch / 1e9 / sample.median, "", ""])
    report.text("## Against the bandwidth of random rows")
    report.text(LIMIT_ABOUT.format(size=arena.nbytes / 1e9))
    report.table(["side", "ms", "GB/s moved", "share of the limit"], [row[:4] for row in shown])
    for name, share in shares.items():
        report.target(f"kernel_bandwidth_{name}", share, GOAL_LIMIT)


def against_torch(report: Report, options: argparse.Namespace) -> None:
    """The same updates by ``torch.optim``: of one large parameter, and of the touched rows of an embedding."""
    report.text("## Against PyTorch")
    if find_spec("torch") is None:
        report.text("PyTorch is not installed on this machine: the extra `torch`.")
        return
    import torch

    torch.set_num_threads(1)
    rows = []
    for name, (ours, theirs) in (dense_sides(torch) | row_sides(torch, options)).items():
        report.say(f"against PyTorch: {name}")
        timed = interleaved({"ours": ours, "torch": theirs}, options.repeats, clock=time.thread_time)
        ratio = timed["torch"].over(timed["ours"])
        rows.append([name, timed["ours"].median * 1e3, timed["torch"].median * 1e3, ratio, spread(timed)])
        report.target(f"kernel_vs_torch_{name.replace(' ', '_')}", ratio, GOAL_TORCH)
    report.text(TORCH_ABOUT.format(size=DENSE_SIZE, rows=options.rows, batch=options.batch, dim=TORCH_DIM))
    report.table(["update", "ms", "torch ms", "ratio", "spread of the times"], rows)


def dense_sides(torch: Any) -> dict[str, tuple[Call, Call]]:
    """One dense parameter, by the kernels and by PyTorch's fused implementations, its fastest ones."""
    sides: dict[str, tuple[Call, Call]] = {}
    grad = np.random.default_rng(5).normal(size=(1, DENSE_SIZE)).astype(np.float32)
    made = {
        "torch_momentum": lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=0.01, fused=True),
        "torch_adagrad": lambda p: torch.optim.Adagrad(p, weight_decay=0.01, fused=True),
        "torch_adam": lambda p: torch.optim.AdamW(p, fused=True),
    }
    for name, make in made.items():
        optimizer = Optimizer(OPTIMIZERS[name])
        record = np.full((1, DENSE_SIZE * (1 + len(optimizer.slots))), 0.1, np.float32)
        update, numbers, only = KERNELS.update(optimizer.kernel), optimizer.numbers(STEP), np.zeros(1, np.int64)
        parameter = torch.nn.Parameter(torch.full((DENSE_SIZE,), 0.1))
        parameter.grad = torch.tensor(grad[0])
        theirs = make([parameter])
        sides[f"{name.removeprefix('torch_')} dense"] = (
            lambda u=update, r=record, n=numbers, o=only: u(r, o, grad, n),
            lambda t=theirs: t.step(),
        )
    return sides


def row_sides(torch: Any, options: argparse.Namespace) -> dict[str, tuple[Call, Call]]:
    """The touched rows of a table, by the kernels and by the optimizers that take sparse gradients."""
    sides: dict[str, tuple[Call, Call]] = {}
    unique = np.unique(zipf_ids(options.rows, options.batch, 1))
    grads = np.random.default_rng(6).normal(size=(len(unique), TORCH_DIM)).astype(np.float32)
    made = {"torch.sparse_adam": torch.optim.SparseAdam, "torch.adagrad": torch.optim.Adagrad}
    for name, make in made.items():
        optimizer = Optimizer(OptimizerSpec(name))
        width = TORCH_DIM * (1 + len(optimizer.slots))
        records: Any = Arena(width, np.float32, rows=options.rows).array
        records[:] = 0.1
        update, numbers = KERNELS.update(optimizer.kernel), optimizer.numbers(STEP)
        parameter = torch.nn.Parameter(torch.full((options.rows, TORCH_DIM), 0.1))
        at = torch.tensor(unique)[None]
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            parameter.grad = torch.sparse_coo_tensor(at, torch.tensor(grads), parameter.shape, is_coalesced=True)
        theirs = make([parameter])
        sides[f"{name.removeprefix('torch.')} rows"] = (
            lambda u=update, r=records, n=numbers: u(r, unique, grads, n),
            lambda t=theirs: t.step(),
        )
    return sides


def fastest(timed: dict[str, Sample], kinds: tuple[str, ...]) -> str:
    """The side with the least median among those of some kinds."""
    names = [name for name in timed if name.rpartition(" ")[0] in kinds]
    return min(names, key=lambda name: timed[name].median)


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, rows=1_000_000, batch=100_000, repeats=15)
    if options.quick:
        options.repeats = min(options.repeats, 5)
    about = ABOUT.format(batch=options.batch, rows=options.rows, command=" ".join(["g++", *FLAGS[:3]]))
    report = Report("kernels", "Kernels", about)
    with tempfile.TemporaryDirectory() as scratch:
        cpp = Cpp(Path(scratch)) if shutil.which("g++") else None
        compare(report, options, cpp)
        if cpp is not None:
            bandwidth(report, options, cpp)
        else:
            report.text("There is no C++ compiler (`g++`) on this machine: only our own times are shown.")
    against_torch(report, options)
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
