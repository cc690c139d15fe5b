"""Reads what a prediction job wrote."""

from __future__ import annotations

import csv
from pathlib import Path


def read_predictions(folder: Path) -> dict[tuple[str, int], list[float]]:
    """The predictions of a folder of CSV files, by their records; each record once."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted(folder.iterdir()):
        with path.open(newline="") as file:
            titles, *rows = csv.reader(file)
        assert titles[:2] == ["file", "row"]
        for name, row, *values in rows:
            assert (name, int(row)) not in found
            found[name, int(row)] = [float(value) for value in values]
    assert found
    return found
