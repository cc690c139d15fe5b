"""Rows about embeddings: in the graph, on parameter servers, shared, masked, combined, with tables' policies.

Tables begin with constant rows: those of the parameter servers and of Keras are drawn in other ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.differential.data import columns, validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

TABLES = {"embedding_threshold_bytes": 0}
FLAT = "h = layers.Flatten()(h)"
KERAS = "layers.Embedding(50, 3, embeddings_initializer=keras.initializers.Constant(0.1))"
SMALL = "h = layers.Embedding(3, 3, embeddings_initializer=keras.initializers.Constant(0.1))(h % 3)"
OURS = "elasticdl.layers.Embedding(3, embeddings_initializer=keras.initializers.Constant(0.1))"


def ids(*lines: str, last: str = "layers.Dense(1)(h)") -> str:
    """A model of ids."""
    return net(*lines, features="ids", shape="(3,)", dtype='"int64"', last=last)


def alike(place: Path, _: bool) -> Mapping[str, Any]:
    """Minibatches with the same ids, so that it is the same one that does not fit, whichever comes first."""
    return columns(place, True)


def row(name: str, *parts: str, **more: object) -> Row:
    """A row of this file."""
    return Row(name, module("import elasticdl.layers", *parts), "embeddings", **more)  # type: ignore[arg-type]


def looked_up(name: str, layer: str, **more: object) -> Row:
    """A row that looks its ids up in a layer."""
    return row(name, ids(f"h = {layer}(h)", FLAT), **more)


def policy(name: str, **spec: object) -> Row:
    """A row whose table forgets, or is read late: it is close to one that does not."""
    more = {"one": "close", "two": "close", "data": validated}
    return looked_up(f"table_{name}", KERAS, spec={**TABLES, **spec}, **more)


def optimized(name: str, optimizer: str, **more: object) -> Row:
    """A row that trains a table with an optimizer; a minibatch has some of its ids, and the others stay as they are."""
    return row(
        f"table_{name}",
        ids(f"h = {KERAS}(h)", FLAT),
        f"def optimizer():\n    return keras.optimizers.{optimizer}",
        spec=TABLES,
        **more,
    )


ROWS = [
    looked_up("embedding_in_graph", "layers.Embedding(50, 3)"),
    looked_up("embedding_table", KERAS, spec=TABLES, served=True),
    row(
        "embedding_zeros",
        ids(
            'h = layers.Embedding(50, 3, embeddings_initializer="zeros")(h)',
            FLAT,
            last="layers.Dense(1, bias_initializer='ones')(h)",
        ),
        spec=TABLES,
    ),
    row(
        "embedding_shared",
        ids(f"e = {KERAS}", "h = layers.Concatenate()([layers.Flatten()(e(h)), layers.Flatten()(e(h[:, :1]))])"),
        spec=TABLES,
    ),
    row(
        "embedding_two_tables",
        ids(f"h = layers.Concatenate()([layers.Flatten()({KERAS}(h)), layers.Flatten()({KERAS}(h // 2))])"),
        spec=TABLES,
    ),
    row("embedding_masked", ids("h = layers.Embedding(50, 3, mask_zero=True)(h)", "h = layers.LSTM(2)(h)")),
    row(
        "embedding_masked_table",
        ids(
            "h = layers.Embedding(50, 3, mask_zero=True, embeddings_initializer=keras.initializers.Constant(0.1))(h)",
            "h = layers.LSTM(2)(h)",
        ),
        spec=TABLES,
    ),
    looked_up("embedding_regularised", 'layers.Embedding(50, 3, embeddings_regularizer="l2")', spec=TABLES),
    looked_up(
        "embedding_constrained",
        "layers.Embedding(50, 3, embeddings_constraint=keras.constraints.NonNeg())",
        spec=TABLES,
    ),
    looked_up("embedding_frozen", "layers.Embedding(50, 3, trainable=False)", spec=TABLES),
    looked_up("reversible_embedding", "layers.ReversibleEmbedding(50, 3)"),
    looked_up("embedding_ours", OURS, spec={"export_formats": "saved_model"}),
    row(
        "embedding_ragged",
        """
        feed = give("ids")


        class CustomModel(keras.Model):
            def __init__(self):
                super().__init__()
                self.table = elasticdl.layers.Embedding(3, embeddings_initializer="ones", combiner="mean")
                self.out = layers.Dense(1)

            def call(self, inputs):
                return self.out(self.table(tf.RaggedTensor.from_tensor(inputs)))
        """,
        model="CustomModel",
        spec={"export_formats": "saved_model"},
    ),
    optimized("sgd", "SGD(0.1)"),
    optimized("momentum", "SGD(0.1, momentum=0.9)"),
    optimized("nesterov", "SGD(0.1, momentum=0.9, nesterov=True)"),
    optimized("adam", "Adam(0.01)"),
    optimized("amsgrad", "Adam(0.01, amsgrad=True)"),
    optimized("adamw", "AdamW(0.01, weight_decay=0.1)"),
    optimized("adagrad", "Adagrad(0.05)"),
    optimized("rmsprop", "RMSprop(0.01)"),
    optimized("rmsprop_centered", "RMSprop(0.01, momentum=0.5, centered=True)"),
    optimized("adadelta", "Adadelta(1.0)"),
    optimized("adamax", "Adamax(0.01)"),
    optimized("ftrl", "Ftrl(0.05)"),
    looked_up(
        "embedding_out_of_range",
        "layers.Embedding(9, 3, embeddings_initializer='ones')",
        spec=TABLES,
        data=alike,
        refused="outside [0, 9)",
    ),
    looked_up(
        "embedding_in_graph_out_of_range",
        "layers.Embedding(9, 3, embeddings_initializer='ones')",
        data=alike,
        refused="outside [0, 9)",
    ),
    optimized(
        "ftrl_regularised", "Ftrl(0.05, l1_regularization_strength=0.001, l2_regularization_strength=0.01, beta=0.1)"
    ),
    optimized("clipnorm", "SGD(0.1, clipnorm=0.05)", two=""),
    optimized("clipvalue", "SGD(0.1, clipvalue=0.01)"),
    optimized("global_clipnorm", "Adam(0.01, global_clipnorm=0.1)", two=""),
    optimized("sgd_decay", "SGD(0.1, weight_decay=0.05)"),
    row(
        "table_open_adamw",
        ids(f"h = {OURS}(h)", FLAT),
        "def optimizer():\n    return keras.optimizers.AdamW(0.01, weight_decay=0.1)",
        spec={"export_formats": "saved_model"},
    ),
    row(
        "tables_shared_and_masked_rmsprop",
        ids(
            "h = layers.Embedding(50, 3, mask_zero=True, embeddings_initializer=keras.initializers.Constant(0.1))(h)",
            "h = layers.LSTM(2)(h)",
        ),
        "def optimizer():\n    return keras.optimizers.RMSprop(0.01, momentum=0.5)",
        spec=TABLES,
    ),
    optimized("schedule", "Adam(keras.optimizers.schedules.CosineDecay(0.05, 8))"),
    # Options of tables
    policy("hot_rows", hot_rows_staleness=4),
    policy("admission", table_admission=2),
    policy("eviction", table_eviction=4),
    policy("max_rows", table_max_rows=20),
    looked_up("table_bfloat16", KERAS, spec={**TABLES, "wire_dtype": "bfloat16"}, tolerance=1e-2),
    looked_up("table_groups", KERAS, spec={**TABLES, "get_model_steps": 3}, two="close", data=validated),
]
