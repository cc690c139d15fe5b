"""DeepFM as modules of the original project have it, for Keras 2: layers made in ``call``, backend functions."""

import tensorflow as tf
from deepfm import feed, loss, optimizer  # noqa: F401

from elasticdl.python.elasticdl.layers.embedding import Embedding

K = tf.keras.backend


class ApplyMask(tf.keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return mask

    def call(self, inputs, mask=None):
        if mask is None:
            return inputs
        return tf.keras.layers.Multiply()([inputs, tf.cast(tf.expand_dims(mask, -1), tf.float32)])


def custom_model():
    return build(Embedding(4, mask_zero=True), Embedding(1, mask_zero=True))


def closed():
    table = tf.keras.layers.Embedding
    return build(table(1000, 4, mask_zero=True, input_length=3), table(1000, 1, mask_zero=True, input_length=3))


def build(vectors, weights):
    inputs = tf.keras.Input(shape=(3,))
    embeddings = ApplyMask()(vectors(inputs))
    square_of_sum = K.square(K.sum(embeddings, axis=1))
    sum_of_squares = K.sum(K.square(embeddings), axis=1)
    second = K.sum(0.5 * tf.keras.layers.Subtract()([square_of_sum, sum_of_squares]), axis=1)
    first = K.sum(ApplyMask()(weights(inputs)), axis=(1, 2))
    deep = tf.keras.layers.Dense(1)(tf.keras.layers.Dense(8)(tf.keras.layers.Flatten()(embeddings)))
    logits = tf.keras.layers.Add()([first, second, tf.reshape(deep, shape=(-1,))])
    return tf.keras.Model(inputs, tf.reshape(logits, (-1, 1)))
