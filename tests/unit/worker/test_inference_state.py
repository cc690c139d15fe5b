"""Evaluations and predictions leave a Keras model as it was, by every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl_worker.trainers.framework import Lookups
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.step.local_trainer import LocalTrainer
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
FEATURES = np.arange(8.0, dtype=np.float32).reshape(4, 2)


class Counts(keras.layers.Layer):
    """Counts and averages whatever it sees, and gives what it knew before and knows now."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="rows")
        self.mean = self.add_weight(shape=(2,), initializer="ones", trainable=False, name="mean")

    def call(self, x: Any) -> Any:
        old = tf.identity(self.mean)
        self.rows.assign_add(tf.shape(x, tf.int64)[0])
        self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
        return x + old + 10.0 * tf.convert_to_tensor(self.mean)


def locally(model: PreparedModel, eager: bool) -> Any:
    return LocalTrainer(model, Programs(model, eager=eager), eager=eager).predict


def on_servers(model: PreparedModel, eager: bool) -> Any:
    programs = Programs(model, eager=eager)
    return lambda features: programs.forward(features, {}, Lookups())


@pytest.mark.parametrize("way", [locally, on_servers])
@pytest.mark.parametrize("eager", [False, True])
def test_each_minibatch_is_computed_by_the_same_model(way: Any, eager: bool) -> None:
    module = ModelModule(Path("m.py"), (), lambda: keras.Sequential([Counts(), keras.layers.BatchNormalization()]))
    model = build_model(module, tf.TensorSpec((None, 2), tf.float32), BuildOptions(None))
    before = model.values()
    predict = way(model, eager)
    expected = (FEATURES + 1.0 + 10.0 * (0.5 + 0.5 * FEATURES.mean(0))) / np.sqrt(1.001)
    for _ in range(3):
        np.testing.assert_allclose(predict(tf.constant(FEATURES)), expected, rtol=1e-5)
        for name, value in model.values().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
