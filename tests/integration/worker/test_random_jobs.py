"""Jobs drawn at random end where plain Keras does, alone, in rounds and in parts, and over a hand-over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.fakes.drawn_jobs import UPDATE, DrawnJob, numbers
from tests.unit.ps.test_random_optimizers import KERAS

pytestmark = pytest.mark.integration
SOURCE = """
import keras
import tensorflow as tf


class Net(keras.Model):
    def __init__(self, frozen=True, **kwargs):
        super().__init__(**kwargs)
        self.always, self.shared = keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)
        self.frozen = keras.layers.Dense(1, trainable=not frozen)
        self.heads = [keras.layers.Dense(1) for _ in range(3)]
        self.rows = keras.layers.Embedding(6, 1)

    def call(self, x):
        given = x[:, :2]
        found = tf.reduce_sum(self.always(given), 1, keepdims=True) + self.frozen(given)
        found += self.shared(given) - 0.5 * self.shared(tf.tanh(given)) + self.rows(tf.cast(x[:, 2], tf.int32))
        for at, head in enumerate(self.heads):
            found += x[:, 3 + at, None] * head(given)
        return found


def forward(frozen=True):
    return Net(frozen)


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions[:, 0]))


def optimizer():
    return keras.optimizers.KIND(**OPTIONS)


def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.strings.to_number(record)
        return values[1:], values[0]

    return dataset.map(parse)
"""


def made(names: dict[str, Any], draw: DrawnJob) -> Any:
    tf.keras.utils.set_random_seed(3)
    net = names["forward"](frozen=False)
    net(tf.constant(draw.records[0, :1, 1:], tf.float32))
    return net


def plain(draw: DrawnJob, names: dict[str, Any]) -> Any:
    """The model that a loop over the same records ends with."""
    net, optimizer = made(names, draw), names["optimizer"]()
    optimizer.build(net.trainable_variables)
    frozen = {id(one) for one in net.frozen.weights}
    for job, rows in enumerate(tf.constant(draw.records, tf.float32)):
        trained = [one for one in net.trainable_variables if job or id(one) not in frozen]
        for start in range(0, len(rows), UPDATE):
            batch = rows[start : start + UPDATE]
            with tf.GradientTape() as tape:
                loss = names["loss"](batch[:, 0], net(batch[:, 1:], training=True))
            # Keras' optimizers treat an id that a minibatch has twice as two gradients; ours is that of the row.
            gradients = map(tf.convert_to_tensor, tape.gradient(loss, trained))
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
    return net


@pytest.mark.parametrize("number", numbers())
def test_jobs_end_where_keras_does(number: int, tmp_path: Path) -> None:
    """Parameters that are used always, sometimes, late, early and twice, and what the second job unfreezes."""
    draw = DrawnJob.of(KERAS, number, "learning_rate")
    source = SOURCE.replace("KIND", draw.kind).replace("OPTIONS", repr(draw.options))
    out = draw.train(tmp_path, source, framework="tensorflow", export_formats="keras")
    names: dict[str, Any] = {"__name__": "plain"}
    exec(compile(source, "plain", "exec"), names)
    found, wanted = made(names, draw), plain(draw, names)
    found.load_weights(out / "model.keras")
    for value, other in zip(found.weights, wanted.weights, strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-5, err_msg=f"{value.path} {draw}")
