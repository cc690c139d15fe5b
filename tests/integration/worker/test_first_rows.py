"""Large Keras embeddings, and what is made after them, begin alike: alone, on parameter servers and in a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job.fields import default_of
from tests.integration.worker.small_jobs import by_keras, locally, make_job, on_cluster

pytestmark = pytest.mark.integration
ROWS = {"plain": 180_000, "seeded": 270_000}
"""More than 2 MiB each, the threshold that a group has."""
MODULE = f"""
PLAIN, SEEDED = {ROWS["plain"]}, {ROWS["seeded"]}
def forward():
    SEEDING
    ids = tf.keras.Input((2,), dtype="int64")
    draws = tf.keras.initializers.RandomNormal(seed=11)
    parts = [
        tf.keras.layers.Embedding(PLAIN, 3, name="plain")(ids),
        tf.keras.layers.Embedding(SEEDED, 2, name="seeded", embeddings_initializer=draws)(ids),
    ]
    flat = tf.keras.layers.Flatten()(tf.keras.layers.Concatenate()(parts))
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="later")(flat))

def optimizer():
    return tf.keras.optimizers.SGD(0.0)
"""
FIELDS: dict[str, Any] = {"seed": 5, "embedding_threshold_bytes": default_of("embedding_threshold_bytes")}


@pytest.mark.parametrize("seeding", ["", "tf.keras.utils.set_random_seed(7)"], ids=["job's seed", "model's seed"])
async def test_drawn_rows_are_those_of_every_way(tmp_path: Path, start_servers: Any, seeding: str) -> None:
    """Nothing is learnt, so that what each way ends with is what it began with."""
    records = np.column_stack([np.zeros(8, int), np.arange(16).reshape(8, 2)])
    source = MODULE.replace("SEEDING", seeding)
    spec, group = (
        make_job(tmp_path, source, records, features="tf.int64", distribution_strategy=strategy, **FIELDS)
        for strategy in ("ParameterServerStrategy", "AllReduceStrategy")
    )
    served = await on_cluster(spec, await start_servers(2), tmp_path / "servers")
    wanted = dict(served.dense)
    assert_equal(wanted, {name: value for name, value in by_keras(spec).items() if name in wanted})
    for table, count in ROWS.items():
        rows = wanted[f"{table}/embeddings"] = await served.rows(table, np.arange(count))
        assert len(np.unique(rows)) > 1000, "they are drawn"
    assert_equal(await locally(spec, tmp_path / "local"), wanted)
    assert_equal(await locally(group, tmp_path / "group"), wanted)


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)
