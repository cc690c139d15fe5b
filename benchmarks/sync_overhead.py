"""Synchronous against asynchronous SGD with 2 PS and 4 workers.

./dev bench sync_overhead [--data FOLDER] [--quick] [--sides a,b]
"""

from __future__ import annotations

import sys

from benchmarks.harness import Report
from benchmarks.training.setting import parser, setting

WORKERS, SERVERS, GOAL = 4, 2, 0.7
ABOUT = """DeepFM by SGD on {data}, {batch} records in a minibatch, vectors of {dim}, {workers} workers and
{servers} parameter servers. Synchronous means that the gradients of {workers} minibatches make one update, and
that nobody computes on parameters which miss one. Medians of {rounds} measurements, in turns, of {seconds:g} s."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parser(__doc__).parse_args()
    with setting(options, WORKERS) as here:
        clicks = here.clicks()
        synchronous = {"use_async": False, "grads_to_wait": WORKERS}
        sides = [
            here.job("async", "asynchronous", clicks, WORKERS, SERVERS),
            here.job("sync", f"synchronous, {WORKERS} gradients an update", clicks, WORKERS, SERVERS, **synchronous),
            here.job("ahead", "asynchronous, pulls run ahead", clicks, WORKERS, SERVERS, max_staleness=2),
        ]
        about = here.about(ABOUT, clicks, workers=WORKERS, servers=SERVERS)
        report = Report("sync_overhead", "Synchronous against asynchronous SGD", about)
        found = here.compare(report, sides)
        if {"async", "sync"} <= set(found):
            report.target("sync_overhead", found["sync"].median / found["async"].median, GOAL)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
