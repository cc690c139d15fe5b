"""A module with mistakes."""

import sys

import tensorflow as tf
from deepfm import feed


def custom_model():
    ids = tf.keras.Input(shape=(3,), dtype="int64")
    return tf.keras.Model(ids, tf.keras.layers.Dense(1)(tf.keras.layers.Rescaling(0.001)(ids)))


def model_of_wrong_shape():
    return tf.keras.Sequential([tf.keras.Input(shape=(7,)), tf.keras.layers.Dense(1)])


def no_model():
    return 3


def model_that_needs(size):
    return size


def loss(labels, predictions):
    return tf.reduce_mean(predictions)


def loss_that_exits(labels, predictions):
    sys.exit(0)


def loss_of_wrong_shape(labels, predictions):
    return tf.reduce_mean(tf.matmul(predictions, predictions))


def loss_that_is_nan(labels, predictions):
    return tf.reduce_mean(predictions) * float("nan")


def optimizer():
    return tf.keras.optimizers.SGD(0.1)


def lion():
    return tf.keras.optimizers.Lion(0.1)


def averaging():
    return tf.keras.optimizers.SGD(0.1, use_ema=True)


def endless_feed(dataset, mode, metadata):
    return feed(dataset, mode, metadata).repeat()


def lonely_feed(dataset, mode, metadata):
    return dataset.map(lambda columns: tf.strings.to_number(columns[1:], tf.int64))


def failing_feed(dataset, mode, metadata):
    def parse(columns):
        return tf.strings.to_number(columns[1:] + "x", tf.int64), tf.strings.to_number(columns[0])

    return dataset.map(parse)
