"""Rows that train with Keras 2 (``--keras legacy``), in a process that has it.

Its rows are few: what differs from Keras 3 is how models are built, how optimizers keep their options, and how names
are given; what layers compute is the same code in both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.rows.embeddings import FLAT, KERAS, TABLES, ids
from tests.differential.rows.entries import OWN_TRAIN_STEP, SUBCLASS
from tests.differential.zoo import module, net

LEGACY: Mapping[str, Any] = {"keras": "legacy"}
ORIGINAL = """
from elasticdl.python.elasticdl.layers.embedding import Embedding

feed = give("ids")


def forward():
    inputs = keras.Input((3,))
    rows = Embedding(4, embeddings_initializer="ones")(inputs)
    squares = keras.backend.mean(keras.backend.square(rows), axis=1)
    hidden = layers.Dense(3)(keras.backend.mean(rows, axis=1) - 0.1 * squares)
    return keras.Model(inputs, layers.Dense(1)(hidden))
"""

COLUMNS = """
from elasticdl.python.elasticdl.feature_column import feature_column
from elasticdl_preprocessing.feature_column.feature_column import concatenated_categorical_column

column = tf.feature_column
feed = give(("x", "word"))


def forward():
    inputs = {"x": keras.Input((4,), name="x"), "word": keras.Input((1,), name="word", dtype=tf.string)}
    hashed = column.categorical_column_with_hash_bucket("word", 20)
    buckets = column.bucketized_column(column.numeric_column("x", shape=4), [-0.5, 0.0, 0.5])
    both = concatenated_categorical_column([hashed, buckets])
    features = keras.layers.DenseFeatures([
        column.numeric_column("x", shape=4),
        feature_column.embedding_column(both, 3, combiner="sqrtn", initializer=keras.initializers.Ones()),
    ])(inputs)
    return keras.Model(inputs, layers.Dense(1)(features))
"""


def keras2(name: str, *parts: str, spec: Mapping[str, Any] | None = None, **more: Any) -> Row:
    """A row whose module takes Keras from TensorFlow, which gives version 2."""
    source = module(*parts).replace(
        "import keras\nfrom keras import layers", "keras = tf.keras\nlayers = keras.layers"
    )
    return Row(f"legacy_{name}", source, "legacy", spec={**LEGACY, **(spec or {})}, **more)


def optimizer(name: str, call: str, **more: Any) -> Row:
    """A row with an optimizer of Keras 2."""
    return keras2(name, f"def optimizer():\n    return keras.optimizers.{call}", **more)


ROWS = [
    keras2("functional"),
    keras2("tables", ids(f"h = {KERAS}(h)", FLAT), spec=TABLES),
    keras2(
        "subclass",
        SUBCLASS,
        model="CustomModel",
        spec={"export_formats": "saved_model"},
    ),
    keras2("batch_norm", net("h = layers.BatchNormalization(momentum=0.9)(layers.Dense(5)(h))"), served=True),
    keras2("lstm", net("h = layers.LSTM(3)(layers.Reshape((4, 3))(layers.Dense(12)(h)))")),
    keras2("constraint", net("h = layers.Dense(5, kernel_constraint=keras.constraints.NonNeg())(h)")),
    keras2("regularizer", net("h = layers.Dense(5, kernel_regularizer='l2')(h)")),
    keras2("original", ORIGINAL, spec={"export_formats": "saved_model"}),
    keras2("feature_columns", COLUMNS, spec={"export_formats": "saved_model"}),
    keras2(
        "metrics",
        "def eval_metrics_fn():\n    return {'mae': keras.metrics.MeanAbsoluteError(), 'auc': keras.metrics.AUC()}",
        "def feed(dataset, mode, metadata):\n"
        "    return give('x')(dataset, mode, metadata).map(lambda x, y: (x, tf.cast(y > 0, tf.float32)))",
        net(last="layers.Dense(1, activation='sigmoid')(h)"),
        data=validated,
    ),
    keras2(
        "callbacks",
        "def callbacks():\n    return [keras.callbacks.EarlyStopping('val_loss', patience=2, min_delta=1.0)]",
        spec={"num_epochs": 8},
        data=validated,
        two="",
    ),
    keras2(
        "schedule",
        "def optimizer():\n    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 8))",
    ),
    optimizer("adam", "Adam(0.01, amsgrad=True)"),
    optimizer("adamw", "AdamW(0.01, weight_decay=0.1)"),
    optimizer("momentum", "SGD(0.05, momentum=0.9, nesterov=True)"),
    optimizer("rmsprop", "RMSprop(0.01, momentum=0.5, centered=True)"),
    optimizer("adagrad", "Adagrad(0.1)"),
    optimizer("adadelta", "Adadelta(1.0)"),
    optimizer("adamax", "Adamax(0.01)"),
    optimizer("ftrl", "Ftrl(0.1, l1_regularization_strength=0.001)"),
    optimizer("clipnorm", "SGD(0.1, clipnorm=0.1)", two=""),
    optimizer("older_adam", "legacy.Adam(0.01)"),
    optimizer("older_sgd", "legacy.SGD(0.05, momentum=0.9)"),
    keras2(
        "table_adam",
        ids(f"h = {KERAS}(h)", FLAT),
        "def optimizer():\n    return keras.optimizers.Adam(0.01)",
        spec=TABLES,
    ),
    # Refused
    optimizer("decay", "legacy.SGD(0.1, decay=0.01)", refused="is an option that Keras gave up"),
    optimizer("nadam", "Nadam(0.01)", refused="Nadam"),
    optimizer("moving_averages", "Adam(0.01, use_ema=True)", refused="use_ema"),
    keras2(
        "own_train_step",
        OWN_TRAIN_STEP,
        model="CustomModel",
        refused="train_step",
    ),
    Row(
        "legacy_other_keras",
        module("def optimizer():\n    return keras.optimizers.Adam(0.01)"),
        "legacy",
        spec=LEGACY,
        refused="keras",
    ),
]
