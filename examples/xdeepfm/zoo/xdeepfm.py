"""xDeepFM (Lian et al. 2018) on click data with ten fields.

Beside a linear part and dense layers it has a compressed interaction network: each of its layers multiplies the
fields' vectors with what the layer before made of them, so that layer k sees products of k + 1 fields.
"""

import tensorflow as tf

FIELDS = 10


def forward(ids=5383, dim=8, hidden=(64, 32), maps=(16, 16)):
    """The model: ids [batch, 10] to the logit of a click [batch, 1]."""
    inputs = tf.keras.Input((FIELDS,), dtype="int64", name="ids")
    vectors = tf.keras.layers.Embedding(ids, dim, embeddings_initializer="uniform", name="vectors")(inputs)
    linear = tf.keras.layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")(inputs)
    linear = tf.keras.layers.Dense(1, kernel_initializer="ones")(tf.keras.layers.Flatten()(linear))
    crossed, pooled = vectors, []
    for size in maps:
        crossed = Interaction(size)([crossed, vectors])
        pooled.append(SumOverVector()(crossed))
    explicit = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()(pooled))
    deep = tf.keras.layers.Flatten()(vectors)
    for width in hidden:
        deep = tf.keras.layers.Dense(width, activation="relu")(deep)
    logit = tf.keras.layers.Add()([linear, explicit, tf.keras.layers.Dense(1)(deep)])
    return tf.keras.Model(inputs, logit, name="xdeepfm")


@tf.keras.utils.register_keras_serializable("xdeepfm")
class Interaction(tf.keras.layers.Layer):
    """One layer of the compressed interaction network: [b, h, d] and [b, f, d] to [b, size, d].

    Args:
        size: feature maps that it makes: weighted sums of all h x f elementwise products.
    """

    def __init__(self, size, **options):
        super().__init__(**options)
        self.size = size

    def build(self, shapes):
        """Makes the weights [h * f, size]."""
        before, fields = shapes
        self.kernel = self.add_weight(name="kernel", shape=(before[1] * fields[1], self.size))
        super().build(shapes)

    def call(self, inputs):
        """Multiplies elementwise, then compresses."""
        before, fields = inputs
        products = tf.einsum("bhd,bfd->bdhf", before, fields)
        products = tf.reshape(products, [-1, fields.shape[2], before.shape[1] * fields.shape[1]])
        return tf.transpose(tf.matmul(products, self.kernel), [0, 2, 1])

    def get_config(self):
        """The arguments to build it again."""
        return {**super().get_config(), "size": self.size}


@tf.keras.utils.register_keras_serializable("xdeepfm")
class SumOverVector(tf.keras.layers.Layer):
    """Sums each feature map: [b, h, d] to [b, h]."""

    def call(self, maps):
        """Over the last dimension."""
        return tf.reduce_sum(maps, axis=2)


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    labels = tf.reshape(tf.cast(labels, tf.float32), [-1, 1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions))


def optimizer(lr=0.002):
    """Adam, applied by the parameter servers to the touched rows only."""
    return tf.keras.optimizers.Adam(lr)


def feed(dataset, mode, _):
    """Parses serialized ``tf.train.Example`` records."""

    def parse(record):
        description = {"ids": tf.io.FixedLenFeature([FIELDS], tf.int64)}
        if mode != "prediction":
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        parsed = tf.io.parse_single_example(record, description)
        return parsed["ids"] if mode == "prediction" else (parsed["ids"], parsed["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    """Area under the ROC curve."""
    return {"auc": tf.keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
