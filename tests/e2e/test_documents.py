"""Every command that the documents show runs as it stands, in order, in one shell a document."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.local_cluster import ROOT, Cluster, user_environment
from tests.fakes.frameworks import HAS_TORCH, NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(document: Path) -> str:
    """The shell blocks of a document as one script that stops at the first failure and shows each command."""
    blocks = _BLOCK.findall(document.read_text())
    assert blocks, f"{document} shows no commands"
    return "set -euo pipefail\n" + "\n".join(f"cat <<'SHOWN' >&2\n{block}SHOWN\n{block}" for block in blocks)


def run_document(document: Path, directory: Path, environment: dict[str, str], timeout: float) -> str:
    """Runs a document's commands in ``directory`` beside a copy of the examples; returns what they printed."""
    if not (directory / "examples").exists():
        shutil.copytree(ROOT / "examples", directory / "examples")
    shell = Cluster(directory, environment)
    done = shell.run("bash", "-c", commands(document), timeout=timeout)
    assert done.returncode == 0, f"--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.rotates(turns=2, place=1)  # beside the demo
def test_the_readme(tmp_path: Path) -> None:
    """It brings up a cluster of its own and takes it down."""
    environment = user_environment(tmp_path)
    try:
        shown = run_document(ROOT / "README.md", tmp_path, environment, timeout=800)
    finally:
        Cluster(tmp_path, environment).cli("down", expect=None, timeout=100)
    assert '"state":"SUCCEEDED"' in shown.replace(" ", "")
    assert (tmp_path / "model.keras").stat().st_size > 10_000
    assert any((tmp_path / "digits-export").rglob("*.keras"))


@pytest.mark.rotates(turns=5, family="documents")
def test_the_api_reference(cluster: Cluster, tmp_path: Path) -> None:
    shown = run_document(ROOT / "docs" / "api.md", tmp_path, cluster.environment, timeout=600)
    assert "event: end" in shown
    assert (tmp_path / "model.keras").stat().st_size > 10_000


@pytest.mark.rotates(turns=5, family="documents")
def test_the_document_on_tls(tmp_path: Path) -> None:
    """It brings up a cluster of its own and takes it down."""
    environment = {**user_environment(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    try:
        shown = run_document(ROOT / "docs" / "tls.md", tmp_path, environment, timeout=300)
    finally:
        Cluster(tmp_path, environment).cli("down", expect=None, timeout=100)
    assert f"by {tmp_path}/cluster/tls/ca.pem" in shown
    assert shown.count('"scope":"admin"') == 1


@pytest.mark.rotates(turns=5, family="documents")
def test_the_readmes_python(cluster: Cluster, digits: Path, tmp_path: Path) -> None:
    """The model module trains as it stands, and the client's lines run."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    keras, torch, client = blocks
    for name, module in ({"keras": keras} | ({"torch": torch} if HAS_TORCH else {})).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "digits.py").write_text(module)
        cluster.cli(
            *("train", "--local", "--model_zoo", str(tmp_path / name), "--model_def", "digits.forward"),
            *("--training_data", str(digits / "train"), "--validation_data", str(digits / "validation")),
            *("--max_step", "20", "--output", str(tmp_path / "output")),
        )
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(digits, tmp_path / "digits-data")
    done = cluster.run(sys.executable, "-c", client, cwd=tmp_path)
    assert done.stdout.split() == ["SUCCEEDED"], done.stderr


@pytest.mark.parametrize(
    "example",
    [
        *("digits", "iris", "resnet", "wide_deep", "clicks_parquet"),
        pytest.param("own_loop_torch", marks=NEEDS_TORCH),
        pytest.param("digits_torch", marks=NEEDS_TORCH),
        pytest.param("xdeepfm", marks=pytest.mark.slow),
    ],
)
@pytest.mark.rotates(turns=5, family="documents")
def test_an_examples_readme(cluster: Cluster, tmp_path: Path, example: str) -> None:
    """MNIST's and DeepFM's commands are those of test_examples, which also looks at their results."""
    shown = run_document(ROOT / "examples" / example / "README.md", tmp_path, cluster.environment, timeout=600)
    assert "SUCCEEDED" in shown


@NEEDS_TORCH
@pytest.mark.rotates(turns=5, family="documents")
def test_the_document_on_pytorch(tmp_path: Path) -> None:
    """It needs no cluster: its command runs a script in one process."""
    shown = run_document(ROOT / "docs" / "pytorch.md", tmp_path, user_environment(tmp_path), timeout=300)
    assert "every record was processed" in shown


def test_the_simulators_example(tmp_path: Path) -> None:
    """It needs no cluster."""
    shown = run_document(
        ROOT / "examples" / "scheduling" / "README.md", tmp_path, user_environment(tmp_path), timeout=200
    )
    for policy in ("goodput", "fifo", "tiresias"):
        assert policy in shown
