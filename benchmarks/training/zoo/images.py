"""A small convolutional network for grey images of 28 x 28, as a model module; records are pixels and a label."""

import tensorflow as tf

PIXELS = 28 * 28


def forward():
    """The model: images [batch, 28, 28, 1] to ten logits."""
    inputs = tf.keras.Input((28, 28, 1), name="image")
    x = tf.keras.layers.Conv2D(16, 3, activation="relu")(inputs)
    x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.Conv2D(32, 3, activation="relu")(x)
    x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.Dense(256, activation="relu")(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(x))


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return tf.keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    """Adam."""
    return tf.keras.optimizers.Adam(0.001)


def feed(dataset, mode, _):
    """A record is an image's pixels and its label, a byte each."""

    def parse(record):
        values = tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [PIXELS + 1])
        image = tf.reshape(tf.cast(values[:PIXELS], tf.float32) / 255.0, [28, 28, 1])
        return image if mode == "prediction" else (image, tf.cast(values[PIXELS], tf.int64))

    return dataset.map(parse)
