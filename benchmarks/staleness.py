"""What late gradients cost in accuracy, and how much of that delay compensation gives back.

./dev bench staleness [--data FOLDER] [--epochs 10] [--seeds 3] [--strengths 10,30,100,300]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.training.data import LEARNING_RATE, frappe, generated
from benchmarks.training.late import How, LateTraining

WORKERS, LOCAL_STEPS = 4, 4
GOAL = -0.003
ABOUT = """DeepFM (ten fields, vectors of {dim}) by SGD with a rate of {rate} and {batch} records in a minibatch, on
{data}: AUC on {held_out:,} held-out records after {epochs} epochs. Each side trains with the parameter server's
store and the worker's compiled step, in one process, with delays that are always the same: with four workers each
push of four minibatches is three pushes late. One worker, a minibatch a push, is Keras' own training to rounding. The
sides of a seed share first values and the order of records."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of frappe in libfm format (default: generated clicks)")
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument(
        "--strengths", type=lambda text: [float(part) for part in text.split(",")], default=[10, 30, 100]
    )
    options = made.parse_args()
    clicks = frappe(options.data) if options.data else generated()
    late = How(WORKERS, LOCAL_STEPS)
    sides = {
        "1 worker, each step": How(),
        "1 worker, 4 local steps": How(1, LOCAL_STEPS),
        "4 workers, 4 local steps": late,
        **{
            f"the same, delay_compensation {strength:g}": How(WORKERS, LOCAL_STEPS, strength)
            for strength in options.strengths
        },
    }
    about = ABOUT.format(
        dim=late.dim,
        rate=LEARNING_RATE,
        batch=late.batch,
        data=clicks.name,
        held_out=len(clicks.held_out_ids),
        epochs=options.epochs,
    )
    report = Report("staleness", "Late gradients, and their compensation", about)
    found: dict[str, list[float]] = {}
    for name, how in sides.items():
        found[name] = [LateTraining(clicks, how, seed).run(options.epochs) for seed in range(options.seeds)]
        report.say(f"{name}: {found[name]}")
    first, *_ = found
    means = {name: statistics.mean(aucs) for name, aucs in found.items()}
    report.table(
        ["side", "AUC", "against 1 worker, each step", "seeds"],
        [
            (name, f"{mean:.4f}", f"{mean - means[first]:+.4f}", ", ".join(f"{auc:.4f}" for auc in found[name]))
            for name, mean in means.items()
        ],
    )
    best = max(mean for name, mean in means.items() if "compensation" in name)
    report.target("staleness_auc_compensated", best - means[first], GOAL)
    report.write()
    return 0


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
