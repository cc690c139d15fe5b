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
OWN_TRAIN_STEP = """
class CustomModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = layers.Dense(1)

    def call(self, inputs):
        return self.out(inputs)

    def train_step(self, data):
        raise RuntimeError("own step")
"""
SEQUENTIAL = """
def custom_model():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
"""


def through(layer: str) -> str:
    """A model that sends its input ``i`` through a layer and a Dense one."""
    return f"def forward():\n    i = keras.Input((4,))\n    return keras.Model(i, layers.Dense(1)({layer}))"


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
        """,
        through("Scale()(i)"),
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
        """,
        through("Average()(i)"),
        family="state",
        two="",
    ),
    row(
        "untracked_variable",
        """
        class Scaled(layers.Layer):
            def build(self, shape):
                self.scale = tf.Variable(1.0)

            def call(self, inputs):
                return inputs * self.scale
        """,
        through("Scaled()(i)"),
        family="state",
        refused="none of the model's weights",
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
        """,
        through("Shrinking()(i)"),
        family="state",
        refused="assigns to the trained weight",
    ),
    row(
        "add_loss",
        """
        class Sparse(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.01 * tf.reduce_mean(tf.abs(inputs)))
                return inputs
        """,
        through("Sparse()(layers.Dense(5)(i))"),
        family="losses",
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
        "dict_output",
        """
        def forward():
            i = keras.Input((4,))
            return keras.Model(i, {"a": layers.Dense(1)(i), "b": layers.Dense(1, activation="tanh")(i)})


        def loss(labels, predictions):
            return tf.reduce_mean(tf.square(labels - predictions["a"])) + tf.reduce_mean(tf.square(predictions["b"]))


        def eval_metrics_fn():
            return {"a": {"error": keras.metrics.MeanSquaredError()}, "b": {"size": lambda labels, p: tf.abs(p)}}
        """,
        family="inputs",
        data=validated,
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
    row(
        "loss_per_record",
        "def loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - predictions), -1)",
        family="losses",
    ),
    row("loss_object", "loss = keras.losses.MeanSquaredError()", family="losses"),
    row(
        "regression_losses",
        """
        KINDS = [
            keras.losses.MeanAbsoluteError(),
            keras.losses.MeanAbsolutePercentageError(),
            keras.losses.MeanSquaredLogarithmicError(),
            keras.losses.LogCosh(),
            keras.losses.Poisson(),
            keras.losses.CosineSimilarity(),
        ]


        def loss(labels, predictions):
            labels, predictions = tf.abs(labels) + 1.0, tf.nn.softplus(predictions)
            return sum(kind(labels, predictions) for kind in KINDS) / 10.0
        """,
        family="losses",
    ),
    row(
        "class_losses",
        net(last='layers.Dense(3, activation="softmax")(h)'),
        "feed = give('x', 'c')",
        """
        KINDS = [
            keras.losses.CategoricalFocalCrossentropy(),
            keras.losses.CategoricalGeneralizedCrossEntropy(),
            keras.losses.CategoricalHinge(),
            keras.losses.BinaryFocalCrossentropy(),
            keras.losses.Hinge(),
            keras.losses.SquaredHinge(),
            keras.losses.KLDivergence(),
            keras.losses.Dice(),
            keras.losses.Tversky(),
        ]


        def loss(labels, predictions):
            one_hot = tf.one_hot(labels, 3)
            # This kind takes the number of the class, the others a vector.
            kinds = [kind(labels if "Generalized" in type(kind).__name__ else one_hot, predictions) for kind in KINDS]
            return sum(tf.reduce_mean(value) for value in kinds)
        """,
        family="losses",
    ),
    row("huber", "loss = keras.losses.Huber(0.2)", family="losses"),
    row(
        "cross_entropy",
        net(last="layers.Dense(3)(h)"),
        "feed = give('x', 'c')",
        "loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        family="losses",
    ),
    row(
        "broadcast_loss",
        "def feed(dataset, mode, metadata):\n    return dataset.map(parse).map(lambda r: (r['x'], r['y'][0]))",
        family="losses",
        refused="shape",
    ),
    row(
        "loss_sum",
        "def loss(labels, predictions):\n    return tf.reduce_sum(tf.square(labels - predictions)) / 10.0",
        family="losses",
        two="",
    ),
    # Precision
    row(
        "mixed_bfloat16",
        "keras.config.set_dtype_policy('mixed_bfloat16')",
        net("h = layers.Dense(4)(h)", last='layers.Dense(1, dtype="float32")(h)'),
        family="precision",
        tolerance=1e-2,
    ),
    row(
        "layer_dtype",
        net('h = layers.Dense(4, dtype="mixed_bfloat16")(h)', last='layers.Dense(1, dtype="float32")(h)'),
        family="precision",
        tolerance=1e-3,
    ),
    row(
        "mixed_float16",
        net('h = layers.Dense(4, dtype="mixed_float16")(h)'),
        family="precision",
        refused="mixed_float16",
    ),
    row(
        "metric_of_a_layer",
        """
        class Watched(layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.size = keras.metrics.Mean(name="size")

            def call(self, inputs):
                self.size.update_state(tf.reduce_mean(inputs))
                return inputs
        """,
        through("Watched()(i)"),
        refused="size",
    ),
    row(
        "compiled",
        """
        def forward():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
            model.compile("sgd", "mse")
            return model
        """,
        refused="compile",
    ),
    row("float64", net('h = layers.Dense(4, dtype="float64")(h)'), family="precision", refused="float64"),
    row("eager", family="options", spec={"eager": True}, two=""),
    # What a model can define that nobody reads
    row(
        "own_train_step",
        OWN_TRAIN_STEP,
        model="CustomModel",
        refused="train_step",
    ),
    row(
        "own_compute_loss",
        """
        class CustomModel(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = layers.Dense(1)

            def call(self, inputs):
                return self.out(inputs)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return tf.reduce_mean(y_pred)
        """,
        model="CustomModel",
        refused="compute_loss",
    ),
    # Objects made when the module is imported
    row(
        "module_objects",
        """
        OFFSET = tf.constant([0.1, 0.2, 0.3, 0.4])
        HIDDEN = layers.Dense(5, activation="tanh")


        def forward():
            i = keras.Input((4,))
            return keras.Model(i, layers.Dense(1)(HIDDEN(i + OFFSET)))
        """,
    ),
    row(
        "weight_tying",
        """
        class Tied(layers.Layer):
            def __init__(self, of, **options):
                super().__init__(**options)
                self.of = of

            def call(self, inputs):
                return tf.matmul(inputs, self.of.kernel, transpose_b=True)


        def forward():
            i = keras.Input((4,))
            d = layers.Dense(3)
            return keras.Model(i, layers.Dense(1)(Tied(d)(d(i))))
        """,
        refused="get_config",
    ),
    row(
        "feed_filters",
        """
        def feed(dataset, mode, metadata):
            kept = dataset.map(parse).filter(lambda record: record["x"][0] > 0)
            return kept.map(lambda record: record["x"] if mode == "prediction" else (record["x"], record["y"]))
        """,
        family="feeds",
        two="",
    ),
    row(
        "feed_multiplies",
        """
        def feed(dataset, mode, metadata):
            def twice(record):
                parsed = parse(record)
                return tf.data.Dataset.from_tensors((parsed["x"], parsed["y"])).repeat(2)

            return dataset.flat_map(twice)
        """,
        family="feeds",
        two="",
    ),
    row(
        "integer_counter",
        """
        class Counter(layers.Layer):
            def build(self, shape):
                self.steps = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="steps")

            def call(self, inputs, training=False):
                if training:
                    self.steps.assign_add(1)
                return inputs
        """,
        through("Counter()(i)"),
        family="state",
        two="",  # two synchronous minibatches are one update and two steps
    ),
]
