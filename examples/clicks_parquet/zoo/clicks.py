"""Clicks from columns of Parquet: a factorisation machine (Rendle 2010) in Keras.

``feed`` gets the columns of a minibatch as numpy arrays, so that no Python object is made for a record.
"""

import keras
import numpy as np
from keras import ops

FIELDS = [f"id{number}" for number in range(10)]


def forward(ids=20_000, dim=8):
    """The model: ids [batch, 10] to the logit of a click [batch, 1]."""
    inputs = keras.Input((len(FIELDS),), dtype="int64", name="ids")
    weights = keras.layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")(inputs)
    vectors = keras.layers.Embedding(ids, dim, embeddings_initializer="uniform", name="vectors")(inputs)
    linear = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(weights))
    return keras.Model(inputs, keras.layers.Add()([linear, Pairs()(vectors)]), name="clicks")


@keras.saving.register_keras_serializable("clicks")
class Pairs(keras.layers.Layer):
    """Sum over all pairs of fields of their vectors' dot product: [b, f, d] to [b, 1]."""

    def call(self, vectors):
        """Uses the square of the sum minus the sum of the squares."""
        squares = ops.sum(ops.square(vectors), axis=1)
        return 0.5 * ops.sum(ops.square(ops.sum(vectors, axis=1)) - squares, axis=1, keepdims=True)


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    return ops.mean(keras.losses.binary_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=0.01):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(columns, mode, metadata):
    """The columns of ids side by side, and that of the clicks."""
    ids = np.stack([columns[field] for field in FIELDS], axis=1)
    return ids if mode == "prediction" else (ids, columns["label"].astype(np.float32)[:, None])


def eval_metrics_fn():
    """Area under the ROC curve."""
    return {"auc": keras.metrics.AUC(num_thresholds=500, from_logits=True)}
