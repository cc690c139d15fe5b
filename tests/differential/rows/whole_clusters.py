"""Rows that go through the command line: ``elasticdl train --local``, and ``elasticdl train`` on a cluster of processes.

They are about what the other rows leave out: flags, the upload of the zoo, the agent that starts processes, the
environment of a worker, and artifacts.
"""

from __future__ import annotations

from typing import Any

from tests.differential.data import several_files, validated
from tests.differential.driver import Row
from tests.differential.rows.embeddings import FLAT, SMALL, TABLES, ids
from tests.differential.rows.legacy import keras2
from tests.differential.zoo import module, net

ADAM = "def optimizer():\n    return keras.optimizers.Adam(0.01)"


def row(name: str, *parts: str, **more: Any) -> Row:
    """A row of this file."""
    return Row(f"cli_{name}", module(*parts), "whole clusters", **more)


ROWS = [
    row(
        "trains", ADAM, "eval_metrics_fn = lambda: {'mae': keras.metrics.MeanAbsoluteError()}", data=validated, two=""
    ),
    row("refused_at_submission", "def optimizer():\n    return keras.optimizers.Nadam(0.1)", refused="Nadam"),
    row("refused", "def loss(labels, predictions):\n    return 1 / 0", refused="raised ZeroDivisionError"),
    row("two_workers", ids(SMALL, FLAT), ADAM, spec=TABLES),
    row(
        "envs",
        "import os",
        net("h = layers.Dense(int(os.environ['WIDTH']))(h)"),
        spec={"envs": {"WIDTH": "5"}},
        two="",
    ),
    row("files_shuffled", data=several_files, spec={"shuffle": True, "num_epochs": 3}, two=""),
    row(
        "params",
        "def optimizer(lr=0.1, kind='SGD'):\n    return getattr(keras.optimizers, kind)(lr)",
        "def forward(units=2):\n    return keras.Sequential([layers.Dense(units), layers.Dense(1)])",
        spec={"optimizer_params": {"lr": 0.02, "kind": "Adam"}, "model_params": {"units": 3}},
        two="",
    ),
    row("diverges", "def optimizer():\n    return keras.optimizers.SGD(1e30)", refused="in the minibatch of"),
    row("exits", "import os\n\n\ndef forward():\n    raise SystemExit(7)", refused="called sys.exit(7)"),
    keras2("cli", ADAM, two=""),
]
