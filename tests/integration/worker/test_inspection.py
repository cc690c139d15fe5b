"""A worker looks at a model before the strategy of its job is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import default_of
from elasticdl_core.job.strategy import ModelProfile
from elasticdl_worker.trainers.inspection import inspect_model, sized_for_group
from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework
from tests.integration.worker.small_jobs import make_job

pytestmark = pytest.mark.integration
MODEL = """
def forward(rows=50, units=4, unbounded=False, broken=False, tied=False):
    import keras
    if broken:
        raise ValueError("broken by its author")
    inputs = tf.keras.Input((3,))
    ids = keras.ops.cast(keras.ops.abs(inputs[:, 0]) * 3, "int64")
    if unbounded:
        import elasticdl
        x = elasticdl.layers.Embedding(4)(ids)
    elif rows:
        layer = tf.keras.layers.Embedding(rows, 4)
        x = layer(ids)
        if tied == "in the graph":
            x = x + layer.embeddings[0]
        elif tied:
            return Tied()
    x = tf.keras.layers.Concatenate()([inputs, x]) if rows or unbounded else inputs
    x = tf.keras.layers.Dense(units)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))

def optimizer():
    return tf.keras.optimizers.SGD(0.01)
"""
TIED = """
class Tied(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.layer, self.out = tf.keras.layers.Embedding(1_000_000, 4), tf.keras.layers.Dense(1)

    def call(self, inputs, training=False):
        return self.out(self.layer(tf.cast(tf.abs(inputs[:, 0]) * 3, tf.int64)) + self.layer.embeddings[0])
"""
FLOAT = 4


def profile_of(directory: Path, *, module: str = MODEL, **params: Any) -> ModelProfile:
    records = np.random.default_rng(5).normal(size=(24, 4)).round(4)
    made = make_job(directory, module, records, model_params=params)
    others = {"distribution_strategy": "auto", "embedding_threshold_bytes": default_of("embedding_threshold_bytes")}
    spec = JobSpec.from_mapping(made.to_mapping() | others)
    return inspect_model(TensorFlowFramework(), sized_for_group(spec), Path(spec.model_zoo))


@pytest.mark.parametrize(("rows", "tables"), [(0, 0), (50, 0), (1_000_000, 1)])
def test_what_servers_would_hold_as_a_table_is_one(tmp_path: Path, rows: int, tables: int) -> None:
    inputs = 7 if rows else 3
    profile = profile_of(tmp_path, rows=rows)
    assert profile == ModelProfile(FLOAT * (inputs * 4 + 4 + 4 + 1), FLOAT * rows * 4, tables)
    assert profile_of(tmp_path, rows=rows) == profile, "each time the same"


def test_what_servers_cannot_train_is_told_apart(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, module=MODEL + TIED, rows=1_000_000, tied=True)
    assert not profile.refusal
    assert "its weights are used directly" in profile.unserved
    inside = profile_of(tmp_path, rows=1_000_000, tied="in the graph")  # which keeps the whole matrix in the model
    assert (inside.tables, inside.unserved, inside.refusal) == (0, "", "")


def test_an_embedding_without_a_bound_is_for_parameter_servers(tmp_path: Path) -> None:
    assert "no bound on its ids" in profile_of(tmp_path, unbounded=True).refusal


def test_what_the_module_raises_is_no_matter_of_the_choice(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, broken=True)
    assert "broken by its author" in profile.fault and not profile.refusal, "parameter servers cannot train it either"
