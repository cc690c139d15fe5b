"""Importance of columns: the metrics of an evaluation, where the values of one column are those of other rows."""

from __future__ import annotations

import csv
import io
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from elasticdl.sql.source import SelectedRows, placed_by_digest
from elasticdl_runtime import durable

FIELDS = ("metric", "column", "value", "shuffled")
"""Names of what an importance consists of."""
_BETWEEN = "_shuffled_"
_MODULE = '''"""Importance of the columns of {name}: its metrics where one column holds the values of other rows."""

import keras
import tensorflow as tf

import model

LABEL = len(model.COLUMNS)  # the cell of the label, as NUMBER:LABEL: 0, or which column holds values of other rows


class OfRows(keras.metrics.Metric):
    def __init__(self, metric, shuffled):
        super().__init__(name=f"{{metric.name}}_{{shuffled}}")
        self.metric, self.shuffled = metric, shuffled

    def update_state(self, labels, predictions):
        chosen = keras.ops.cast(labels[:, 0] == self.shuffled, "float32")
        self.metric.update_state(labels[:, 1:], predictions, sample_weight=chosen)

    def result(self):
        return self.metric.result()


def forward():
    return model.forward()


def loss(labels, predictions):
    return model.loss(labels[:, 1:], predictions)


def optimizer(lr=0.001):
    return model.optimizer(lr)


def eval_metrics_fn():
    found = {{name: OfRows(metric, 0) for name, metric in model.eval_metrics_fn().items()}}
    for at, column in enumerate(model.COLUMNS, 1):
        for name, metric in model.eval_metrics_fn().items():
            found[f"{{name}}{between}{{column}}"] = OfRows(metric, at)
    return found


def feed(dataset, mode, metadata):
    def read(row):
        shuffled = tf.strings.to_number(tf.strings.regex_replace(row[LABEL], "(?s):.*", ""))
        label = tf.strings.regex_replace(row[LABEL], "^[0-9]+:", "")
        features, label = model.read([*(row[at] for at in range(LABEL)), label], mode)
        return features, tf.stack([tf.cast(shuffled, label.dtype), tf.reshape(label, [])])

    return dataset.map(read)
'''


def write_explanation(name: str) -> str:
    """The text of a module that evaluates a model's rows and, of each column, the rows in which it is shuffled."""
    return _MODULE.format(name=name, between=_BETWEEN)


def shuffle_columns(snapshot: SelectedRows, folder: Path) -> SelectedRows:
    """The rows, and again for each column but the last with its values shuffled; before the last it says which.

    A model takes no more columns than it was trained on, so that the number has none of its own. Of the values one
    column is in memory at a time. The shuffles are the same each time.
    """
    partial = folder / f".partial-{os.getpid()}.csv"
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([*row[:-1], f"0:{row[-1]}"] for row in _rows(snapshot.path))
        for at in range(len(snapshot.columns) - 1):
            values = [row[at] for row in _rows(snapshot.path)]
            random.Random(at).shuffle(values)
            for row, value in zip(_rows(snapshot.path), values, strict=True):
                writer.writerow([*row[:at], value, *row[at + 1 : -1], f"{at + 1}:{row[-1]}"])
    return SelectedRows(placed_by_digest(partial), snapshot.columns, snapshot.rows * len(snapshot.columns))


def importances(metrics: Mapping[str, float]) -> list[tuple[str, str, float, float]]:
    """Of each column and metric: its value, and that with the column shuffled; those that change most come first."""
    found = []
    for name, shuffled in metrics.items():
        metric, between, column = name.partition(_BETWEEN)
        if between and metric in metrics:
            found.append((metric, column, metrics[metric], shuffled))
    return sorted(found, key=lambda one: (one[0], -abs(one[3] - one[2])))


def as_csv(found: Sequence[tuple[str, str, float, float]]) -> str:
    """Importances as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*FIELDS, "change"])
    writer.writerows((metric, column, value, other, other - value) for metric, column, value, other in found)
    return text.getvalue()


def keep(folder: Path, name: str, found: Sequence[tuple[str, str, float, float]]) -> Path:
    """Writes importances into a model's folder."""
    path = folder / "explanations" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, as_csv(found))
    return path


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.reader(file)
