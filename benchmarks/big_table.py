"""Tables of 2 and 10 million ids trained with Adam: touched rows only against Keras' dense updates.

    ./dev bench big_table [--quick] [--sides a,b] [--millions 2,10]

Keras' Adam updates the slots of every row in each step; parameter servers update those of the rows that a minibatch
touched.
"""

from __future__ import annotations

import sys

from benchmarks.harness import Report
from benchmarks.training.data import generated
from benchmarks.training.processes import Team
from benchmarks.training.setting import parser, setting
from benchmarks.training.sides import Side

GOAL = 40
RECORDS = 400_000
ABOUT = """DeepFM by Adam on {records:,} generated clicks (zipf), {batch} records in a minibatch, vectors of
{dim}. Our job has one worker and one parameter server, without XLA; the other sides are Keras' `fit` with the
embeddings inside, on all cores, with and without XLA, of which the faster one counts. Medians of {rounds}
measurements, in turns, of {seconds:g} s (Keras finishes the step that it is in)."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = parser(__doc__, dim=16, batch=1024)
    made.add_argument("--millions", type=lambda text: [int(n) for n in text.split(",")], default=[2, 10])
    options = made.parse_args()
    if options.data:
        made.error("frappe has 5,382 ids; this benchmark generates its data")
    with setting(options, 1) as here:
        about = ABOUT.format(
            records=RECORDS, batch=options.batch, dim=options.dim, rounds=here.rounds, seconds=here.seconds
        )
        report = Report("big_table", "Big tables with Adam", about)
        for millions in options.millions:
            adam = {"kind": "Adam", "lr": 0.001}
            clicks = generated(RECORDS, millions * 1_000_000, held_out=1000)
            arguments = {
                "data": str(here.arrays(clicks)),
                "dim": options.dim,
                "batch": options.batch,
                "optimizer": adam,
            }
            sides: list[Side] = [
                here.job("ours", "ours, 1 worker and 1 PS", clicks, 1, 1, optimizer_params=adam),
                Team("keras", "Keras fit", "benchmarks.peers.keras_fit", [arguments], here.folder),
                Team(
                    "keras_plain",
                    "Keras fit, without XLA",
                    "benchmarks.peers.keras_fit",
                    [{**arguments, "xla": False}],
                    here.folder,
                ),
            ]
            report.text(f"## {millions} million ids")
            found = here.compare(report, sides)
            if {"ours", "keras", "keras_plain"} <= set(found):
                ratio = found["ours"].median / max(found[name].median for name in ("keras", "keras_plain"))
                report.target(f"big_table_{millions}m", ratio, GOAL)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
