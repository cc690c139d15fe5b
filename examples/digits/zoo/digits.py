"""Handwritten digits (8x8 pixels, from scikit-learn) with a small convolutional network."""

import tensorflow as tf


def forward():
    """The model: images [batch, 8, 8] to ten logits."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8), name="image"),
            tf.keras.layers.Reshape((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=predictions)
    )


def optimizer(lr=0.001):
    """Adam, applied by the parameter servers; its rate halves every 500 updates.

    At a constant rate a long asynchronous training swings: of gradients that are one update old Adam takes a step
    too far now and then, which costs some percent of accuracy for an epoch, be it the last.
    """
    return tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(lr, 500, 0.5))


def feed(dataset, mode, _):
    """Parses serialized ``tf.train.Example`` records."""

    def parse(record):
        description = {"image": tf.io.FixedLenFeature([8, 8], tf.float32)}
        if mode != "prediction":
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        parsed = tf.io.parse_single_example(record, description)
        image = parsed["image"] / 16.0
        return image if mode == "prediction" else (image, parsed["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    """Share of images whose largest logit is the label's."""
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int64), tf.reshape(labels, [-1])
        )
    }
