"""Counts how often each record is in the model, beside a small net whose every bit follows from the past.

An entry of a dense kernel belongs to each record. The members of a group divide the sum of a step's gradients by its
records, and each minibatch gives its gradient times its own: so the loss is as many times as steep as a step has
minibatches, and SGD with rate 1 adds 1 to the entry of each record of a whole step.
"""

import counting
import tensorflow as tf
from counting import RECORDS, eval_metrics_fn, optimizer  # noqa: F401 - the job's functions

MICROBATCHES = 4


def custom_model():
    """An entry for each record, all of them 0 at first, and a net."""
    record = tf.keras.Input((1,), dtype="int64", name="record")
    spot = tf.keras.layers.CategoryEncoding(RECORDS, output_mode="one_hot")(record)
    entry = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="entries")(spot)
    hidden = tf.keras.layers.Dropout(0.3)(tf.keras.layers.Dense(8, activation="tanh")(spot))
    return tf.keras.Model(record, tf.keras.layers.Concatenate()([entry, tf.keras.layers.Dense(1)(hidden)]))


def loss(labels, predictions):
    """Its gradient by each record's entry is the same, and the net learns a sine."""
    wanted = tf.sin(tf.cast(labels, tf.float32))
    off = tf.reduce_mean(tf.square(predictions[:, 1:] - wanted))
    return 0.05 * off - MICROBATCHES * tf.reduce_sum(predictions[:, 0])


def feed(dataset, mode, metadata):
    """The number of the record, and again as what the net learns from."""
    return counting.feed(dataset, mode, metadata).map(lambda record, label: (record, record))
