"""Rows about metrics and evaluations."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

M = "keras.metrics."
BINARY = (
    net(last='layers.Dense(1, activation="sigmoid")(h)'),
    """
    def feed(dataset, mode, metadata):
        def pick(record):
            parsed = parse(record)
            return parsed["x"] if mode == "prediction" else (parsed["x"], tf.cast(parsed["c"][None] > 0, tf.float32))

        return dataset.map(pick)
    """,
    "loss = keras.losses.BinaryCrossentropy()",
)
CLASSES = (
    net(last='layers.Dense(3, activation="softmax")(h)'),
    "feed = give('x', 'c')",
    "loss = keras.losses.SparseCategoricalCrossentropy()",
)
ONE_HOT = (
    net(last='layers.Dense(3, activation="softmax")(h)'),
    """
    def feed(dataset, mode, metadata):
        def pick(record):
            parsed = parse(record)
            return parsed["x"] if mode == "prediction" else (parsed["x"], tf.one_hot(parsed["c"], 3))

        return dataset.map(pick)
    """,
    "loss = keras.losses.CategoricalCrossentropy()",
)


def metrics(name: str, *parts: str, of: tuple[str, ...] = (), **more: object) -> Row:
    """A row with these metrics, each ``name=expression``."""
    given = ", ".join(f'"{part.partition("=")[0]}": {part.partition("=")[2]}' for part in parts)
    source = module(*of, f"def eval_metrics_fn():\n    return {{{given}}}")
    options: dict[str, object] = {"data": validated, "two": "", **more}
    return Row(name, source, "metrics", **options)  # type: ignore[arg-type]


ROWS = []
