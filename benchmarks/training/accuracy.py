"""Compares the accuracy of jobs with real processes with Keras in one process on the same data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import Report
from benchmarks.training.cluster import Cluster, job_fields
from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.processes import Member
from benchmarks.training.sides import Say

OPTIMIZER = {"kind": "SGD", "lr": LEARNING_RATE}
GOAL = -0.003
_KERAS_S = 900.0


@dataclass(frozen=True)
class Setup:
    """The setup that all runs of a comparison share.

    Attributes:
        clicks: the data.
        arrays: its file for Keras.
        records: its folder for jobs.
        epochs: passes over the data.
        dim: numbers in a vector.
        batch: records in a minibatch.
    """

    clicks: Clicks
    arrays: Path
    records: Path
    epochs: int
    dim: int
    batch: int


class KerasRuns:
    """Trains with Keras' own ``fit`` in one process. Use it as a context manager.

    Args:
        setup: what to train on.
        log: file for the process's output.
    """

    def __init__(self, setup: Setup, log: Path) -> None:
        arguments = {"data": str(setup.arrays), "dim": setup.dim, "batch": setup.batch, "optimizer": OPTIMIZER}
        self._epochs = setup.epochs
        self._process = Member("benchmarks.peers.keras_fit", arguments, log)
        self._process.answer()

    def auc(self, seed: int) -> float:
        """The AUC of a model that is trained anew."""
        self._process.ask({"epochs": self._epochs, "seed": seed})
        return float(self._process.answer(_KERAS_S)["auc"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()


def job_auc(cluster: Cluster, setup: Setup, say: Say, seed: int, workers: int, **fields: Any) -> float:
    """The AUC of a job that is trained to its end.

    Raises:
        RuntimeError: the job failed.
    """
    whole = {
        "num_epochs": setup.epochs,
        "num_minibatches_per_task": 4,
        "validation_data": str(setup.records / "validation"),
        "optimizer_params": OPTIMIZER,
        "min_workers": workers,
        "max_workers": workers,
        "seed": seed,
        **fields,
    }
    done = cluster.run(say, **job_fields(setup.clicks, setup.records, dim=setup.dim, batch=setup.batch, **whole))
    return float(done["status"]["metrics"]["auc"])


def add_table(report: Report, labels: Mapping[str, str], aucs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Adds the AUC of each side and its difference from Keras', seed by seed, to a report.

    Args:
        report: of the benchmark.
        labels: of the sides, for people.
        aucs: of the sides, one for each seed; ``keras`` is the one that the others are compared with.

    Returns:
        The mean difference from Keras of each other side.
    """
    keras, rows, means = aucs["keras"], [], {}
    for name, found in aucs.items():
        differences = [one - other for one, other in zip(found, keras, strict=True)]
        mean = means[name] = statistics.mean(differences)
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
        shown = ", ".join(f"{one:.4f}" for one in found)
        spread = max(differences) - min(differences)
        rows.append(
            [labels[name], f"{statistics.mean(found):.4f}", f"{mean:+.4f}", f"{error:.4f}", f"{spread:.4f}", shown]
        )
    del means["keras"]
    columns = ["side", "AUC", "against Keras", "standard error", "greatest less least", "AUC of each seed"]
    report.table(columns, rows)
    return means
