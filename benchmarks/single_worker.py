"""One PS and one worker against the same model in one process, on the same cores.

    ./dev bench single_worker [--data FOLDER] [--quick] [--sides a,b] [--cores 2]

What distribution costs where it brings nothing: the job has a worker process and a parameter server process, the
other sides hold everything in one.
"""

from __future__ import annotations

import os
import sys

from benchmarks.harness import Report
from benchmarks.training.data import LEARNING_RATE
from benchmarks.training.processes import Team
from benchmarks.training.setting import parser, setting

GOAL = 0.8
SHUFFLED_GOAL = 0.95
ABOUT = """DeepFM by SGD on {data}, {batch} records in a minibatch, vectors of {dim}. Our job has one worker and
one parameter server that holds the tables; the in-graph sides hold the tables in the one process that trains.
All sides are bound to the same {cores} cores, and TensorFlow may use as many threads. Medians of {rounds}
measurements, in turns, of {seconds:g} s. The target compares our job as it is by default with the faster of the
in-graph sides that, like it, do without XLA: Keras' own `fit`, and a bare loop around a compiled step. The second one
is what shuffling records costs: the median over the rounds of shuffled over unshuffled speed."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--cores", type=int, default=2, help="cores that each side may use (default: 2)")
    options = made.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: options.cores]
    with setting(options, 1, cpus) as here:
        clicks = here.clicks()
        common = {"data": str(here.arrays(clicks)), "dim": options.dim, "batch": options.batch, "threads": len(cpus)}
        sgd = {"kind": "SGD", "lr": LEARNING_RATE}
        loop = {**common, "seed": 0, "xla": False}
        sides = [
            here.job("ours", "ours, 1 worker and 1 PS", clicks, 1, 1),
            here.job("ours_in_order", "ours, records in the order of the data", clicks, 1, 1, shuffle=False),
            here.job("ours_ahead", "ours, pulls run ahead", clicks, 1, 1, max_staleness=2),
            here.job("ours_bf16", "ours, bf16 on the wire", clicks, 1, 1, wire_dtype="bfloat16"),
            here.job("ours_local4", "ours, 4 local steps", clicks, 1, 1, get_model_steps=4),
            here.job("ours_xla", "ours, XLA", clicks, 1, 1, xla="on"),
            Team(
                "fit",
                "Keras fit",
                "benchmarks.peers.keras_fit",
                [{**common, "optimizer": sgd, "xla": False}],
                here.folder,
                cpus=cpus,
            ),
            Team("loop", "compiled loop", "benchmarks.peers.no_communication", [loop], here.folder, cpus=cpus),
            Team(
                "loop_xla",
                "compiled loop, XLA",
                "benchmarks.peers.no_communication",
                [{**loop, "xla": True}],
                here.folder,
                cpus=cpus,
            ),
        ]
        about = here.about(ABOUT, clicks, cores=len(cpus))
        report = Report("single_worker", "One worker against one process", about)
        found = here.compare(report, sides)
        if {"ours", "fit", "loop"} <= set(found):
            report.target("single_worker", found["ours"].median / max(found[n].median for n in ("fit", "loop")), GOAL)
        if {"ours", "ours_in_order"} <= set(found):
            report.target("single_worker_shuffled", found["ours"].over(found["ours_in_order"]), SHUFFLED_GOAL)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
