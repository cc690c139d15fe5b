"""Ids without a bound: an average of vectors, and a linear part; CSV: label, id, id, id."""

import tensorflow as tf
from deepfm import eval_metrics_fn, feed, loss

import elasticdl
from elasticdl.callbacks import EarlyStopping, LearningRateScheduler, MaxStepsStopping


class CustomModel(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.vectors = elasticdl.layers.Embedding(4)
        self.head = tf.keras.layers.Dense(1)

    def call(self, ids, training=False):
        return self.head(tf.reduce_mean(self.vectors(ids * 1_000_003), 1))


def optimizer():
    return tf.keras.optimizers.Adam(0.05)


def step_rate():
    return [LearningRateScheduler(lambda version: 0.25 if version < 3 else 0.0)]


def at_most_seven():
    return [MaxStepsStopping(7)]


def impatient():
    return [EarlyStopping(monitor="accuracy", mode="max", patience=1, min_delta=2.0)]


def watching_nothing():
    return [EarlyStopping(monitor="f1")]


def twice():
    return [EarlyStopping(monitor="accuracy"), EarlyStopping(monitor="val_loss")]


class Processor:
    seen = []  # noqa: RUF012

    def process(self, predictions, worker_id):
        self.seen.append((worker_id, predictions.shape))


__all__ = ["eval_metrics_fn", "feed", "loss"]
