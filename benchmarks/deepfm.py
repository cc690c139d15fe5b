"""DeepFM with 2 PS and 4 workers against what a user would otherwise pick, and against no communication.

    ./dev bench deepfm [--data FOLDER] [--quick] [--sides a,b] [--dim 64] [--batch 512]

All sides train the same model on the same data with the same minibatches and the same number of processes, and take
turns. Ours are jobs on a local cluster, measured by the records that the workers report as processed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Sample
from benchmarks.training.accuracy import GOAL, OPTIMIZER, KerasRuns, Setup, add_table, job_auc
from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.processes import Team, free_addresses
from benchmarks.training.setting import Setting, parser, setting
from benchmarks.training.sides import Side

WORKERS, SERVERS = 4, 2
OURS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "step": ("ours, each step", {}),
    "step_ahead": ("ours, each step, pulls run ahead", {"max_staleness": 2}),
    "step_bf16": ("ours, each step, bf16", {"wire_dtype": "bfloat16"}),
    "local4": ("ours, 4 local steps", {"get_model_steps": 4}),
    "local4_bf16": ("ours, 4 local steps, bf16", {"get_model_steps": 4, "wire_dtype": "bfloat16"}),
}
TF_SIDES = (
    ("tf_step", "TensorFlow ParameterServerStrategy, 1 step a call", 1),
    ("tf_10_steps", "TensorFlow ParameterServerStrategy, 10 steps a call", 10),
)
AUC_OF = {"step": "each_step", "local4": "local4"}
ABOUT = """DeepFM (ten fields) by asynchronous SGD with {batch} records in a minibatch and vectors of {dim}, on
{data}: {workers} workers and {servers} parameter servers as processes on one machine, samples a second of all
workers. Each side is measured {rounds} times, in turns, for {seconds:g} s after a warm-up; medians count.

Ours are real jobs on a local cluster: tasks leased from the master, records read and parsed from RecordIO,
tables on the parameter servers (`--embedding_threshold_bytes 0`), no XLA. All other sides have their
minibatches in memory already. *No communication* are processes that each train a model of their own: what would
be left if parameter servers cost nothing. *The original's design* and *Redis, 2019* are re-implementations of
those designs made for this comparison (`benchmarks/peers`), not the programs of their time."""


def peers(data: Path, dim: int, batch: int, logs: Path) -> list[Side]:
    """All sides that are not ours."""
    common = {"data": str(data), "dim": dim, "batch": batch}
    each = [{**common, "seed": seed} for seed in range(WORKERS)]
    sgd = {"kind": "SGD", "lr": LEARNING_RATE}
    return [
        Team(
            "alone",
            f"no communication, {WORKERS} processes",
            "benchmarks.peers.no_communication",
            [{**one, "xla": False} for one in each],
            logs,
        ),
        Team(
            "alone_xla",
            f"no communication, {WORKERS} processes, XLA",
            "benchmarks.peers.no_communication",
            [{**one, "xla": True} for one in each],
            logs,
        ),
        Team(
            "redis_2019",
            "Redis, 2019 design",
            "benchmarks.peers.redis_store",
            [{**one, "pipelined": False} for one in each],
            logs,
            ("benchmarks.peers.redis_server", [{"folder": str(logs / "redis-2019")}]),
        ),
        Team(
            "redis_pipelined",
            "Redis, one MGET and one MSET a step",
            "benchmarks.peers.redis_store",
            [{**one, "pipelined": True} for one in each],
            logs,
            ("benchmarks.peers.redis_server", [{"folder": str(logs / "redis-pipelined")}]),
        ),
        Team(
            "original",
            "the original's design",
            "benchmarks.peers.original",
            each,
            logs,
            (
                "benchmarks.peers.original_server",
                [{"dim": dim, "index": index, "count": SERVERS} for index in range(SERVERS)],
            ),
        ),
        *(tf_strategy(name, label, steps, common, logs) for name, label, steps in TF_SIDES),
        Team("keras", "Keras fit, 1 process", "benchmarks.peers.keras_fit", [{**common, "optimizer": sgd}], logs),
    ]


def tf_strategy(name: str, label: str, steps: int, common: Mapping[str, Any], logs: Path) -> Side:
    """TensorFlow's own parameter servers: a coordinator besides."""
    cluster = free_addresses({"worker": WORKERS, "ps": SERVERS})
    tasks = [
        {"cluster": cluster, "role": role, "index": index} for role in cluster for index in range(len(cluster[role]))
    ]
    coordinator = {**common, "cluster": cluster, "steps": steps}
    servers = ("benchmarks.peers.tf_server", tasks)
    return Team(name, label, "benchmarks.peers.tf_strategy", [coordinator], logs, servers)


def plot(report: Report, found: Mapping[str, Sample], labels: Mapping[str, str]) -> None:
    """A bar a side, the fastest on top."""
    from matplotlib.figure import Figure

    order = sorted(found, key=lambda name: found[name].median)
    figure = Figure(figsize=(8, 0.4 * len(order) + 1))
    axes = figure.subplots()
    colours = ["#1f77b4" if name in OURS else "#bbbbbb" if name.startswith("alone") else "#d98c40" for name in order]
    bars = axes.barh([labels[name] for name in order], [found[name].median for name in order], color=colours)
    axes.bar_label(bars, [f"{found[name].median:,.0f}" for name in order], padding=3, fontsize=8)
    axes.set_xlabel("samples a second")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    report.plot("sides", figure, "samples a second of each side")


def targets(report: Report, found: Mapping[str, Sample]) -> None:
    """The targets whose sides were all measured."""

    def ratio(name: str, ours: str, others: tuple[str, ...], goal: float) -> None:
        known = [found[other].median for other in others if other in found]
        if ours in found and len(known) == len(others):
            report.target(name, found[ours].median / max(known), goal)

    ratio("deepfm_vs_tf_best", "step", ("tf_step", "tf_10_steps"), 2.0)
    ratio("deepfm_vs_tf_step", "step", ("tf_step",), 3.5)
    ratio("deepfm_vs_original", "step", ("original",), 7)
    ratio("deepfm_vs_redis2019", "step", ("redis_2019",), 50)
    ratio("deepfm_limit", "step", ("alone",), 0.75)
    ratio("deepfm_limit_local4", "local4", ("alone",), 0.92)


def accuracy(report: Report, clicks: Clicks, here: Setting) -> None:
    """AUC on what was held out after some epochs: ours against single-process Keras, means over seeds."""
    options, seeds = here.options, range(1 if here.options.quick else 3)
    report.text(
        f"## Accuracy\n\nAUC on {len(clicks.held_out_ids):,} held-out records after {options.epochs} epochs with "
        f"{OPTIMIZER['kind']}, mean of {len(seeds)} seed{'s' * (len(seeds) > 1)}: a seed alone moves it by "
        "some thousandths."
    )
    setup = Setup(clicks, here.arrays(clicks), here.records(clicks, 1), options.epochs, options.dim, options.batch)
    labels = {"keras": "Keras fit, 1 process"}
    aucs: dict[str, list[float]] = {"keras": []}
    with KerasRuns(setup, here.folder / "keras-auc.log") as keras:
        for seed in seeds:
            aucs["keras"].append(keras.auc(seed))
            report.say(f"AUC of single-process Keras with seed {seed}: {aucs['keras'][-1]:.4f}")
    for name in AUC_OF:
        if options.sides and name not in options.sides:
            continue
        labels[name], fields = OURS[name]
        try:
            aucs[name] = [
                job_auc(here.cluster, setup, report.say, seed, WORKERS, servers=SERVERS, **fields) for seed in seeds
            ]
        except RuntimeError as error:
            report.say(f"{labels[name]}: no AUC: {error}")
    means = add_table(report, labels, aucs)
    for name, target in AUC_OF.items():
        if name in means:
            report.target(f"deepfm_auc_{target}", means[name], GOAL)


def main() -> int:
    """Runs the command line; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--epochs", type=int, default=10, help="epochs before the AUC is compared; 0 skips that")
    options = made.parse_args()
    with setting(options, WORKERS) as here:
        clicks = here.clicks()
        data = f"{clicks.name}, {len(clicks.ids):,} records of {clicks.vocabulary:,} ids"
        about = here.about(ABOUT, clicks, data=data, workers=WORKERS, servers=SERVERS)
        report = Report("deepfm", "DeepFM against other ways to train it", about)
        sides: list[Side] = [
            here.job(name, label, clicks, WORKERS, SERVERS, **fields) for name, (label, fields) in OURS.items()
        ]
        sides += peers(here.arrays(clicks), options.dim, options.batch, here.folder)
        report.text("## Speed")
        found = here.compare(report, sides)
        plot(report, found, {side.name: side.label for side in sides})
        targets(report, found)
        if options.epochs and (not options.sides or set(options.sides) & set(AUC_OF)):
            accuracy(report, clicks, here)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
