"""Which articles visitors like, by factors of both that lie on parameter servers (Keras, a CSV file)."""

import keras
import tensorflow as tf

VISITORS, ARTICLES, FACTORS = 100_000, 50_000, 8


def forward():
    """A visitor and an article to a logit."""
    visitor = keras.Input((), dtype="int64", name="visitor")
    article = keras.Input((), dtype="int64", name="article")
    factors = [
        keras.layers.Embedding(VISITORS, FACTORS)(visitor),
        keras.layers.Embedding(ARTICLES, FACTORS)(article),
    ]
    liked = keras.layers.Embedding(ARTICLES, 1)(article)
    return keras.Model([visitor, article], keras.layers.Dot(1)(factors) + liked)


def loss(labels, predictions):
    """Mean cross-entropy of yes or no."""
    return keras.losses.binary_crossentropy(tf.reshape(labels, (-1, 1)), predictions, from_logits=True)


def optimizer(lr=0.02):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Ids of a visitor and an article, and whether he liked it."""

    def parse(row):
        numbers = tf.strings.to_number(row, tf.int64)
        return {"visitor": numbers[0], "article": numbers[1]}, tf.cast(numbers[2], tf.float32)

    return dataset.map(parse)


def eval_metrics_fn():
    """AUC."""
    return {"auc": keras.metrics.AUC(from_logits=True)}
