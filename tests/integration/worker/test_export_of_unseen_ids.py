"""Ids without a row read in an export as they read on the parameter servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.model import InitializerSpec, TableSpec
from elasticdl_runtime.initializers import INITIALIZER_NAMES, first_rows
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.tensorflow.export.checkpoint import export_checkpoint
from elasticdl_worker.trainers.tensorflow.export.initial_rows import InitialRows
from elasticdl_worker.user_code import load_model_module
from tests.integration.worker.small_jobs import make_job, on_cluster

pytestmark = pytest.mark.integration

MODEL = """
import elasticdl

def forward():
    ids = tf.keras.Input((2,), dtype="int64")
    rows = LAYER(ids)
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Flatten()(rows)))

def optimizer():
    return tf.keras.optimizers.SGD(0.1)
"""
OPEN = "elasticdl.layers.Embedding(3, embeddings_initializer='uniform', name='rows')"
CLOSED = "tf.keras.layers.Embedding(500, 3, embeddings_initializer='normal', name='rows')"


def records(low: int, high: int) -> Any:
    rng = np.random.default_rng(5)
    return np.column_stack([rng.integers(0, 3, 32), rng.integers(low, high, (32, 2))])


def serve(directory: Path, ids: Any) -> Any:
    model = tf.saved_model.load(str(directory / "saved_model"))
    return model.serve(tf.constant(ids)).numpy()


def outputs(rows: Any, dense: dict[str, Any]) -> Any:
    return rows.reshape(len(rows) // 2, -1) @ dense["out/kernel"] + dense["out/bias"]


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize(
    ("layer", "low", "how"),
    [(OPEN, -40, {}), (OPEN, -40, {"table_admission": 3}), (CLOSED, 0, {}), (CLOSED, 0, {"table_admission": 3})],
    ids=["open", "open, not admitted", "closed", "closed, not admitted"],
)
async def test_an_export_predicts_what_the_servers_do(
    tmp_path: Path, start_servers: Any, layer: str, low: int, how: Any
) -> None:
    spec = make_job(tmp_path, MODEL.replace("LAYER", layer), records(low, 40), features="tf.int64", **how)
    servers = await start_servers(2)
    found = await on_cluster(spec, servers, tmp_path / "job")
    files = await servers.master().save(str(tmp_path / "checkpoint"))
    request = ExportRequest(str(tmp_path / "checkpoint"), tuple(files), tmp_path / "out", ("saved_model", "keras"))
    module = load_model_module(spec, Path(spec.model_zoo))
    export_checkpoint(module, tf.TensorSpec([None, 2], tf.int64), request, spec.seed)
    ids = np.arange(low, 300).reshape(-1, 2)
    expected = outputs(await found.rows("rows", ids.reshape(-1)), found.dense)
    served = serve(tmp_path / "out", ids)
    np.testing.assert_allclose(served, expected, atol=1e-6)
    if layer == CLOSED:
        model = tf.keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
        np.testing.assert_allclose(model(ids), expected, atol=1e-6)
    else:
        notes = json.loads((tmp_path / "out" / "README.json").read_text())["tables"]["rows"]
        assert notes["other_ids"].keys() == {"kind", "a", "b", "seed"}


async def test_a_local_run_begins_rows_as_the_servers_do(tmp_path: Path, start_servers: Any) -> None:
    spec = make_job(
        tmp_path, MODEL.replace("LAYER", OPEN), records(-40, 40), features="tf.int64", export_formats="saved_model"
    )
    found = await on_cluster(spec, await start_servers(2), tmp_path / "job")
    run_local(spec, tmp_path / "local", lambda event: None)
    table = np.load(tmp_path / "local" / "table-0.npz")
    np.testing.assert_allclose(table["vectors"], await found.rows("rows", table["ids"]), atol=1e-6)
    ids = np.arange(100, 300).reshape(-1, 2)
    served = serve(tmp_path / "local", ids)
    expected = outputs(await found.rows("rows", ids.reshape(-1)), found.dense)
    np.testing.assert_allclose(served, expected, atol=1e-6)


@pytest.mark.parametrize("kind", INITIALIZER_NAMES)
def test_first_values_in_tensorflow_are_those_of_the_servers(kind: str) -> None:
    spec = TableSpec("t", 5, InitializerSpec(kind, seed=(1 << 31) - 1), 1000)
    ids = np.array([0, 1, -1, -5, 1 << 62, -(1 << 63) + 1, *range(200)])
    traced = tf.function(InitialRows(spec), input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
    np.testing.assert_allclose(traced(tf.constant(ids)), first_rows(spec, ids), rtol=1e-6, atol=1e-8)
