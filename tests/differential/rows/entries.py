"""Rows about what a module consists of: its entries, the style of its model, its feed and its loss."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

SUBCLASS = """
class CustomModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.out = layers.Dense(1)

    def call(self, inputs, training=False):
        return self.out(self.hidden(inputs))
"""
SEQUENTIAL = """
def custom_model():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
"""


def row(name: str, *parts: str, family: str = "entries", **more: object) -> Row:
    """A row of this file."""
    return Row(name, module(*parts), family, **more)  # type: ignore[arg-type]


ROWS = [
    row("functional", served=True),
    row("sequential", SEQUENTIAL, model="custom_model"),
    row("sequential_unbuilt", SEQUENTIAL.replace("keras.Input((4,)), ", ""), model="custom_model"),
    row("subclass", SUBCLASS, model="CustomModel", served=True),
    row(
        "subclass_state",
        """
        class CustomModel(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = layers.Dense(1)
                self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

            def call(self, inputs, training=False):
                if training:
                    self.seen.assign_add(tf.reduce_mean(inputs))
                return self.out(inputs) + 0.0 * self.seen
        """,
        model="CustomModel",
        family="state",
        two="",  # two synchronous steps that add at once: which sum is right is the subject of other tests
    ),
    row(
        "functional_subclass",
        """
        class CustomModel(keras.Model):
            def __init__(self, units=5):
                i = keras.Input((4,))
                super().__init__(i, layers.Dense(1)(layers.Dense(units)(i)))
        """,
        model="CustomModel",
        spec={"model_params": {"units": 3}},
    ),
    row(
        "model_params",
        "def forward(units=2):\n    return keras.Sequential([layers.Dense(units), layers.Dense(1)])",
        spec={"model_params": {"units": 7}},
    ),
    row(
        "nested",
        net(
            "inner = keras.Sequential([layers.Dense(3), layers.Dense(2)])",
            "h = inner(h)",
            "h = keras.Sequential([layers.Dense(4)])(h)",
        ),
    ),
    row("shared_layer", net("d = layers.Dense(4)", "h = d(d(h))")),
    row("frozen_layer", net("h = layers.Dense(4, trainable=False)(h)", "h = layers.Dense(3)(h)"), family="state"),
    row(
        "frozen_after",
        """
        def forward():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])
            model.layers[0].trainable = False
            model.layers[1].trainable = False
            return model
        """,
        family="state",
    ),
    row(
        "own_weights",
        """
        class Scale(layers.Layer):
            def build(self, shape):
                self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
                self.offset = self.add_weight(shape=(), initializer="zeros", name="offset")

            def call(self, inputs):
                return inputs * self.scale + self.offset


        def forward():
            i = keras.Input((4,))
            return keras.Model(i, layers.Dense(1)(Scale()(i)))
        """,
    ),
    row(
        "moving_average",
        """
        class Average(layers.Layer):
            def build(self, shape):
                self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

            def call(self, inputs, training=False):
                if training:
                    self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
                return inputs - self.mean


        def forward():
            i = keras.Input((4,))
            return keras.Model(i, layers.Dense(1)(Average()(i)))
        """,
        family="state",
        two="",
    ),
    row(
        "assigns_to_weights",
        """
        class Shrinking(layers.Layer):
            def build(self, shape):
                self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

            def call(self, inputs, training=False):
                if training:
                    self.w.assign(self.w * 0.9)
                return inputs * self.w


        def forward():
            i = keras.Input((4,))
            return keras.Model(i, layers.Dense(1)(Shrinking()(i)))
        """,
        family="state",
        refused="w",
    ),
    # Inputs and outputs
    row(
        "dict_input",
        """
        feed = give(("x", "ids"))


        def forward():
            i = {"x": keras.Input((4,)), "ids": keras.Input((3,), dtype="int64")}
            e = layers.Flatten()(layers.Embedding(50, 2)(i["ids"]))
            return keras.Model(i, layers.Dense(1)(layers.Concatenate()([i["x"], e])))
        """,
        family="inputs",
        served=True,
    ),
    row(
        "tuple_input",
        """
        def feed(dataset, mode, metadata):
            def pick(record):
                parsed = parse(record)
                given = (parsed["x"], parsed["x"][:2])
                return given if mode == "prediction" else (given, parsed["y"])

            return dataset.map(pick)


        def forward():
            a, b = keras.Input((4,)), keras.Input((2,))
            return keras.Model([a, b], layers.Dense(1)(layers.Concatenate()([a, b])))
        """,
        family="inputs",
    ),
    row(
        "one_key_input",
        """
        feed = give(("x",))


        def forward():
            i = keras.Input((4,))
            return keras.Model(i, layers.Dense(1)(i))
        """,
        family="inputs",
    ),
    row(
        "list_output",
        """
        def forward():
            i = keras.Input((4,))
            return keras.Model(i, [layers.Dense(1)(i), layers.Dense(2)(i)])


        def loss(labels, predictions):
            return tf.reduce_mean(tf.square(labels - predictions[0])) + tf.reduce_mean(tf.square(predictions[1]))
        """,
        family="inputs",
    ),
    row(
        "dict_labels",
        """
        def feed(dataset, mode, metadata):
            def pick(record):
                parsed = parse(record)
                return parsed["x"] if mode == "prediction" else (parsed["x"], {"y": parsed["y"], "c": parsed["c"]})

            return dataset.map(pick)


        def loss(labels, predictions):
            return tf.reduce_mean(tf.square(labels["y"] - predictions) * (1.0 + tf.cast(labels["c"][:, None], tf.float32)))
        """,
        family="inputs",
    ),
    # Feeds
    row("dataset_fn", "del feed\ndataset_fn = give('x')", family="feeds"),
    row(
        "feed_shuffles",
        "def feed(dataset, mode, metadata):\n    return give('x')(dataset, mode, metadata).shuffle(24, seed=5)",
        family="feeds",
        one="close",
        two="close",
        data=validated,
    ),
    row("no_feed_default", "del feed", family="feeds", refused="feed"),
    row(
        "other_names",
        "objective = loss\ndel loss\nmaker = optimizer\ndel optimizer\nfood = feed\ndel feed",
        spec={"loss": "objective", "optimizer": "maker", "feed": "food"},
    ),
    # Losses
    # Precision
    # What a model can define that nobody reads
    # Objects made when the module is imported
]
