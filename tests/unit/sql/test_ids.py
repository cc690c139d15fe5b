"""Ids that modules of statements compute, against those of TensorFlow's feature columns."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

from elasticdl_preprocessing.layers import Discretization, Hashing


def column_ids(column: Any, features: dict[str, Any]) -> Any:
    pair = column.get_sparse_tensors(FeatureTransformationCache(features), None)
    return tf.sparse.to_dense(pair.id_tensor).numpy()


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_hashed_crossed_and_bucketized_ids_are_those_of_tensorflow(count: int) -> None:
    random = np.random.default_rng(7)
    numbers = tf.constant(random.normal(scale=100.0, size=(count, 1)), tf.float32)
    words, others = (tf.strings.as_string(tf.constant(random.integers(0, 1 << 40, (count, 1)))) for _ in range(2))
    columns = tf.feature_column
    hashed = columns.categorical_column_with_hash_bucket("a", 997)
    assert (Hashing(997)(words).numpy() == column_ids(hashed, {"a": words})).all()
    crossed = columns.crossed_column(["a", "b"], 10_007)
    found = keras.layers.HashedCrossing(10_007)([words, others]).numpy()
    assert (found == column_ids(crossed, {"a": words, "b": others})).all()
    bounds = [-150.0, -20.5, 0.0, 33.0, 200.0]
    bucketized = columns.bucketized_column(columns.numeric_column("n"), bounds)
    assert (Discretization(bounds)(numbers).numpy() == column_ids(bucketized, {"n": numbers})).all()
