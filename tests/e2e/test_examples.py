"""The examples, run as their READMEs say."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, ROOT, Cluster
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.rotates(turns=5, family="examples")]


def finished(cluster: Cluster, *flags: str, timeout: float = 600) -> dict:
    job = cluster.wait(cluster.submit(*flags), timeout=timeout)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    return job


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> Path:
    directory = cluster.directory / "images"
    cluster.cli("data", "generate", "mnist", str(directory))
    return directory


def test_mnist_from_recordio(cluster: Cluster, images: Path) -> None:
    job = finished(
        cluster,
        *("--job_name", "mnist", "--model_zoo", str(EXAMPLES / "mnist" / "zoo"), "--model_def", "mnist.forward"),
        *("--training_data", str(images / "train"), "--validation_data", str(images / "validation")),
        *("--num_epochs", "6", "--minibatch_size", "32", "--num_ps_pods", "2", "--num_workers", "2"),
    )
    assert job["status"]["metrics"]["accuracy"] >= 0.8


def test_the_listing_of_the_article_runs_as_it_stands(cluster: Cluster, images: Path) -> None:
    zoo = cluster.directory / "article"
    zoo.mkdir()
    shutil.copy(ROOT / "tests" / "unit" / "worker" / "zoo" / "article_mnist.py", zoo / "article.py")
    job = finished(
        cluster,
        *("--job_name", "article", "--model_zoo", str(zoo), "--model_def", "article.forward"),
        *("--training_data", str(images / "train"), "--validation_data", str(images / "validation")),
        *("--num_epochs", "4", "--minibatch_size", "32", "--num_ps_pods", "2"),
    )
    assert job["status"]["metrics"]["accuracy"] >= 0.6, "at its rate of 0.1 it swings; a guess is right for 0.1"


def test_iris_from_csv(cluster: Cluster) -> None:
    directory = cluster.directory / "iris"
    cluster.cli("data", "generate", "iris", str(directory))
    job = finished(
        cluster,
        *("--job_name", "iris", "--model_zoo", str(EXAMPLES / "iris" / "zoo"), "--model_def", "iris.custom_model"),
        *("--training_data", str(directory / "train.csv"), "--validation_data", str(directory / "validation.csv")),
        *("--num_epochs", "60", "--minibatch_size", "16"),
    )
    assert job["status"]["metrics"]["accuracy"] >= 0.8


def test_deepfm_with_four_workers_reaches_the_auc_of_plain_keras(cluster: Cluster) -> None:
    directory = cluster.directory / "clicks"
    cluster.cli("data", "generate", "clicks", str(directory), "--records", "300000", "--zipf", "1.3")
    module = EXAMPLES / "deepfm" / "zoo" / "deepfm.py"
    plain = cluster.run(
        *(sys.executable, str(ROOT / "tests" / "e2e" / "plain_keras.py"), str(module)),
        *(str(directory / "train"), str(directory / "validation"), "1", "512"),
        timeout=600,
    )
    assert plain.returncode == 0, plain.stderr[-3000:]
    wanted = json.loads(plain.stdout.splitlines()[-1])["auc"]
    job = finished(
        cluster,
        *("--job_name", "deepfm", "--model_zoo", str(module.parent), "--model_def", "deepfm.forward"),
        *("--training_data", str(directory / "train"), "--validation_data", str(directory / "validation")),
        *("--num_epochs", "1", "--minibatch_size", "512", "--num_ps_pods", "2", "--num_workers", "4"),
    )
    ceiling = json.loads((directory / "truth.json").read_text())["auc_ceiling"]
    reached = job["status"]["metrics"]["auc"]
    assert reached >= wanted - 0.003, f"plain Keras reaches {wanted:.4f}, the ceiling is {ceiling:.4f}"
    assert reached <= ceiling + 0.02, "an AUC above the ceiling means that the held-out data leaked"


@NEEDS_TORCH
def test_images_in_files_with_pytorch(cluster: Cluster) -> None:
    directory = cluster.directory / "pictures"
    made = cluster.run(sys.executable, str(EXAMPLES / "images_torch" / "make_images.py"), str(directory))
    assert made.returncode == 0, made.stderr
    job = finished(
        cluster,
        *("--job_name", "images-torch", "--model_zoo", str(EXAMPLES / "images_torch" / "zoo")),
        *("--model_def", "images.forward", "--training_data", str(directory / "train")),
        *("--validation_data", str(directory / "validation")),
        *("--num_epochs", "8", "--minibatch_size", "32", "--num_workers", "2"),
    )
    assert job["status"]["metrics"]["accuracy"] >= 0.9


@NEEDS_TORCH
@pytest.mark.slow
def test_deepfm_in_pytorch_reaches_what_the_keras_example_does(cluster: Cluster) -> None:
    directory = cluster.directory / "clicks-torch"
    cluster.cli("data", "generate", "clicks", str(directory), "--records", "300000", "--zipf", "1.3")
    found = {}
    for name in ("deepfm", "deepfm_torch"):
        job = finished(
            cluster,
            *("--job_name", name.replace("_", "-"), "--model_zoo", str(EXAMPLES / name / "zoo")),
            *("--model_def", "deepfm.forward", "--training_data", str(directory / "train")),
            *("--validation_data", str(directory / "validation"), "--num_epochs", "1", "--minibatch_size", "512"),
            *("--num_ps_pods", "2", "--num_workers", "4"),
        )
        found[name] = job["status"]["metrics"]["auc"]
    assert found["deepfm_torch"] >= found["deepfm"] - 0.003
