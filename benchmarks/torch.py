"""PyTorch: one PS and one worker against a plain loop of PyTorch in one process, on the same cores.

./dev bench torch [--data FOLDER] [--quick] [--sides a,b] [--cores 2]
"""

from __future__ import annotations

import os
import sys

from benchmarks.harness import Report
from benchmarks.training.data import LEARNING_RATE
from benchmarks.training.processes import Team
from benchmarks.training.setting import parser, setting

GOAL = 0.8
ABOUT = """DeepFM in PyTorch by SGD on {data}, {batch} records in a minibatch, vectors of {dim}. Our job has one
worker and one parameter server that holds the tables; a plain loop has them in its one process, with dense gradients
or with `sparse=True`. All sides are bound to the same {cores} cores. Medians of {rounds} measurements, in turns, of
{seconds:g} s. The target compares our job with the faster of the loops."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--cores", type=int, default=2, help="cores that each side may use (default: 2)")
    options = made.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: options.cores]
    with setting(options, 1, cpus) as here:
        clicks = here.clicks()
        common = {"data": str(here.arrays(clicks)), "dim": options.dim, "batch": options.batch, "threads": len(cpus)}
        fields = {
            "model_def": "deepfm_torch.forward",
            "xla": "auto",
            "optimizer_params": {"kind": "SGD", "lr": LEARNING_RATE},
        }
        peer = "benchmarks.peers.torch_loop"
        sides = [
            here.job("ours", "ours, 1 worker and 1 PS", clicks, 1, 1, **fields),
            here.job("ours_ahead", "ours, pulls run ahead", clicks, 1, 1, **fields, max_staleness=2),
            Team("dense", "PyTorch loop", peer, [{**common, "seed": 0, "sparse": False}], here.folder, cpus=cpus),
            Team("sparse", "PyTorch, sparse", peer, [{**common, "seed": 0, "sparse": True}], here.folder, cpus=cpus),
        ]
        about = here.about(ABOUT, clicks, cores=len(cpus))
        report = Report("torch", "PyTorch on parameter servers", about)
        found = here.compare(report, sides)
        if {"ours", "dense", "sparse"} <= set(found):
            best = max(found[name].median for name in ("dense", "sparse"))
            report.target("torch_single_worker", found["ours"].median / best, GOAL)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
