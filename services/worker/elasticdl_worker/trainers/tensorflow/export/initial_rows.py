"""The rows that ids begin with, as TensorFlow operations: for exported models, which have no parameter servers."""

from __future__ import annotations

import math

import numpy as np

from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import (
    ATTEMPT,
    CONSTANT,
    GOLDEN,
    NORMAL,
    TRUNCATED_NORMAL,
    make_initializer,
    stream_of,
)
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Tensor


class InitialRows:
    """Makes first rows of one table; ``elasticdl_runtime.initializers.initial_values`` says which."""

    def __init__(self, spec: TableSpec) -> None:
        self._made = make_initializer(spec)
        self._dim = spec.dim

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows of int64 ids of any shape, ``[..., dim]``."""
        made = self._made
        if made.kind == CONSTANT:
            return tf.fill(tf.concat([tf.shape(ids), [self._dim]], 0), tf.constant(made.a, tf.float32))
        stream = _hash(tf.bitcast(ids, tf.uint64) + _word(int(stream_of(made.seed)[0])))
        # From numpy: of a list, TensorFlow makes float64 on the way, and loses digits.
        columns = np.arange(1, self._dim + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        counters = stream[..., tf.newaxis] + tf.constant(columns)
        if made.kind == NORMAL:
            numbers = _normal(_hash(counters))
        elif made.kind == TRUNCATED_NORMAL:
            numbers = _near(counters)
        else:
            fraction = tf.cast(tf.bitwise.right_shift(_hash(counters), _word(11)), tf.float64) / float(1 << 53)
            return tf.cast(made.a + (made.b - made.a) * fraction, tf.float32)
        return tf.cast(made.a + made.b * numbers, tf.float32)


def _near(counters: Tensor) -> Tensor:
    """Standard normal numbers, those over 2 drawn again."""

    def again(counters: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        far = tf.abs(numbers) > 2.0
        counters = tf.where(far, counters + _word(ATTEMPT), counters)
        return counters, tf.where(far, _normal(_hash(counters)), numbers)

    first = (counters, _normal(_hash(counters)))
    return tf.while_loop(lambda _, numbers: tf.reduce_any(tf.abs(numbers) > 2.0), again, first)[1]


def _hash(values: Tensor) -> Tensor:
    """``elasticdl_runtime.partition.hash_ids`` of uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _word(shift))) * _word(factor)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _word(31)))


def _normal(bits: Tensor) -> Tensor:
    first = (tf.cast(tf.bitwise.right_shift(bits, _word(32)), tf.float64) + 0.5) / float(1 << 32)
    second = tf.cast(tf.bitwise.bitwise_and(bits, _word(0xFFFFFFFF)), tf.float64) / float(1 << 32)
    return tf.sqrt(-2.0 * tf.math.log(first)) * tf.cos(2.0 * math.pi * second)


def _word(value: int) -> Tensor:
    return tf.constant(np.uint64(value))
