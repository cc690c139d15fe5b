"""A worker looks at a model before the strategy of its job is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.job.strategy import ModelSight
from elasticdl_worker.trainers.inspection import inspect_model, sized_for_group
from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework
from tests.integration.worker.small_jobs import make_job

pytestmark = pytest.mark.integration
MODEL = """
def forward(rows=50, units=4, unbounded=False, broken=False):
    import keras
    if broken:
        raise ValueError("broken by its author")
    inputs = tf.keras.Input((3,))
    ids = keras.ops.cast(keras.ops.abs(inputs[:, 0]) * 3, "int64")
    if unbounded:
        import elasticdl
        x = elasticdl.layers.Embedding(4)(ids)
    else:
        x = tf.keras.layers.Embedding(rows, 4)(ids)
    x = tf.keras.layers.Concatenate()([inputs, x])
    x = tf.keras.layers.Dense(units)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))

def optimizer():
    return tf.keras.optimizers.SGD(0.01)
"""
FLOAT = 4


def sight_of(directory: Path, **params: Any) -> ModelSight:
    records = np.random.default_rng(5).normal(size=(24, 4)).round(4)
    made = make_job(directory, MODEL, records, model_params=params)
    spec = JobSpec.from_mapping(made.to_mapping() | {"distribution_strategy": "auto", "embedding_threshold_bytes": 1})
    return inspect_model(TensorFlowFramework(), sized_for_group(spec), Path(spec.model_zoo))


def test_sizes_of_what_is_small_are_enough(tmp_path: Path) -> None:
    assert sight_of(tmp_path) == ModelSight(
        dense_bytes=FLOAT * (7 * 4 + 4 + 4 + 1), table_bytes=FLOAT * 50 * 4, refusal=""
    )


def test_what_is_neither_small_nor_large_is_timed_on_the_first_records(tmp_path: Path) -> None:
    sight = sight_of(tmp_path, units=300_000)
    assert sight.dense_bytes == FLOAT * (7 * 300_000 + 300_000 + 300_000 + 1)
    assert sight.rows == 8
    assert sight.compute_s > 0
    assert sight.apply_s > 0


def test_an_embedding_without_a_bound_is_for_parameter_servers(tmp_path: Path) -> None:
    assert "no bound on its ids" in sight_of(tmp_path, unbounded=True).refusal


def test_what_the_module_raises_is_no_matter_of_the_choice(tmp_path: Path) -> None:
    assert "broken by its author" in sight_of(tmp_path, broken=True).refusal
