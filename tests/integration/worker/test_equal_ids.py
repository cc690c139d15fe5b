"""Equal ids in a minibatch: their gradients are one gradient, on the cluster and in a local run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.worker.small_jobs import assert_close, by_keras, locally, make_job, on_cluster

pytestmark = pytest.mark.integration

MODEL = """
def forward():
    ids = tf.keras.Input((4,), dtype="int64")
    rows = tf.keras.layers.Embedding(4, 3, name="rows", embeddings_initializer="ones")(ids)
    h = tf.keras.layers.Flatten()(rows)
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out")(h))
"""
OPTIMIZERS = [
    "Adam(0.05)",
    "Adagrad(0.1)",
    "RMSprop(0.05)",
    "SGD(0.1, clipnorm=0.05)",
    "SGD(0.1, global_clipnorm=0.05)",
    "SGD(0.1, clipvalue=0.01)",
]


def records(count: int = 40) -> Any:
    """Every minibatch of 8 has each id; the first id is most of them."""
    rng = np.random.default_rng(5)
    ids = np.minimum(rng.integers(0, 12, (count, 4)) // 3 * rng.integers(0, 2, (count, 4)), 3)
    ids[::8] = [0, 1, 2, 3]
    return np.column_stack([rng.integers(0, 3, count), ids])


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_gradients_of_equal_ids_are_summed_first(tmp_path: Path, start_servers: Any, optimizer: str) -> None:
    module = MODEL + f"\ndef optimizer():\n    return tf.keras.optimizers.{optimizer}\n"
    spec = make_job(tmp_path, module, records(), features="tf.int64")
    expected = by_keras(spec, merged=True)
    servers = await start_servers(2)
    found = await on_cluster(spec, servers, tmp_path / "job")
    rows = await found.rows("rows", np.arange(4))
    assert_close(found.dense | {"rows/embeddings": rows}, expected, atol=2e-6)
    assert_close(await locally(spec, tmp_path / "local"), expected, atol=2e-6)
    in_graph = make_job(tmp_path, module, records(), features="tf.int64", embedding_threshold_bytes=1 << 20)
    assert_close((await on_cluster(in_graph, await start_servers(1), tmp_path / "graph")).dense, expected, atol=2e-6)
    if "global" not in optimizer:  # the dense layers are most of that norm
        apart = by_keras(spec, merged=False)
        assert abs(apart["rows/embeddings"] - expected["rows/embeddings"]).max() > 1e-3, "Keras 3 no longer differs"
