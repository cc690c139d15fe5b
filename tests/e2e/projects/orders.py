"""Whether an order comes back, of a CSV file with texts and dates (Keras, texts parsed in `feed`)."""

import keras
import tensorflow as tf


def forward():
    """Columns by name to a logit."""
    inputs = {
        "city": keras.Input((), dtype="int64", name="city"),
        "numbers": keras.Input((4,), name="numbers"),
    }
    city = keras.layers.Embedding(16, 4)(inputs["city"])
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()([city, inputs["numbers"]]))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    """Mean cross-entropy of yes or no."""
    return keras.losses.binary_crossentropy(tf.reshape(labels, (-1, 1)), predictions, from_logits=True)


def optimizer(lr=0.01):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Texts to numbers; a date to its month as a point on a circle, and its day."""
    at = {name: index for index, name in enumerate(metadata.column_names)}

    def parse(row):
        year_month_day = tf.strings.to_number(tf.strings.split(row[at["ordered"]], "-"))
        angle = year_month_day[1] / 12 * 6.2832
        price = tf.math.log1p(tf.strings.to_number(row[at["price"]]))
        features = {
            "city": tf.strings.to_hash_bucket_fast(row[at["city"]], 16),
            "numbers": tf.stack([tf.sin(angle), tf.cos(angle), year_month_day[2] / 31, price]),
        }
        return features, tf.strings.to_number(row[at["returned"]])

    return dataset.map(parse)


def eval_metrics_fn():
    """AUC."""
    return {"auc": keras.metrics.AUC(from_logits=True)}
