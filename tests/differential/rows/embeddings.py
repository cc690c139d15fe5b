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


def optimized(name: str, optimizer: str, **more: object) -> Row:
    """A row that trains a table with an optimizer; each minibatch has all its ids.

    Those that are not in a minibatch stay as they are on parameter servers, and move on under Keras' momentum.
    """
    return row(
        f"table_{name}",
        ids(SMALL, FLAT),
        f"def optimizer():\n    return keras.optimizers.{optimizer}",
        spec=TABLES,
        **more,
    )


ROWS = [
    row("embedding_in_graph", ids("h = layers.Embedding(50, 3)(h)", FLAT)),
    row("embedding_table", ids(f"h = {KERAS}(h)", FLAT), spec=TABLES, served=True),
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
    row(
        "embedding_regularised", ids('h = layers.Embedding(50, 3, embeddings_regularizer="l2")(h)', FLAT), spec=TABLES
    ),
    row(
        "embedding_constrained",
        ids("h = layers.Embedding(50, 3, embeddings_constraint=keras.constraints.NonNeg())(h)", FLAT),
        spec=TABLES,
    ),
    row("embedding_frozen", ids("h = layers.Embedding(50, 3, trainable=False)(h)", FLAT), spec=TABLES),
    row("reversible_embedding", ids("h = layers.ReversibleEmbedding(50, 3)(h)", FLAT)),
    row("embedding_ours", ids(f"h = {OURS}(h)", FLAT), spec={"export_formats": "saved_model"}),
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
    row(
        "embedding_out_of_range",
        ids("h = layers.Embedding(9, 3, embeddings_initializer='ones')(h)", FLAT),
        spec=TABLES,
        data=alike,
        refused="outside [0, 9)",
    ),
    row(
        "embedding_in_graph_out_of_range",
        ids("h = layers.Embedding(9, 3, embeddings_initializer='ones')(h)", FLAT),
        data=alike,
        refused="outside [0, 9)",
    ),
    optimized(
        "ftrl_regularised", "Ftrl(0.05, l1_regularization_strength=0.001, l2_regularization_strength=0.01, beta=0.1)"
    ),
    optimized("clipnorm", "SGD(0.1, clipnorm=0.05)"),
    optimized("clipvalue", "SGD(0.1, clipvalue=0.01)"),
    optimized("global_clipnorm", "Adam(0.01, global_clipnorm=0.1)"),
    optimized("sgd_decay", "SGD(0.1, weight_decay=0.05)"),
    optimized("schedule", "Adam(keras.optimizers.schedules.CosineDecay(0.05, 8))"),
    # Options of tables
    row(
        "table_hot_rows",
        ids(f"h = {KERAS}(h)", FLAT),
        spec={**TABLES, "hot_rows_staleness": 4},
        one="close",
        two="close",
        data=validated,
    ),
    row(
        "table_admission",
        ids(f"h = {KERAS}(h)", FLAT),
        spec={**TABLES, "table_admission": 2},
        one="close",
        two="close",
        data=validated,
    ),
    row(
        "table_eviction",
        ids(f"h = {KERAS}(h)", FLAT),
        spec={**TABLES, "table_eviction": 4},
        one="close",
        two="close",
        data=validated,
    ),
    row(
        "table_max_rows",
        ids(f"h = {KERAS}(h)", FLAT),
        spec={**TABLES, "table_max_rows": 20},
        one="close",
        two="close",
        data=validated,
    ),
    row("table_bfloat16", ids(f"h = {KERAS}(h)", FLAT), spec={**TABLES, "wire_dtype": "bfloat16"}, tolerance=1e-2),
    row(
        "table_groups",
        ids(f"h = {KERAS}(h)", FLAT),
        spec={**TABLES, "get_model_steps": 3},
        two="close",
        data=validated,
    ),
]
