"""Counts how often each record is in the model, beside a small net whose every bit follows from the past.

An entry of a dense kernel belongs to each record. The loss is a sum, which parts of an update add up to: so SGD with
rate 1 adds 1 to the entry of each record of a step.
"""

import gc
import os
import pathlib

import counting
import tensorflow as tf
from counting import RECORDS, eval_metrics_fn, optimizer  # noqa: F401 - the job's functions

UPDATE = 40
FLIP = pathlib.Path(os.environ["COUNTING_PACE"]).with_suffix(".flip")
HIDDEN = 8


def custom_model():
    """An entry for each record, all of them 0 at first, and a net."""
    record = tf.keras.Input((1,), dtype="int64", name="record")
    spot = tf.keras.layers.CategoryEncoding(RECORDS, output_mode="one_hot")(record)
    entry = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="entries")(spot)
    hidden = tf.keras.layers.Dropout(0.3)(tf.keras.layers.Dense(HIDDEN, activation="tanh")(spot))
    return tf.keras.Model(record, tf.keras.layers.Concatenate()([entry, tf.keras.layers.Dense(1)(hidden)]))


def loss(labels, predictions):
    """Its gradient by each record's entry is the same, and the net learns a sine."""
    wanted = tf.reshape(tf.sin(tf.cast(labels, tf.float32)), (-1, 1))
    off = tf.reduce_sum(tf.square(predictions[:, 1:] - wanted))
    return 0.05 / UPDATE * off - tf.reduce_sum(predictions[:, 0])


def feed(dataset, mode, metadata):
    """The number of the record, and again as what the net learns from."""

    def parse(record, label):
        return tf.ensure_shape(tf.numpy_function(_flipped, [record], tf.int64), [1]), record

    return counting.feed(dataset, mode, metadata).map(parse)


def _flipped(record):
    """Changes one layer a little if it is to, as memory that fails does: in the first member that comes to it."""
    if FLIP.exists():
        try:
            FLIP.unlink()
        except FileNotFoundError:
            return record
        # Whichever model of this process is trained: it may have been rebuilt of the one that was given.
        for found in gc.get_objects():
            if isinstance(found, tf.keras.Variable) and tuple(found.shape) == (RECORDS, HIDDEN):
                found.assign(found.numpy() * 1.001)
    return record
