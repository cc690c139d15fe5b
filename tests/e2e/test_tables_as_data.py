"""Tables of Python's memory train on a cluster, for its administrator and for a namespace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasticdl import Client
from tests.e2e.local_cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
import keras


def custom_model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(columns, mode, metadata):
    import numpy as np

    features = np.stack([columns["a"], columns["b"]], axis=1)
    return features if mode == "prediction" else (features, columns["y"][:, None])


def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError()}
"""


def line(rows: int, seed: int) -> pa.Table:
    """Rows of y = 2a - b."""
    draws = np.random.default_rng(seed).normal(size=(2, rows)).astype(np.float32)
    return pa.table({"a": draws[0], "b": draws[1], "y": 2 * draws[0] - draws[1]})


def test_tables_train_where_their_jobs_may_read(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(MODEL)
    root = tmp_path / "team"
    root.mkdir()
    cluster.cli("namespaces", "create", "frames", "--data-root", str(root))
    token = cluster.cli("tokens", "create", "frames-laptop", "--namespace", "frames", "--scope", "submit")
    with cluster.client() as admin, Client(admin.endpoint.url, token.stdout.split()[0]) as member:
        for client, folder in ((admin, tmp_path / "cache/elasticdl/tables"), (member, root / "_tables")):
            job = client.submit(
                model_zoo=tmp_path / "zoo",
                model_def="line.custom_model",
                training_data=line(2000, 1),
                validation_data=line(200, 2),
                minibatch_size=32,
                max_workers=2,
            )
            assert Path(job["spec"]["training_data"]).parent == folder
            ended = client.wait(job.id, timeout_s=300)
            assert ended["state"] == "SUCCEEDED", ended.raw
            assert client.ledger(job.id)["total"]["committed"] == 2000
            assert client.metrics(job.id)["evaluations"][-1]["metrics"]["mse"] < 0.01
            assert len(list(folder.glob("*.parquet"))) == 2
