"""Wide & Deep (Cheng et al. 2016) on click data with ten fields.

The wide part remembers: a weight for each id and for each pair of ids of two fields, hashed into buckets. The deep
part generalises: a vector for each id, through dense layers.
"""

import tensorflow as tf

FIELDS = 10
PAIRS = [(i, j) for i in range(FIELDS) for j in range(i + 1, FIELDS)]


def forward(ids=5383, dim=8, hidden=(64, 32), crosses=20_000):
    """The model: ids [batch, 10] to the logit of a click [batch, 1]."""
    inputs = tf.keras.Input((FIELDS,), dtype="int64", name="ids")
    crossed = Crosses(crosses)(inputs)
    wide = tf.keras.layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")(inputs)
    pairs = tf.keras.layers.Embedding(crosses, 1, embeddings_initializer="zeros", name="pair_weights")(crossed)
    wide = tf.keras.layers.Concatenate(axis=1)([wide, pairs])
    wide = tf.keras.layers.GlobalAveragePooling1D()(wide)
    wide = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(FIELDS + len(PAIRS)))(wide)
    deep = tf.keras.layers.Embedding(ids, dim, embeddings_initializer="uniform", name="vectors")(inputs)
    deep = tf.keras.layers.Flatten()(deep)
    for width in hidden:
        deep = tf.keras.layers.Dense(width, activation="relu")(deep)
    logit = tf.keras.layers.Add()([wide, tf.keras.layers.Dense(1)(deep)])
    return tf.keras.Model(inputs, logit, name="wide_deep")


@tf.keras.utils.register_keras_serializable("wide_deep")
class Crosses(tf.keras.layers.Layer):
    """The bucket of each pair of ids of two fields: int64 [b, 10] to int64 [b, 45]."""

    def __init__(self, buckets, **options):
        super().__init__(**options)
        self.buckets = buckets

    def call(self, ids):
        """Mixes both ids and the pair's number; the same pair always has the same bucket."""
        first = tf.gather(ids, [i for i, _ in PAIRS], axis=1)
        second = tf.gather(ids, [j for _, j in PAIRS], axis=1)
        number = tf.range(len(PAIRS), dtype=tf.int64)
        return (first * 1_000_003 + second * 7_919 + number * 104_729) % self.buckets

    def get_config(self):
        """The arguments to build it again."""
        return {**super().get_config(), "buckets": self.buckets}


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
