"""Constraints of weights hold on the cluster as they do in Keras; what cannot hold is refused in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import UserCodeError
from tests.integration.worker.small_jobs import assert_close, by_keras, locally, make_job, on_cluster

pytestmark = pytest.mark.integration

MODEL = """
c = tf.keras.constraints

def forward():
    x = tf.keras.Input((6,))
    h = tf.keras.layers.Dense(5, name="hidden", kernel_constraint=CONSTRAINT, bias_constraint=c.NonNeg())(x)
    return tf.keras.Model(x, tf.keras.layers.Dense(1, name="out", kernel_constraint=CONSTRAINT)(h))

def optimizer():
    return tf.keras.optimizers.Adam(0.2, weight_decay=0.1)
"""


def records(count: int = 64) -> Any:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(count, 6))
    return np.column_stack([features @ [1, -2, 0.5, 0, 1, -1], features])


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize(
    "constraint",
    [
        "c.NonNeg()",
        "c.MaxNorm(0.5)",
        "c.MaxNorm(0.7, axis=[0, 1])",
        "c.UnitNorm(axis=-1)",
        "c.MinMaxNorm(0.3, 0.6, 0.5, axis=0)",
    ],
)
async def test_a_constraint_holds_after_each_update(tmp_path: Path, start_servers: Any, constraint: str) -> None:
    spec = make_job(tmp_path, MODEL.replace("CONSTRAINT", constraint), records())
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    expected = by_keras(spec)
    assert_close(found.dense, expected, atol=2e-6)
    assert (found.dense["hidden/bias"] >= 0).all()
    assert_close(await locally(spec, tmp_path / "local"), expected, atol=2e-6)


async def test_a_large_weight_is_constrained_whole(tmp_path: Path, start_servers: Any) -> None:
    """So large that it would be cut over the parameter servers."""
    module = """
def forward():
    x = tf.keras.Input((6,))
    h = tf.keras.layers.Dense(50_000, name="wide", kernel_constraint=tf.keras.constraints.MaxNorm(0.001, axis=1))(x)
    return tf.keras.Model(x, tf.keras.layers.Dense(1, name="out", kernel_constraint=tf.keras.constraints.NonNeg())(h))

def optimizer():
    return tf.keras.optimizers.SGD(0.0001)
"""
    spec = make_job(tmp_path, module, records(16))
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    assert found.dense["wide/kernel"].size > 1 << 18
    assert_close(found.dense, by_keras(spec))


OWN = """
class NonNeg(tf.keras.constraints.Constraint):
    def __call__(self, w):
        return tf.abs(w)

class Storing(tf.keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")
    def call(self, x):
        self.scale.assign(self.scale / tf.norm(self.scale))
        return x * self.scale

def model(layer=None, constraint=None):
    x = tf.keras.Input((6,))
    h = layer(x) if layer is not None else x
    return tf.keras.Model(x, tf.keras.layers.Dense(1, name="out", kernel_constraint=constraint)(h))

def optimizer():
    return tf.keras.optimizers.SGD(0.1)
"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("model(constraint=NonNeg())", "the constraint NonNeg of the weight out/kernel is not among those"),
        ("model(constraint=lambda w: w)", "the constraint <lambda> of the weight out/kernel is not among those"),
        (
            "model(tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(4, name='d')))",
            "what the model assigns to the trained weight .*kernel in call would be undone",
        ),
        (
            "model(Storing(name='own'))",
            "what the model assigns to the trained weight own/scale in call",
        ),
    ],
    ids=["own constraint", "function", "SpectralNormalization", "own layer"],
)
async def test_what_only_the_model_knows_is_refused(
    tmp_path: Path, start_servers: Any, model: str, words: str
) -> None:
    spec = make_job(tmp_path, OWN + f"\ndef forward():\n    return {model}\n", records())
    servers = await start_servers(1)
    with pytest.raises(UserCodeError, match=words):
        await on_cluster(spec, servers, tmp_path / "job")
    with pytest.raises(UserCodeError, match=words):
        await locally(spec, tmp_path / "local")
