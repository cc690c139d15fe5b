"""Rows about layers that prepare features, with and without a state that is set before training."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module, net

VOCABULARY = '["red", "green", "blue"]'


def words(*lines: str, last: str = "layers.Dense(1)(h)") -> str:
    """A model of a word for each record."""
    return net(*lines, features="word", shape="(1,)", dtype='"string"', last=last)


def ids(*lines: str) -> str:
    """A model of three ids for each record."""
    return net(*lines, features="ids", shape="(3,)", dtype='"int64"')


def row(name: str, *parts: str, **more: object) -> Row:
    """A row of this file."""
    return Row(name, module(*parts), "preprocessing", **more)  # type: ignore[arg-type]


ROWS = [
    row(
        "normalization",
        net("h = layers.Normalization(mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 3.0, 4.0])(h)"),
        served=True,
    ),
    row(
        "normalization_adapted",
        net("n = layers.Normalization()", "n.adapt(np.arange(40.0).reshape(10, 4))", "h = n(h)"),
    ),
    row(
        "string_lookup",
        words(
            f"h = layers.StringLookup(vocabulary={VOCABULARY})(h)", "h = layers.Flatten()(layers.Embedding(4, 3)(h))"
        ),
        served=True,
    ),
    row(
        "string_lookup_one_hot", words(f'h = layers.StringLookup(vocabulary={VOCABULARY}, output_mode="one_hot")(h)')
    ),
    row(
        "string_lookup_adapted",
        words(
            "s = layers.StringLookup()",
            's.adapt(np.array(["red", "blue"]))',
            "h = layers.Flatten()(layers.Embedding(4, 3)(s(h)))",
        ),
    ),
    row(
        "integer_lookup",
        ids(
            "h = layers.IntegerLookup(vocabulary=[1, 2, 3, 7])(h)", "h = layers.Flatten()(layers.Embedding(6, 3)(h))"
        ),
    ),
    row("category_encoding", ids('h = layers.CategoryEncoding(50, output_mode="multi_hot")(h)')),
    row("hashing", words("h = layers.Hashing(7)(h)", "h = layers.Flatten()(layers.Embedding(7, 3)(h))")),
    row(
        "hashed_crossing",
        net(
            "a, b = h[:, 0:1], h[:, 1:2]",
            'h = layers.HashedCrossing(9, output_mode="one_hot")((a, b))',
            features="ids",
            shape="(3,)",
            dtype='"int64"',
        ),
    ),
    row(
        "discretization",
        net("h = layers.Discretization([-0.5, 0.0, 0.5])(h)", "h = layers.Flatten()(layers.Embedding(5, 2)(h))"),
    ),
    row(
        "discretization_adapted",
        net(
            "d = layers.Discretization(num_bins=4)",
            "d.adapt(np.linspace(-2, 2, 40).reshape(10, 4))",
            "h = d(h)",
            "h = layers.Flatten()(layers.Embedding(5, 2)(h))",
        ),
    ),
    row(
        "text_vectorization",
        words(
            f"h = layers.TextVectorization(vocabulary={VOCABULARY}, output_sequence_length=2)(h)",
            "h = layers.Flatten()(layers.Embedding(6, 3)(h))",
        ),
    ),
    row(
        "lookup_table",
        words("h = layers.Flatten()(layers.Embedding(5, 3)(ToIds()(h)))"),
        """
        class ToIds(layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                keys, values = tf.constant(["red", "green"]), tf.constant([1, 2], tf.int64)
                start = tf.lookup.KeyValueTensorInitializer(keys, values)
                self.index = tf.lookup.StaticHashTable(start, 0)

            def call(self, inputs):
                return self.index.lookup(inputs)

            def compute_output_spec(self, inputs):
                return keras.KerasTensor(inputs.shape, "int64")
        """,
    ),
    row(
        "feed_preprocesses",
        "layer = layers.Normalization(mean=0.5, variance=2.0)",
        "def feed(dataset, mode, metadata):\n    return give('x')(dataset, mode, metadata).map(lambda x, y: (layer(x[None])[0], y))",
    ),
    row(
        "image_scaling",
        net(
            "h = layers.Reshape((4, 4, 1))(layers.Dense(16)(h))",
            "h = layers.Rescaling(2.0)(layers.Resizing(3, 3)(h))",
            "h = layers.Flatten()(h)",
        ),
    ),
]
