"""MNIST-like images from RecordIO, with the entries and signatures of the ElasticDL article of 2020."""

import tensorflow as tf

from elasticdl import Mode


def forward():
    """The model: images [batch, 28, 28] to ten logits."""
    inputs = tf.keras.Input(shape=(28, 28), name="image")
    x = tf.keras.layers.Reshape((28, 28, 1))(inputs)
    x = tf.keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu")(x)
    x = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = tf.keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = tf.keras.layers.Dropout(0.25)(x)
    x = tf.keras.layers.Flatten()(x)
    outputs = tf.keras.layers.Dense(10)(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs, name="mnist_model")


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=predictions)
    )


def optimizer(lr=0.05):
    """Plain SGD."""
    return tf.optimizers.SGD(lr)


def eval_metrics_fn():
    """Share of images whose largest logit is the label's."""
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


def dataset_fn(dataset, mode, _):
    """Parses serialized ``tf.train.Example`` records; shuffles within a task when training."""

    def parse(record):
        description = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        parsed = tf.io.parse_single_example(record, description)
        features = {"image": parsed["image"] / 255.0}
        return features if mode == Mode.PREDICTION else (features, tf.cast(parsed["label"], tf.int32))

    dataset = dataset.map(parse)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(buffer_size=1024)
    return dataset
