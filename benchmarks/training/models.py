"""DeepFM as plain TensorFlow functions, for the peers: the same mathematics as ``zoo/deepfm.py`` without Keras."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.training.data import FIELDS, LEARNING_RATE
from benchmarks.training.zoo import first_values

HIDDEN = (64, 32)


def load_keras() -> None:
    """Imports the Keras that TensorFlow loads late."""
    assert tf.keras.Model is not None


def use_threads(threads: int = 1) -> None:
    """Sizes TensorFlow's pools for a process that shares its cores with others, as our workers do."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def dense_values(dim: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """First values of the dense parameters: kernel and bias of the linear part, of the hidden layers, of the last."""
    return [one for pair in first_values.dense_values(FIELDS, dim, seed, HIDDEN) for one in pair]


def first_vectors(count: int, dim: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Keras' ``uniform``: float32 ``[count, dim]``."""
    return np.random.default_rng(seed).uniform(-0.05, 0.05, (count, dim)).astype(np.float32)


def logit(vectors: Any, weights: Any, dense: Sequence[Any]) -> Any:
    """The logit of a click.

    Args:
        vectors: ``[batch, 10, dim]``.
        weights: ``[batch, 10, 1]``.
        dense: the dense parameters in the order of ``dense_values``.
    """
    linear = tf.squeeze(weights, -1) @ dense[0] + dense[1]
    total = tf.reduce_sum(vectors, axis=1)
    squares = tf.reduce_sum(tf.square(vectors), axis=1)
    pairs = 0.5 * tf.reduce_sum(tf.square(total) - squares, axis=1, keepdims=True)
    hidden = tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
    layers = list(zip(dense[2::2], dense[3::2], strict=True))
    for kernel, bias in layers[:-1]:
        hidden = tf.nn.relu(hidden @ kernel + bias)
    return linear + pairs + hidden @ layers[-1][0] + layers[-1][1]


def loss_of(labels: Any, logits: Any) -> Any:
    """Mean binary cross-entropy."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))


class InGraph:
    """All parameters in TensorFlow variables of this process, trained by SGD on the touched rows only."""

    def __init__(self, vocabulary: int, dim: int) -> None:
        self.vectors = tf.Variable(first_vectors(vocabulary, dim))
        self.weights = tf.Variable(tf.zeros([vocabulary, 1]))
        self.dense = [tf.Variable(value) for value in dense_values(dim)]

    def step(self, ids: Any, labels: Any) -> Any:
        """One update; returns the loss."""
        with tf.GradientTape() as tape:
            vectors, weights = tf.gather(self.vectors, ids), tf.gather(self.weights, ids)
            loss = loss_of(labels, logit(vectors, weights, self.dense))
        variables = [self.vectors, self.weights, *self.dense]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices))
            else:
                variable.assign_sub(LEARNING_RATE * gradient)
        return loss


class RowsIn:
    """The step of a worker whose rows come from outside: gradients of rows and dense parameters come out."""

    def __init__(self, dim: int, batch: int) -> None:
        rows = [tf.TensorSpec([None, dim]), tf.TensorSpec([None, 1])]
        self.gradients = tf.function(
            self._gradients,
            input_signature=[*rows, tf.TensorSpec([batch, FIELDS], tf.int32), tf.TensorSpec([batch, 1], tf.int64)]
            + [tf.TensorSpec(value.shape) for value in dense_values(dim)],
        )

    def _gradients(self, vectors: Any, weights: Any, inverse: Any, labels: Any, *dense: Any) -> Any:
        """Gradients of unique rows (``[unique, dim]``, ``[unique, 1]``) and of the dense parameters."""
        sources = [vectors, weights, *dense]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            loss = loss_of(labels, logit(tf.gather(vectors, inverse), tf.gather(weights, inverse), dense))
        found = tape.gradient(loss, sources)
        count = tf.shape(vectors)[0]
        merged = [tf.math.unsorted_segment_sum(g.values, g.indices, count) for g in found[:2]]
        return [*merged, *found[2:]]
