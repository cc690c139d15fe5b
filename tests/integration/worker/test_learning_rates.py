"""Learning rates that change, and reach 0: the cluster, ``--local`` and Keras agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import UserCodeError
from tests.integration.worker.small_jobs import assert_close, by_keras, locally, make_job, on_cluster

pytestmark = pytest.mark.integration

MODEL = """
def forward():
    x = tf.keras.Input((3,))
    h = tf.keras.layers.Dense(4, activation="tanh", name="hidden")(x)
    return tf.keras.Model(x, tf.keras.layers.Dense(1, name="out")(h))

class Frozen(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return tf.where(tf.cast(step, tf.float32) < 3.0, 0.1, 0.0)

schedules = tf.keras.optimizers.schedules
RATES = {
    "cosine": lambda: schedules.CosineDecay(0.1, 6),
    "cosine with warm-up from 0": lambda: schedules.CosineDecay(0.0, 4, warmup_target=0.1, warmup_steps=3),
    "polynomial to 0": lambda: schedules.PolynomialDecay(0.1, 5, 0.0),
    "exponential": lambda: schedules.ExponentialDecay(0.1, 4, 0.5),
    "pieces": lambda: schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.0, 0.05]),
    "own": Frozen,
}
"""
KINDS = ["cosine", "cosine with warm-up from 0", "polynomial to 0", "exponential", "pieces", "own"]


def records(count: int = 80) -> Any:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(count, 3))
    return np.column_stack([features.sum(1), features])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_schedule_gives_what_keras_gives(tmp_path: Path, start_servers: Any, kind: str) -> None:
    optimizer = f"\ndef optimizer():\n    return tf.keras.optimizers.Adam(RATES[{kind!r}]())\n"
    spec = make_job(tmp_path, MODEL + optimizer, records())
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    assert found.pushes == 10
    expected = by_keras(spec)
    assert_close(found.dense, expected)
    assert_close(await locally(spec, tmp_path / "local"), expected)


@pytest.mark.parametrize("how", [{"use_async": False}, {"lr_staleness_modulation": True}, {"get_model_steps": 2}])
async def test_a_rate_of_0_moves_nothing_in_any_mode(tmp_path: Path, start_servers: Any, how: Any) -> None:
    module = """
from elasticdl.callbacks import LearningRateScheduler
def optimizer():
    return tf.keras.optimizers.SGD(0.5)
def callbacks():
    return [LearningRateScheduler(lambda version: 0.1 if version == 0 else 0.0)]
"""
    spec = make_job(tmp_path, MODEL + module, records(), **how)
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    assert found.pushes > 0
    group = spec.get_model_steps
    assert_close(found.dense, by_keras(spec, rate=lambda step: 0.1 if step < group else 0.0))
    first = by_keras(spec, rate=lambda step: 0.1 if step == 0 else 0.0)
    assert_close(await locally(spec, tmp_path / "local"), first)


async def test_a_weight_decay_of_0_is_none(tmp_path: Path, start_servers: Any) -> None:
    module = "\ndef optimizer():\n    return tf.keras.optimizers.AdamW(0.1, weight_decay=0.0)\n"
    spec = make_job(tmp_path, MODEL + module, records())
    found = await on_cluster(spec, await start_servers(1), tmp_path / "job")
    assert_close(found.dense, by_keras(spec))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("Ftrl(RATES['polynomial to 0']())", "the learning rate schedule gave 0.0 at model version 5"),
        ("SGD(schedules.PolynomialDecay(0.1, 5, -0.1))", "the learning rate schedule gave -0.0.* at model version 3"),
        ("SGD(lambda: 0.1)", "the learning rate of the optimizer SGD is a function"),
    ],
    ids=["0 for FTRL", "negative", "a function"],
)
async def test_what_is_no_rate_is_refused_in_the_same_words(
    tmp_path: Path,
    start_servers: Any,
    optimizer: str,
    words: str,
) -> None:
    module = f"\ndef optimizer():\n    return tf.keras.optimizers.{optimizer}\n"
    spec = make_job(tmp_path, MODEL + module, records())
    servers = await start_servers(1)
    with pytest.raises(UserCodeError, match=words):
        await on_cluster(spec, servers, tmp_path / "job")
    with pytest.raises(UserCodeError, match=words):
        await locally(spec, tmp_path / "local")
