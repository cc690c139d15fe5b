"""Losses and evaluations of a job as CSV, for spreadsheets and data frames."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import IO, Any

from elasticdl.cli.plain_text import neutralise

VERSION, LOSS, EVALUATION = "model_version", "loss", "evaluation."


def write_metrics(found: Mapping[str, Any], to: IO[str]) -> None:
    """Writes a row for each model version, in order, and a column for the loss and for each metric of evaluations.

    Args:
        found: the losses and evaluations as the API gives them.
        to: where the rows go; numbers that are none are ``nan``, ``inf`` and ``-inf`` there.
    """
    rows: dict[int, dict[str, Any]] = {}
    for one in found["losses"]:
        rows.setdefault(one["model_version"], {})[LOSS] = one["loss"]
    for one in found["evaluations"]:
        metrics = {EVALUATION + name: value for name, value in one["metrics"].items()}
        rows.setdefault(one["model_version"], {}).update(metrics)
    names = sorted({name for row in rows.values() for name in row} - {LOSS})
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow([VERSION, LOSS, *(neutralise(name) for name in names)])
    for version, row in sorted(rows.items()):
        writer.writerow([version, *(row.get(name, "") for name in (LOSS, *names))])
