"""A model whose parameters count how often each record's gradient is in them.

Its loss is minus the sum of its outputs. An output is the sum of two parameters that belong to the record alone: a
row of a table of the parameter servers, and an entry of a dense kernel. SGD with rate 1 adds 1 to each of them.
"""

import os
import time
from pathlib import Path

import tensorflow as tf

import elasticdl

RECORDS = int(os.environ["COUNTING_RECORDS"])
PACE = Path(os.environ["COUNTING_PACE"])


def custom_model():
    """One row and one entry for each record, all of them 0 at first."""
    record = tf.keras.Input((1,), dtype="int64", name="record")
    row = elasticdl.layers.Embedding(1, embeddings_initializer="zeros", name="rows")(record)
    spot = tf.keras.layers.CategoryEncoding(RECORDS, output_mode="one_hot")(record)
    entry = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="entries")(spot)
    return tf.keras.Model(record, tf.keras.layers.Add()([tf.keras.layers.Flatten()(row), entry]))


def loss(labels, predictions):
    """Its gradient by each record's parameters is -1."""
    return -tf.reduce_sum(predictions)


def optimizer():
    """Adds what was counted, or as much more as the rate says."""
    return tf.keras.optimizers.SGD(float(os.environ.get("COUNTING_RATE", "1")))


def feed(dataset, mode, metadata):
    """The number of the record, as slowly as the file says, which whoever watches may rewrite at any time."""

    def paced(row):
        time.sleep(float(PACE.read_text() or 0))
        return row

    def parse(row):
        row = tf.ensure_shape(tf.numpy_function(paced, [row], tf.string), [2])
        numbers = tf.strings.to_number(row, tf.int64)
        return numbers[:1], numbers[1:]

    return dataset.map(parse)


def eval_metrics_fn():
    """How often records are in the model, in both of their parameters: a pass over all adds 2."""
    return {"times": lambda labels, predictions: tf.reshape(predictions, (-1,))}
