"""DeepFM (Guo et al. 2017) on click data with ten fields and a million ids.

The embeddings are plain Keras layers: at this size they live on the parameter servers, without a change here.
"""

import tensorflow as tf

FIELDS = 10


def forward(ids=1_000_000, dim=16, hidden=(64, 32)):
    """The model: ids [batch, 10] to the logit of a click [batch, 1]."""
    inputs = tf.keras.Input((FIELDS,), dtype="int64", name="ids")
    vectors = tf.keras.layers.Embedding(ids, dim, embeddings_initializer="uniform", name="vectors")(inputs)
    weights = tf.keras.layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")(inputs)
    linear = tf.keras.layers.Flatten()(weights)
    linear = tf.keras.layers.Dense(1, kernel_initializer="ones")(linear)
    pairs = PairwiseInteractions()(vectors)
    deep = tf.keras.layers.Flatten()(vectors)
    for width in hidden:
        deep = tf.keras.layers.Dense(width, activation="relu")(deep)
    deep = tf.keras.layers.Dense(1)(deep)
    logit = tf.keras.layers.Add()([linear, pairs, deep])
    return tf.keras.Model(inputs, logit, name="deepfm")


@tf.keras.utils.register_keras_serializable("deepfm")
class PairwiseInteractions(tf.keras.layers.Layer):
    """Sum over all pairs of fields of their vectors' dot product (Rendle 2010): [b, f, d] to [b, 1]."""

    def call(self, vectors):
        """Uses the square of the sum minus the sum of the squares."""
        total = tf.reduce_sum(vectors, axis=1)
        squares = tf.reduce_sum(tf.square(vectors), axis=1)
        return 0.5 * tf.reduce_sum(tf.square(total) - squares, axis=1, keepdims=True)


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    labels = tf.reshape(tf.cast(labels, tf.float32), [-1, 1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions))


def optimizer(lr=0.005):
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
