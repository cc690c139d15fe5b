"""PyTorch on parameter servers: against a plain loop, DistributedDataParallel and TensorFlow, and how it starts.

./dev bench torch [--parts single,ddp,parity,start,loop] [--data FOLDER] [--quick] [--sides a,b] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from benchmarks import start
from benchmarks.harness import Report
from benchmarks.own_loop import compare_own_loops
from benchmarks.training.accuracy import Setup, job_auc
from benchmarks.training.data import LEARNING_RATE, generated
from benchmarks.training.processes import Team
from benchmarks.training.setting import Setting, parser, setting

GOAL = 0.8
DDP_GOAL = 2.0
PARITY = 0.002
START_S = 0.5
PARTS = ("single", "ddp", "parity", "start", "loop")
DDP_IDS, DDP_DIM, DDP_WORKERS, DDP_SERVERS = 2_000_000, 16, 4, 2
RATE = 0.001
ABOUT = """DeepFM in PyTorch by SGD on {data}, {batch} records in a minibatch, vectors of {dim}. Our job has one
worker and one parameter server that holds the tables; a plain loop has them in its one process, with dense gradients
or with `sparse=True`, and its minibatches ready in memory. *Reading* loops take theirs from the same files as our
job, by the same `feed`. All sides are bound to the same {cores} cores. Medians of {rounds} measurements, in turns, of
{seconds:g} s. `torch_single_worker` compares our job, strictly in order as it is by default, with the fastest loop
on minibatches in memory; `torch_single_worker_reading` with the loop that reads, as our job has to. *Pulls run ahead*
is `--max_staleness 2`."""
FIELDS = {"model_def": "deepfm_torch.forward", "xla": "auto"}


def single(here: Setting, report: Report, cpus: list[int]) -> None:
    """One worker and one server against loops in one process."""
    options, clicks = here.options, here.clicks()
    common = {"data": str(here.arrays(clicks)), "dim": options.dim, "batch": options.batch, "threads": len(cpus)}
    fields = {**FIELDS, "optimizer_params": {"kind": "SGD", "lr": LEARNING_RATE}}
    peer = "benchmarks.peers.torch_loop"
    reads = {**common, "seed": 0, "sparse": True, "records": str(here.records(clicks) / "train")}
    sides = [
        here.job("ours", "ours, 1 worker and 1 PS", clicks, 1, 1, **fields),
        here.job("ours_ahead", "ours, pulls run ahead", clicks, 1, 1, **fields, max_staleness=2),
        Team("dense", "PyTorch loop", peer, [{**common, "seed": 0, "sparse": False}], here.folder, cpus=cpus),
        Team("sparse", "PyTorch, sparse", peer, [{**common, "seed": 0, "sparse": True}], here.folder, cpus=cpus),
        Team("reading", "PyTorch, sparse, reading", peer, [reads], here.folder, cpus=cpus),
    ]
    found = here.compare(report, sides)
    if {"ours", "dense", "sparse"} <= set(found):
        best = max(found[name].median for name in ("dense", "sparse"))
        report.target("torch_single_worker", found["ours"].median / best, GOAL)
    if {"ours", "reading"} <= set(found):
        report.target("torch_single_worker_reading", found["ours"].median / found["reading"].median, GOAL)


def against_ddp(here: Setting, report: Report) -> None:
    """Four workers and two servers against four processes of DistributedDataParallel, by Adam."""
    batch = here.options.batch
    clicks = generated(vocabulary=DDP_IDS)
    report.text(
        f"## Against DistributedDataParallel\n\n{DDP_IDS:,} ids, vectors of {DDP_DIM}, Adam, {batch} records in a "
        f"minibatch. Ours: {DDP_WORKERS} workers, {DDP_SERVERS} parameter servers, asynchronous. DDP: {DDP_WORKERS} "
        "processes over gloo, the tables in each, with dense gradients and Adam, or sparse ones and SparseAdam. The "
        "target compares with the faster of the two."
    )
    fields = {**FIELDS, "model_params": {"ids": DDP_IDS, "dim": DDP_DIM}}
    adam = {"kind": "Adam", "lr": RATE}
    ours = here.job(
        "ours_4", "ours, 4 workers, 2 PS", clicks, DDP_WORKERS, DDP_SERVERS, optimizer_params=adam, **fields
    )
    common = {"data": str(here.arrays(clicks)), "dim": DDP_DIM, "batch": batch, "rate": RATE, "world": DDP_WORKERS}
    teams = []
    for name, sparse in (("ddp_dense", False), ("ddp_sparse", True)):
        store = str(here.folder / f"{name}.store")
        members = [{**common, "rank": rank, "store": store, "sparse": sparse} for rank in range(DDP_WORKERS)]
        teams.append(Team(name, f"DDP, {name[4:]} gradients", "benchmarks.peers.torch_ddp", members, here.folder))
    found = here.compare(report, [ours, *teams])
    theirs = [found[name].median for name in ("ddp_dense", "ddp_sparse") if name in found]
    if "ours_4" in found and theirs:
        report.target("torch_deepfm_vs_ddp", found["ours_4"].median / max(theirs), DDP_GOAL)


def parity(here: Setting, report: Report) -> None:
    """The AUC of the same DeepFM in both frameworks, from the same first values, on the same data."""
    options, clicks = here.options, here.clicks()
    seeds = range(1 if options.quick else 3)
    epochs = 2 if options.quick else 10
    setup = Setup(clicks, here.arrays(clicks), here.records(clicks, 1), epochs, options.dim, options.batch)
    found: dict[str, list[float]] = {"tensorflow": [], "torch": []}
    for seed in seeds:
        for framework, own in (("tensorflow", {}), ("torch", FIELDS)):
            model = {"ids": clicks.vocabulary, "dim": options.dim, "dense_seed": seed}
            fields = {**own, "model_params": model, "servers": 2}
            found[framework].append(job_auc(here.cluster, setup, report.say, seed, 1, **fields))
    report.text(
        f"## The same model in TensorFlow\n\nAUC on {len(clicks.held_out_ids):,} held-out records after "
        f"{epochs} epochs of SGD, one worker and two parameter servers; tables and dense parameters begin with "
        f"the same numbers. Means of {len(seeds)} seeds."
    )
    report.table(["framework", "AUC", "of each seed"], [(k, statistics.mean(v), str(v)) for k, v in found.items()])
    difference = abs(statistics.mean(found["torch"]) - statistics.mean(found["tensorflow"]))
    report.target("torch_ps_parity", difference, PARITY, at_least=False)


def starts(report: Report, options: argparse.Namespace) -> None:
    """From the launch of a worker to its first step."""
    repeats = 2 if options.quick else 7
    report.text(
        f"## Start of a worker\n\nThe digits example in PyTorch, {repeats} starts of each way, as `start` does it."
    )
    ways = start.measure_starts(report, "torch", repeats)
    start.add_table(report, ways)
    report.target("torch_start_zygote", start.whole(ways[0]), START_S, at_least=False)


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--cores", type=int, default=2, help="cores that each side may use (default: 2)")
    made.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="measure these only")
    options = made.parse_args()
    wrong = sorted(set(options.parts) - set(PARTS))
    if wrong:
        raise SystemExit(f"there are no parts {wrong}; there are: {', '.join(PARTS)}")
    cpus = sorted(os.sched_getaffinity(0))[: options.cores]
    with setting(options, 1, cpus) as here:
        report = Report("torch", "PyTorch on parameter servers", here.about(ABOUT, here.clicks(), cores=len(cpus)))
        if "single" in options.parts:
            single(here, report, cpus)
        if "parity" in options.parts:
            parity(here, report)
    if "ddp" in options.parts:
        with setting(options, DDP_WORKERS) as here:
            against_ddp(here, report)
    if "start" in options.parts:
        starts(report, options)
    if "loop" in options.parts:
        compare_own_loops(report, rounds=1 if options.quick else options.rounds)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
