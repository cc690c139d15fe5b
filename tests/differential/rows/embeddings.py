"""Rows about embeddings: in the graph, on parameter servers, shared, masked, combined, with tables' policies.

Tables begin with constant rows: those of the parameter servers and of Keras are drawn in other ways.
"""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module, net

TABLES = {"embedding_threshold_bytes": 0}
FLAT = "h = layers.Flatten()(h)"
KERAS = "layers.Embedding(50, 3, embeddings_initializer=keras.initializers.Constant(0.1))"
OURS = "elasticdl.layers.Embedding(3, embeddings_initializer=keras.initializers.Constant(0.1))"


def ids(*lines: str, last: str = "layers.Dense(1)(h)") -> str:
    """A model of ids."""
    return net(*lines, features="ids", shape="(3,)", dtype='"int64"', last=last)


def row(name: str, *parts: str, **more: object) -> Row:
    """A row of this file."""
    return Row(name, module("import elasticdl.layers", *parts), "embeddings", **more)  # type: ignore[arg-type]


def optimized(name: str, optimizer: str, **more: object) -> Row:
    """A row that trains a table with an optimizer."""
    return row(
        f"table_{name}",
        ids(f"h = {KERAS}(h)", FLAT),
        f"def optimizer():\n    return keras.optimizers.{optimizer}",
        spec=TABLES,
        **more,
    )


ROWS = [
    # Options of tables
]
