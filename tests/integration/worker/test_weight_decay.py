"""Weight decay: who is left out of it, and how often it acts in a group of minibatches."""

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
    ids = tf.keras.Input((4,), dtype="int64")
    rows = tf.keras.layers.Embedding(4, 3, name="rows", embeddings_initializer="ones")(ids)
    h = tf.keras.layers.Flatten()(rows)
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out", bias_initializer="ones")(h))

def optimizer():
    made = tf.keras.optimizers.OPTIMIZER
    if EXCLUDED:
        made.exclude_from_weight_decay(var_names=EXCLUDED)
    return made
"""


def job(directory: Path, optimizer: str, excluded: list[str], **fields: Any) -> Any:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 4, (40, 4))
    ids[::8] = [0, 1, 2, 3]
    module = MODEL.replace("OPTIMIZER", optimizer).replace("EXCLUDED", repr(excluded))
    return make_job(directory, module, np.column_stack([rng.integers(0, 3, 40), ids]), features="tf.int64", **fields)


@pytest.mark.parametrize("excluded", [[], ["embeddings"], ["bias", "embed"]])
async def test_what_is_excluded_does_not_decay(tmp_path: Path, start_servers: Any, excluded: list[str]) -> None:
    spec = job(tmp_path, "AdamW(0.05, weight_decay=0.5)", excluded)
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    rows = await found.rows("rows", np.arange(4))
    expected = by_keras(spec, merged=True)
    assert_close(found.dense | {"rows/embeddings": rows}, expected, atol=2e-6)
    assert_close(await locally(spec, tmp_path / "local"), expected, atol=2e-6)


async def test_a_group_decays_with_each_minibatch(tmp_path: Path, start_servers: Any) -> None:
    spec = job(tmp_path, "SGD(0.05, weight_decay=0.5)", ["embeddings"], get_model_steps=4)
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    assert found.pushes == 2
    rows = await found.rows("rows", np.arange(4))
    assert_close(found.dense | {"rows/embeddings": rows}, by_keras(spec, merged=True), atol=2e-6)


async def test_rows_that_would_decay_once_a_group_are_refused(tmp_path: Path, start_servers: Any) -> None:
    spec = job(tmp_path, "SGD(0.05, weight_decay=0.5)", [], get_model_steps=4)
    with pytest.raises(UserCodeError, match="the rows of rows decay by weight_decay"):
        await on_cluster(spec, await start_servers(1), tmp_path / "job")
