"""Ids that a model computes: a step uses the rows of the ids that it has, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import UserCodeError
from tests.integration.worker.small_jobs import assert_close, by_keras, locally, make_job, on_cluster

pytestmark = pytest.mark.integration

MODEL = """
import elasticdl

class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.rows = elasticdl.layers.Embedding(2, embeddings_initializer="ones", name="rows")
        self.seeds = tf.keras.random.SeedGenerator(3)
        self.out = tf.keras.layers.Dense(1, name="out")
        self.shift = self.add_weight(name="shift", shape=(), initializer="ones")

    def ids(self, ids, training):
        return IDS

    def call(self, ids, training=False):
        ids = self.ids(ids, training)
        kept = tf.cast(ids > 0, tf.float32)[..., None]
        return self.out(tf.reduce_sum(self.rows(ids) * kept, 1)) + 0.0 * self.shift

def forward():
    return Net()

def optimizer():
    return tf.keras.optimizers.SGD(0.01)
"""


def records(count: int = 32) -> Any:
    rng = np.random.default_rng(5)
    return np.column_stack([rng.integers(0, 3, count), rng.integers(0, 6, (count, 4))])


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("how", [{}, {"get_model_steps": 2}, {"eager": True}])
@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("tf.where(tf.random.uniform(tf.shape(ids)) < 0.5, tf.zeros_like(ids), ids)", "would be drawn twice"),
        (
            "tf.where(tf.keras.random.uniform((8, 4), seed=self.seeds) < 0.5, tf.zeros_like(ids), ids)",
            "would be drawn twice",
        ),
        ("tf.random.shuffle(ids) if training else ids", "would be drawn twice"),
        ("ids + tf.cast(self.shift, tf.int64)", "by the weight .*shift, would be computed twice"),
    ],
    ids=["TensorFlow", "Keras", "in training", "by a weight"],
)
async def test_ids_that_the_step_would_not_find_again_are_refused(
    tmp_path: Path, start_servers: Any, ids: str, words: str, how: Any
) -> None:
    spec = make_job(tmp_path, MODEL.replace("IDS", ids), records(), features="tf.int64", **how)
    servers = await start_servers(1)
    with pytest.raises(UserCodeError, match=words):
        await on_cluster(spec, servers, tmp_path / "job")
    if "get_model_steps" not in how:
        with pytest.raises(UserCodeError, match=words):
            await locally(spec, tmp_path / "local")


KERAS = """
SEED = tf.constant([1, 2])

def forward():
    ids = tf.keras.Input((4,), dtype="int64")
    moved = tf.keras.layers.Lambda(MOVE, output_shape=(4,), dtype="int64")(ids)
    rows = tf.keras.layers.Embedding(12, 2, name="rows", embeddings_initializer="ones")(moved)
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Flatten()(rows)))

def optimizer():
    return tf.keras.optimizers.SGD(0.01)
"""


@pytest.mark.parametrize(
    "move",
    [
        "lambda ids: (ids * 7 + 3) % 12",
        "lambda ids: ids + tf.random.stateless_uniform([4], [1, 2], 0, 6, tf.int64)",
    ],
    ids=["computed", "always the same draw"],
)
async def test_ids_that_follow_from_the_features_are_used(tmp_path: Path, start_servers: Any, move: str) -> None:
    spec = make_job(tmp_path, KERAS.replace("MOVE", move), records(), features="tf.int64", get_model_steps=2)
    found = await on_cluster(spec, await start_servers(1), tmp_path / "job")
    rows = await found.rows("rows", np.arange(12))
    assert_close(found.dense | {"rows/embeddings": rows}, by_keras(spec, merged=True))
