"""Rows about modules that cannot work: every way says so in the same words."""

from __future__ import annotations

from typing import Any

from tests.differential.driver import Row
from tests.differential.rows.embeddings import alike
from tests.differential.zoo import module, net

IDS = """
import elasticdl.layers

feed = give("ids")


class CustomModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.rows = elasticdl.layers.Embedding(2, embeddings_initializer="ones")
        self.shift = self.add_weight(name="shift", shape=(), initializer="ones")
        self.out = layers.Dense(1)

    def call(self, inputs, training=False):
        ids = COMPUTED
        return self.out(tf.reduce_sum(self.rows(ids), 1)) + 0.0 * self.shift
"""


def broken(name: str, refused: str, *parts: str, **more: Any) -> Row:
    """A row that ends with these words."""
    return Row(name, module(*parts), "errors", refused=refused, **more)


def with_ids(name: str, refused: str, computed: str) -> Row:
    """A row whose model computes the ids that it looks up."""
    source = IDS.replace("COMPUTED", computed)
    return broken(name, refused, source, model="CustomModel", spec={"export_formats": "saved_model"})


ROWS = [
    broken("wrong_shape", "must be unchanged", net(last="layers.Reshape((3, 5))(layers.Dense(4)(h))")),
    broken(
        "wrong_shape_of_loss",
        "a training step raised",
        "def loss(labels, predictions):\n    return tf.reduce_mean(tf.matmul(labels, predictions))",
    ),
    broken(
        "stateful_rnn",
        "(LSTM(stateful=True)) keeps what it saw",
        """
        def forward():
            i = keras.Input((4,), batch_size=8)
            return keras.Model(i, layers.Dense(1)(layers.LSTM(3, stateful=True)(layers.Reshape((4, 1))(i))))
        """,
    ),
    broken("missing_entry", "has no optimizer", "del optimizer"),
    broken("missing_model", "does not define 'forwards'", model="forwards"),
    broken("missing_file", "names the file no_such_file.py", spec={"model_def": "no_such_file.forward"}),
    broken("missing_named_entry", "does not define 'my_loss'", spec={"loss": "my_loss"}),
    broken(
        "missing_in_what_cannot_be_seen",
        "has no 'forwards'",
        "globals()['made'] = lambda: keras.Sequential([layers.Dense(1)])",
        model="forwards",
    ),
    broken("unknown_model_param", "cannot be called with", spec={"model_params": {"width": 3}}),
    broken("unknown_optimizer_param", "cannot be called with", spec={"optimizer_params": {"rate": 0.1}}),
    broken("broken_model", "raised ZeroDivisionError", "def forward():\n    return 1 / 0"),
    broken("no_model_at_all", "int", "def forward():\n    return 3"),
    broken("failing_loss", "raised ZeroDivisionError", "def loss(labels, predictions):\n    return 1 / 0"),
    broken("failing_optimizer", "raised ZeroDivisionError", "def optimizer():\n    return 1 / 0"),
    broken("failing_callbacks", "raised ZeroDivisionError", "def callbacks():\n    return 1 / 0"),
    broken(
        "failing_feed",
        "ZeroDivisionError: division by zero",
        "def feed(dataset, mode, metadata):\n    return dataset.map(lambda record: 1 / 0)",
    ),
    broken(
        "failing_call",
        "never",
        """
        class CustomModel(keras.Model):
            def call(self, inputs, training=False):
                raise ValueError("never")
        """,
        model="CustomModel",
    ),
    broken(
        "failing_step",
        "a training step raised",
        """
        def loss(labels, predictions):
            checked = tf.debugging.assert_less(tf.abs(predictions), 1e-9, message="too large")
            with tf.control_dependencies([checked] if checked is not None else []):
                return tf.reduce_mean(tf.square(labels - predictions))
        """,
        data=alike,
    ),
    broken("exits", "called sys.exit(3)", "import sys\n\n\ndef forward():\n    sys.exit(3)"),
    broken(
        "exits_in_the_loss", "called sys.exit(3)", "import sys\n\n\ndef loss(labels, predictions):\n    sys.exit(3)"
    ),
    broken("exits_at_import", "called sys.exit(3)", "import sys\n\nsys.exit(3)"),
    broken("fails_at_import", "raised RuntimeError: at import", "raise RuntimeError('at import')"),
    broken("imports_missing", "imports 'no_such_package'", "import no_such_package"),
    broken("syntax", "invalid syntax", "def correct_me(:\n    pass"),
    broken(
        "feed_without_labels",
        "label",
        "def feed(dataset, mode, metadata):\n    return dataset.map(lambda r: parse(r)['x'])",
    ),
    broken("feed_gives_no_dataset", "feed", "def feed(dataset, mode, metadata):\n    return [1, 2]"),
    # A learning rate that is too high by far; by how much is decided by the same numbers everywhere.
    broken(
        "diverges",
        "in the minibatch of",
        "def optimizer():\n    return keras.optimizers.SGD(1e30)",
        data=alike,
    ),
    with_ids(
        "random_ids",
        "would be drawn twice",
        "tf.where(tf.random.uniform(tf.shape(inputs)) < 0.5, tf.zeros_like(inputs), inputs)",
    ),
    with_ids("random_ids_in_training", "would be drawn twice", "tf.random.shuffle(inputs) if training else inputs"),
    with_ids("trained_ids", "would be computed twice", "inputs + tf.cast(self.shift, tf.int64)"),
]
