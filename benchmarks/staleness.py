"""Measures the cost of late gradients in accuracy, and how much of that delay compensation gives back.

./dev bench staleness [--data FOLDER] [--epochs 10] [--seeds 3] [--strengths 10,30,100] [--processes]

Without ``--processes`` gradients are late by a number of updates that is always the same, in one process; with it
jobs with four worker processes are compared with Keras in one process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.training.accuracy import GOAL, KerasRuns, Setup, add_table, job_auc
from benchmarks.training.cluster import Cluster
from benchmarks.training.data import Clicks, frappe, generated
from benchmarks.training.late import How, LateTraining

WORKERS, SERVERS, LOCAL_STEPS = 4, 2, 4
ABOUT = """DeepFM (ten fields, vectors of {dim}) by SGD with a rate of {rate} and {batch} records in a minibatch, on
{data}: AUC on {held_out:,} held-out records after {epochs} epochs."""
DELAYS = """Each side trains with the parameter server's
store and the worker's compiled step, in one process, with delays that are always the same: with four workers each
push of four minibatches is three pushes late. One worker, a minibatch a push, is Keras' own training to rounding. The
sides of a seed share first values and the order of records."""
PROCESSES = """Ours are jobs on a local cluster with {workers} worker processes and {servers} parameter servers.
*4 local steps* are `--get_model_steps 4`. How late a gradient is depends on how the machine shares its cores between
the workers. Keras trains with `fit` in one process. Differences are between runs with the same seed, which sets the
first values and the order of records; those of Keras are not the same as ours."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of frappe in libfm format (default: generated clicks)")
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--strengths", type=_numbers, default=[10, 30, 100], help="values of --delay_compensation")
    made.add_argument("--processes", action="store_true", help="compare jobs with real processes with Keras")
    options = made.parse_args()
    clicks = frappe(options.data) if options.data else generated()
    (with_processes if options.processes else with_delays)(options, clicks)
    return 0


def with_delays(options: argparse.Namespace, clicks: Clicks) -> None:
    """Delays that are always the same."""
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
    report = Report("staleness", "Late gradients, and their compensation", f"{_about(clicks, options)} {DELAYS}")
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


def with_processes(options: argparse.Namespace, clicks: Clicks) -> None:
    """Jobs with worker processes, whose delays are what the machine makes them."""
    local = {"get_model_steps": LOCAL_STEPS}
    sides = {
        "each_step": ("4 workers, each step", {}),
        "local4": ("4 workers, 4 local steps", local),
        **{
            f"compensated_{strength:g}": (
                f"the same, delay_compensation {strength:g}",
                {**local, "delay_compensation": strength},
            )
            for strength in options.strengths
        },
    }
    labels = {"keras": "Keras fit, 1 process", **{name: label for name, (label, _) in sides.items()}}
    about = f"{_about(clicks, options)} {PROCESSES.format(workers=WORKERS, servers=SERVERS)}"
    strengths = ",".join(f"{strength:g}" for strength in options.strengths)
    given = f"{'--data DIR ' if options.data else ''}--epochs {options.epochs} --seeds {options.seeds}"
    command = f"./dev bench staleness --processes {given} --strengths {strengths}"
    report = Report("staleness_processes", "Late gradients of real workers, and their compensation", about, command)
    aucs: dict[str, list[float]] = {name: [] for name in labels}
    with tempfile.TemporaryDirectory(prefix="elasticdl-bench-") as name:
        folder = Path(name)
        clicks.write_records(folder / "records")
        arrays = clicks.save(folder / "arrays.npz")
        how = How()
        setup = Setup(clicks, arrays, folder / "records", options.epochs, how.dim, how.batch)
        with KerasRuns(setup, folder / "keras.log") as keras:
            for seed in range(options.seeds):
                aucs["keras"].append(keras.auc(seed))
                report.say(f"Keras with seed {seed}: {aucs['keras'][-1]:.4f}")
        with Cluster(folder / "cluster", WORKERS) as cluster:
            for seed in range(options.seeds):
                for side, (label, fields) in sides.items():
                    aucs[side].append(job_auc(cluster, setup, report.say, seed, WORKERS, servers=SERVERS, **fields))
                    report.say(f"{label} with seed {seed}: {aucs[side][-1]:.4f}")
    means = add_table(report, labels, aucs)
    report.target("processes_auc_each_step", means["each_step"], GOAL)
    report.target("processes_auc_local4", means["local4"], GOAL)
    compensated = [mean for side, mean in means.items() if side.startswith("compensated")]
    if compensated:
        report.target("processes_auc_compensated", max(compensated), GOAL)
    report.write()


def _about(clicks: Clicks, options: argparse.Namespace) -> str:
    how = How()
    return ABOUT.format(
        dim=how.dim,
        rate=how.rate,
        batch=how.batch,
        data=clicks.name,
        held_out=len(clicks.held_out_ids),
        epochs=options.epochs,
    )


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main())
