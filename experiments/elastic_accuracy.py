"""Training with 4, with 8, and with 4 to 8 workers: does changing their number change the model?"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.report import Report
from benchmarks.training.data import Clicks, frappe, generated
from elasticdl import Client
from elasticdl.client import Job
from elasticdl.data.clicks import encode_clicks
from elasticdl.data.recordio import Writer
from experiments.harness.cluster import EXAMPLES, LocalCluster, command, finished, results_of, temporary_cluster
from experiments.harness.recording import count, read_journal, workers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOTS, FEW, MANY = 8, 4, 8
MINIBATCH = 128
EVALUATIONS = 8
HELD_OUT = 10_000
MODELS = {"wide_deep": "Wide & Deep", "xdeepfm": "xDeepFM"}
WAYS = {"fixed 4": "#4c78a8", "fixed 8": "#54a24b", "elastic 4-8": "#e45756"}
SWITCHES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
RUN_S = 600.0
ABOUT = f"""Does it hurt the model that the number of workers changes while it is trained? The third experiment of the
published design: Wide & Deep and xDeepFM, trained with {FEW} workers throughout, with {MANY} throughout,
and with a number that changes between the two.

Each way is run with several seeds (of the initial weights and of the order of the records) on a real local
cluster of {SLOTS} slots, with asynchronous updates on one parameter server that holds all embeddings. The
elastic runs begin with {FEW} workers; a reservation of slots that comes and goes makes it {MANY} and {FEW}
again six times, at fixed fractions of the records. Workers that leave are drained; those that come take
over in the middle of the epoch. A run is judged by the AUC on held-out records after its last update; the
curves are evaluations at pinned model versions on the way."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        model: which example.
        way: how many workers.
        seed: of weights and order.
        curve: (model version, AUC) of each evaluation, ascending.
        seconds: from submission to the end.
        workers: fewest and most workers at once between the first and last change.
        changes: how often the number of worker processes rose or fell.
        lost: records that were not done.
    """

    model: str
    way: str
    seed: int
    curve: list[tuple[int, float]]
    seconds: float
    workers: tuple[int, int]
    changes: int
    lost: int

    @property
    def auc(self) -> float:
        """After the last update."""
        return self.curve[-1][1]


def main() -> None:
    """Runs everything and writes the report."""
    parser = argparse.ArgumentParser(prog="./dev experiment elastic_accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of frappe in libfm format (default: generated clicks)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--records", type=int, default=160_000, help="generated records to train on")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the records")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 40,000 records")
    parser.add_argument("--keep", action="store_true", help="leave the cluster's directory for a look into it")
    options = parser.parse_args()
    seeds = 2 if options.quick else options.seeds
    if options.data:
        clicks = frappe(options.data)
    else:
        records = 40_000 if options.quick else options.records
        clicks = generated(records + HELD_OUT, held_out=HELD_OUT)
    report = Report(
        "elastic_accuracy",
        "Elastic training and accuracy",
        ABOUT,
        command("elastic_accuracy"),
        results_of(options.quick),
    )
    report.text(
        f"Data: {clicks.name}, {len(clicks.ids):,} records to train on in {options.epochs} epochs, "
        f"{len(clicks.held_out_ids):,} held out; minibatches of {MINIBATCH}; {seeds} seeds."
    )
    runs = run_all(report, clicks, seeds, options.epochs, options.keep)
    describe(report, runs)
    report.write()


def run_all(report: Report, clicks: Clicks, seeds: int, epochs: int, keep: bool) -> list[Run]:
    """All runs, one after the other, on one cluster."""
    runs = []
    with temporary_cluster(keep) as cluster:
        data = cluster.directory / "data"
        write(clicks, data)
        # The policy that gives a job what is free: here the number of workers is set, not earned.
        with cluster.up(SLOTS, "fair") as client:
            report.say("the cluster is up")
            for model in MODELS:
                for seed in range(seeds):
                    for way in WAYS:
                        one = run(cluster, client, data, clicks, model, way, seed, epochs)
                        report.say(
                            f"{model}, {way}, seed {seed}: AUC {one.auc:.4f} in {one.seconds:.0f} s, "
                            f"{one.workers[0]} to {one.workers[1]} workers, {one.changes} changes"
                        )
                        runs.append(one)
    return runs


def write(clicks: Clicks, folder: Path) -> None:
    """Writes the clicks as the examples read them."""
    parts = {"train": (clicks.ids, clicks.labels), "validation": (clicks.held_out_ids, clicks.held_out_labels)}
    for name, (ids, labels) in parts.items():
        (folder / name).mkdir(parents=True)
        with Writer(folder / name / "part-00000.recordio", compressor="none", records_per_chunk=4096) as writer:
            for record in encode_clicks(ids, labels):
                writer.write(record)


def run(
    cluster: LocalCluster,
    client: Client,
    data: Path,
    clicks: Clicks,
    model: str,
    way: str,
    seed: int,
    epochs: int,
) -> Run:
    """Trains once."""
    fewest, most = {"fixed 4": (FEW, FEW), "fixed 8": (MANY, MANY)}.get(way, (FEW, MANY))
    updates = len(clicks.ids) * epochs // MINIBATCH
    started = time.monotonic()
    if fewest != most:
        client.reserve("others", SLOTS - FEW, grace_s=30.0)
    job = client.submit(
        name=f"{model.replace('_', '-')}-{way.replace(' ', '-')}-{seed}",
        model_zoo=str(EXAMPLES / model / "zoo"),
        model_def=f"{model}.forward",
        model_params={"ids": clicks.vocabulary},
        training_data=str(data / "train"),
        validation_data=str(data / "validation"),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=8,
        num_epochs=epochs,
        evaluation_steps=max(1, updates // EVALUATIONS),
        distribution_strategy="ParameterServerStrategy",
        embedding_threshold_bytes=0,
        xla="off",
        seed=seed,
        min_workers=fewest,
        max_workers=most,
        log_loss_steps=100_000,
        export_formats="keras",
    )
    if fewest != most:
        sway(client, job)
    job = finished(client.wait(job.id, timeout_s=RUN_S, poll_s=0.2))
    seconds = time.monotonic() - started
    evaluations = client.metrics(job.id)["evaluations"]
    curve = sorted((int(one["model_version"]), float(one["metrics"]["auc"])) for one in evaluations)
    level = count(workers_of(read_journal(cluster.journal), job.id))
    # The ends of a job, where workers come and go one after the other, are no changes.
    risen = next((k for k, value in enumerate(level.values) if value >= fewest), 0)
    fallen = max((k for k, value in enumerate(level.values) if value >= fewest), default=0)
    during = [int(value) for value in level.values[risen : fallen + 1]]
    progress = job.status.progress
    return Run(
        model,
        way,
        seed,
        curve,
        seconds,
        (min(during), max(during)),
        len(during) - 1,
        progress.records_total - progress.records_done,
    )


def sway(client: Client, job: Job) -> None:
    """Lets the slots of half of the workers come and go as the job goes on; all are free at the end."""
    reserved = True
    for fraction in SWITCHES:
        while True:
            job = client.get(job.id)
            if job.state.terminal or job.status.progress.fraction >= fraction:
                break
            time.sleep(0.1)
        reserved = not reserved
        client.reserve("others", SLOTS - FEW if reserved else 0, grace_s=30.0)
    client.reserve("others", 0)


def describe(report: Report, runs: list[Run]) -> None:
    """Tables, targets and plots."""
    report.text("## Final AUC")
    rows = []
    for model, title in MODELS.items():
        for way in WAYS:
            found = [one for one in runs if (one.model, one.way) == (model, way)]
            aucs = np.array([one.auc for one in found])
            few, many = min(one.workers[0] for one in found), max(one.workers[1] for one in found)
            rows.append(
                [
                    title,
                    way,
                    f"{aucs.mean():.4f}",
                    f"{aucs.min():.4f}",
                    f"{aucs.max():.4f}",
                    f"{few} to {many}",
                    f"{np.mean([one.changes for one in found]):.1f}",
                    float(np.mean([one.seconds for one in found])),
                ]
            )
    names = ["model", "workers", "mean AUC", "least", "greatest", "workers seen", "changes a run", "seconds a run"]
    report.table(names, rows)
    for model, title in MODELS.items():
        fixed = [one.auc for one in runs if one.model == model and one.way != "elastic 4-8"]
        elastic = [one.auc for one in runs if one.model == model and one.way == "elastic 4-8"]
        difference = abs(float(np.mean(elastic)) - float(np.mean(fixed)))
        spread = spread_of(runs, model)
        report.target(f"elastic_auc_{model}", difference, spread, at_least=False)
        report.text(
            f"{title}: the mean AUC of the elastic runs differs from that of the fixed ones by {difference:.5f}; "
            f"seeds alone make {spread:.5f} (greatest less least AUC of a fixed size, the larger of both)."
        )
        report.plot(model, plot(runs, model), f"AUC of {title} by model version, one line a run")
    report.target("elastic_lost_records", sum(max(0, one.lost) for one in runs), 0, at_least=False)


def spread_of(runs: list[Run], model: str) -> float:
    """The range of the final AUC over the seeds of one fixed size; the larger of the two sizes'."""
    ranges = []
    for way in ("fixed 4", "fixed 8"):
        aucs = [one.auc for one in runs if (one.model, one.way) == (model, way)]
        ranges.append(max(aucs) - min(aucs))
    return max(ranges)


def plot(runs: list[Run], model: str) -> Figure:
    """The curves of all runs of a model."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    labelled = set()
    for one in (run for run in runs if run.model == model):
        versions, aucs = zip(*one.curve, strict=True)
        label = None if one.way in labelled else one.way
        labelled.add(one.way)
        axes.plot(versions, aucs, color=WAYS[one.way], linewidth=1, alpha=0.8, label=label, marker=".", markersize=3)
    axes.set_xlabel("updates")
    axes.set_ylabel("AUC on held-out records")
    axes.set_title(MODELS[model], fontsize=10)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
