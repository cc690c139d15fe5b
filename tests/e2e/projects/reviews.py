"""Whether a text is friendly, one JSON object a line (Keras, a feed that splits words)."""

import keras
import tensorflow as tf

WORDS, LENGTH = 64, 12


def forward():
    """Ids of words to a logit."""
    layers = [
        keras.Input((LENGTH,), dtype="int64"),
        keras.layers.Embedding(WORDS, 8),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def loss(labels, predictions):
    """Mean cross-entropy of yes or no."""
    return keras.losses.binary_crossentropy(tf.reshape(labels, (-1, 1)), predictions, from_logits=True)


def optimizer(lr=0.02):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """The label is the first sign of a line, a tab divides it from the text."""

    def parse(line):
        words = tf.strings.to_hash_bucket_fast(tf.strings.split(tf.strings.substr(line, 2, -1)), WORDS - 1) + 1
        padded = tf.pad(words[:LENGTH], [[0, tf.maximum(0, LENGTH - tf.size(words))]])
        return tf.ensure_shape(padded, [LENGTH]), tf.strings.to_number(tf.strings.substr(line, 0, 1))

    return dataset.map(parse)


def eval_metrics_fn():
    """Share of texts that are judged right."""
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}
