"""Measures the models that statements without a model find, against tuned gradient boosting, on rows neither saw.

    python benchmarks/automl.py [--rounds N] [--tables NAME ...]

The tables come with scikit-learn. In each round another quarter of the rows is kept for the comparison.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.report import Report

GRID = {"learning_rate": [0.03, 0.1, 0.3], "max_leaf_nodes": [4, 15, 31], "l2_regularization": [0.0, 1.0]}
TABLES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "breast_cancer": (datasets.load_breast_cancer, lambda y: y),
    "digits": (datasets.load_digits, lambda y: y >= 5),
    "diabetes": (datasets.load_diabetes, lambda y: y > np.median(y)),
    "wine": (datasets.load_wine, lambda y: y == 1),
}
"""Tables, and which rows of each are of the second class."""
_TRIED_S = 1800.0


def main() -> None:
    """Runs the rounds and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    given = parser.parse_args()
    report = Report(
        "automl",
        "Statements without a model",
        f"`SELECT ... LABEL y INTO m` against scikit-learn's `HistGradientBoostingClassifier` with the best of "
        f"{np.prod([len(one) for one in GRID.values()])} settings by five folds, both over the same three quarters "
        f"of the rows, {given.rounds} times anew. What counts is the area under the curve over the other quarter.",
    )
    rows = []
    for name in given.tables:
        found = []
        for seed in range(given.rounds):
            found.append(compare(name, seed))
            report.say(f"{name}, round {seed}: {found[-1][0]:.4f}, boosting {found[-1][1]:.4f}; {found[-1][2]}")
        differences = [ours - theirs for ours, theirs, _ in found]
        means = [statistics.mean(column) for column in list(zip(*found, strict=True))[:2]]
        spread = f"{min(differences):+.4f} to {max(differences):+.4f}"
        chosen = ", ".join(sorted({one for _, _, one in found}))
        rows.append([name, *(f"{one:.4f}" for one in means), f"{statistics.mean(differences):+.4f}", spread, chosen])
        report.target(f"automl_{name}_auc_behind_boosting", -statistics.mean(differences), 0.01, at_least=False)
    report.table(["table", "found", "boosting", "difference", "over the rounds", "models"], rows)
    report.write()


def compare(name: str, seed: int) -> tuple[float, float, str]:
    """Areas under the curve of the model that is found and of boosting, and the found model's name."""
    load, second = TABLES[name]
    values, labels = load(return_X_y=True)
    labels = second(labels).astype(int)
    parts = train_test_split(values, labels, test_size=0.25, random_state=seed, stratify=labels)
    train_x, test_x, train_y, test_y = parts
    tuned = GridSearchCV(HistGradientBoostingClassifier(random_state=0), GRID, scoring="roc_auc", cv=5)
    tuned.fit(train_x, train_y)
    theirs = float(roc_auc_score(test_y, tuned.predict_proba(test_x)[:, 1]))
    with tempfile.TemporaryDirectory(prefix="elasticdl-automl-") as folder:
        path = Path(folder) / "rows.db"
        names = [f"c{at}" for at in range(values.shape[1])]
        with closing(sqlite3.connect(path)) as connection, connection:
            for table, x, y in (("seen", train_x, train_y), ("unseen", test_x, test_y)):
                connection.execute(f"CREATE TABLE {table} ({' REAL, '.join(names)} REAL, y INTEGER)")
                marks = ", ".join("?" * (len(names) + 1))
                pairs = zip(x.tolist(), y.tolist(), strict=True)
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})", [(*row, label) for row, label in pairs]
                )
        found = run(folder, "SELECT * FROM seen LABEL y INTO m")
        told = run(folder, "SELECT * FROM unseen TO EVALUATE m LABEL y")
    model = re.search(r"(\w+) \(.*is trained on all rows", found)
    area = re.search(r"\bauc ([0-9.]+)", told)
    assert model is not None and area is not None, found + told
    return float(area[1]), theirs, model[1].removesuffix("Classifier")


def run(folder: str, statement: str) -> str:
    """Runs a statement in one process; returns what it printed."""
    command = [sys.executable, "-m", "elasticdl", "sql", "--local", "--source", "sqlite:///rows.db", statement]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TRIED_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    main()
