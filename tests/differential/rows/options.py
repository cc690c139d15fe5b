"""Rows about the job's options that touch training."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module

NAN = """
def feed(dataset, mode, metadata):
    def pick(record):
        parsed = parse(record)
        label = tf.where(parsed["x"][0] > 1.2, float("nan"), parsed["y"])
        return parsed["x"] if mode == "prediction" else (parsed["x"], label)

    return dataset.map(pick)
"""
ADAM = "def optimizer():\n    return keras.optimizers.Adam(0.01)"


def row(name: str, *parts: str, **spec: object) -> Row:
    """A row with options of the job; those with an underscore in front are the row's own."""
    own = {key[1:]: spec.pop(key) for key in [key for key in spec if key.startswith("_")]}
    return Row(name, module(*parts), "options", spec=spec, **own)  # type: ignore[arg-type]


ROWS = []
