"""The ``feed`` of tables with a label, for models that bring none: numbers as a vector, and the label."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from elasticdl.data.columns import ColumnSpec
from elasticdl.data.errors import DataError
from elasticdl.data.reader import Feed, Metadata


def table_feed(specs: Mapping[str, ColumnSpec], label: str | None) -> Feed | None:
    """A feed of TensorFlow for a table with a label; None without."""
    if label is None:
        return None
    return functools.partial(_feed, label, [name for name in specs if name != label])


def require_numbers(specs: Mapping[str, ColumnSpec], label: str | None) -> None:
    """Refuses a table of which the feed that ``label`` makes could make no vector.

    Raises:
        DataError: names the column.
    """
    for name, spec in specs.items():
        if spec.dtype in ("str", "bytes") or spec.shape:
            raise DataError(
                f"column {name!r} holds {spec.dtype}{' lists' if spec.shape else ''}: the feed that "
                f"label={label} makes takes one number of each column",
                fix="name the columns of numbers with the reader parameter columns, or write a feed",
            )


def _feed(label: str, names: list[str], dataset: Any, mode: str, metadata: Metadata) -> Any:
    import tensorflow as tf

    def split(row: Any) -> Any:
        features = tf.stack([tf.cast(row[name], tf.float32) for name in names])
        if mode == "prediction":
            return features
        value = row[label]
        return features, tf.cast(value, tf.float32 if value.dtype.is_floating else tf.int64)

    return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE)
