"""Models of the sizes that users have: trained, saved, taken over, exported, and gone on with elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from tests.chaos.counting import until
from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.e2e.test_training import data_flags, exported_accuracies
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

KERAS = """

def forward(kind):
    layers = tf.keras.layers
    image = tf.keras.Input((8, 8), name="image")
    values = layers.Flatten()(image)
    if kind == "table":
        ids = layers.Rescaling(160.0, offset=tf.range(64.0) * 15_000.0)(values)
        values = layers.Flatten()(layers.Embedding(1_000_000, 16)(ids))
    for units in {"dense": [2100] * 2, "matrix": [4096] * 2, "stack": [1000] * 26, "table": []}[kind]:
        values = layers.Dense(units, activation="relu")(values)
    return tf.keras.Model(image, layers.Dense(10)(values))
"""
TORCH = """

class Pixels(nn.Module):
    def forward(self, values):
        return (values * 160).long() + torch.arange(64) * 15_000

def forward(kind):
    layers, width = [nn.Flatten()], 64
    if kind == "table":
        layers += [Pixels(), nn.Embedding(1_000_000, 16), nn.Flatten()]
        width = 64 * 16
    for units in {"dense": [2100] * 2, "matrix": [4096] * 2, "stack": [1000] * 26, "table": []}[kind]:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))
"""
SERVERS = (
    *("--distribution_strategy", "ParameterServerStrategy", "--embedding_threshold_bytes", str(1 << 40)),
    "--num_ps_pods",
)
GROUP = ("--distribution_strategy", "AllReduceStrategy")


def kill_server(cluster: Cluster, job_id: str) -> None:
    """Kills the first server as soon as there is a checkpoint to go back to."""
    folder = cluster.job_dir(job_id) / "checkpoints"
    until(lambda: list(folder.glob("*/manifest.json")), "a checkpoint is written", 300.0)
    (server,) = [
        one for one in cluster.launches(job_id) if (one["role"], one["index"], one["state"]) == ("ps", 0, "running")
    ]
    psutil.Process(server["pid"]).kill()


def exported_weights(folder: Path, cluster: Cluster, job_id: str) -> None:
    """Checks that the weights of an export are those of the last checkpoint, to the last bit."""
    import safetensors.numpy

    path = max(cluster.job_dir(job_id).glob("checkpoints/*/manifest.json"), key=lambda one: one.stat().st_mtime)
    manifest = json.loads(path.read_text())
    files = [CheckpointFile(one["name"], one["size"], one["sha256"]) for one in manifest["files"]]
    dense = read_checkpoint(path.parent, files).dense
    weights = safetensors.numpy.load_file(next(folder.rglob("model.safetensors")))
    assert dense.keys() == weights.keys()
    for name, value in dense.items():
        np.testing.assert_array_equal(weights[name], value)


@pytest.mark.parametrize("framework", ["tensorflow", pytest.param("torch", marks=NEEDS_TORCH)])
@pytest.mark.parametrize("kind", ["dense", "stack", "matrix", "table"])
@pytest.mark.parametrize(
    ("first", "second"), [((*SERVERS, "1"), (*SERVERS, "3")), ((*SERVERS, "2"), GROUP), (GROUP, (*SERVERS, "2"))]
)
def test_a_large_model_is_saved_exported_and_gone_on_with(
    cluster: Cluster, digits: Path, framework: str, kind: str, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    name = f"{kind}-{framework}-{len(first)}{first[-1][:1]}".lower()
    zoo = cluster.directory / f"zoo-{name}"
    zoo.mkdir()
    example = EXAMPLES / ("digits" if framework == "tensorflow" else "digits_torch") / "zoo" / "digits.py"
    (zoo / "large.py").write_text(example.read_text() + (KERAS if framework == "tensorflow" else TORCH))
    model = ("--model_zoo", str(zoo), "--model_def", "large.forward", "--model_params", f"kind={kind}")
    model = (*model, "--minibatch_size", "128")
    more = ("--num_epochs", "4", "--checkpoint_steps", "8")
    job_id = cluster.submit(*model, *data_flags(digits), *more, *first, "--job_name", name)
    if first != GROUP:
        kill_server(cluster, job_id)
    job = cluster.wait(job_id, 900)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert job["status"]["audit"]["state"] == "passed"
    accuracy = pytest.approx(job["status"]["metrics"]["accuracy"], abs=1e-6)
    target = cluster.directory / f"artifacts-{name}"
    cluster.cli("jobs", "artifacts", job_id, "--download", str(target))
    if framework == "torch":
        exported_weights(target, cluster, job_id)
    else:
        for found in exported_accuracies(cluster, framework, target, digits):
            assert found == accuracy

    checkpoints = ("--checkpoint_dir_for_init", str(cluster.job_dir(job_id) / "checkpoints"))
    validation = ("--validation_data", str(digits / "validation"))
    evaluated = cluster.cli(
        "evaluate", "--detach", *model, *checkpoints, *validation, *second, "--job_name", f"{name}-evaluated"
    )
    again = cluster.wait(evaluated.stdout.split()[-1], 600)
    assert again["state"] == "SUCCEEDED", json.dumps(again.get("error"), indent=1)
    assert again["status"]["metrics"]["accuracy"] == accuracy
    further = cluster.submit(
        *model, *data_flags(digits), *checkpoints, *second, "--num_epochs", "1", "--job_name", f"{name}-further"
    )
    assert cluster.wait(further, 900)["state"] == "SUCCEEDED"
