"""``elasticdl zoo``, and the command line as a whole: light, complete, and helpful."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.model_check import check_model_module
from elasticdl_core.job import JobSpec
from elasticdl_runtime.bundles import pack_bundle, unpack_bundle
from tests.fakes.api import FakeApi
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


def test_a_new_zoo_passes_the_check_and_tells_what_to_do_next(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("zoo", "init", "mine")
    assert outcome.code == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["README.md", "digits.py"]
    check_model_module(tmp_path / "mine", JobSpec(model_def="digits.forward", model_zoo="x", training_data="y"))
    assert "--model_zoo=mine --model_def=digits.forward" in outcome.out
    entries = {
        node.name for node in ast.parse((tmp_path / "mine" / "digits.py").read_text()).body if hasattr(node, "name")
    }
    assert entries == {"forward", "loss", "optimizer", "feed", "eval_metrics_fn"}


def test_a_zoo_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "digits.py").write_text("precious")
    outcome = cli("zoo", "init", "mine")
    assert (outcome.code, (tmp_path / "mine" / "digits.py").read_text()) == (1, "precious")
    assert "--force" in outcome.err
    assert cli("zoo", "init", "mine", "--force").code == 0
    assert cli("zoo", "init", "mine/digits.py").code == 1


def test_a_bundle_has_the_digest_that_is_printed(cli: Cli, zoo: Path, tmp_path: Path) -> None:
    digest = cli("zoo", "build", "zoo", "--output", "out/zoo.zip").out.strip()
    assert digest == pack_bundle(zoo)[1]
    unpack_bundle(tmp_path / "out" / "zoo.zip", tmp_path / "again")
    assert (tmp_path / "again" / "digits.py").read_text() == (zoo / "digits.py").read_text()
    assert json.loads(cli("zoo", "build", "zoo", "--json").out)["digest"] == digest
    assert cli("zoo", "build", "nowhere").code == 2


def test_a_pushed_zoo_can_be_named_by_its_digest(api: FakeApi, cli: Cli, zoo: Path) -> None:
    digest = cli("zoo", "push", "zoo").out.strip()
    assert list(api.bundles) == [digest]
    outcome = cli(
        "train", f"--model_bundle={digest}", "--model_def=digits.forward", "--training_data=data", "--detach"
    )
    assert outcome.code == 0, outcome.err
    assert api.requests("POST", "/jobs")[0].json()["model_bundle"] == digest
    assert len(api.requests("PUT")) == 1


def test_a_misspelt_command_is_told_the_right_one(cli: Cli) -> None:
    outcome = cli("trian")
    assert outcome.code == 2
    assert "train" in outcome.err
    assert cli("jobs", "lst").code == 2


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("version").out.startswith("elasticdl 0.")


def test_help_shows_where_to_start(cli: Cli) -> None:
    text = cli("--help").out
    for verb in ("train", "evaluate", "predict", "jobs", "zoo", "data", "up", "down", "status", "version"):
        assert f" {verb} " in text
    assert "elasticdl zoo init" in text


def test_the_command_line_starts_without_frameworks_servers_or_the_http_client() -> None:
    heavy = ["tensorflow", "keras", "torch", "numba", "numpy", "sqlalchemy", "fastapi", "grpc", "httpx", "kubernetes"]
    code = f"import sys, elasticdl, elasticdl.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_client_is_found_at_the_top() -> None:
    import elasticdl
    from elasticdl.client import AsyncClient, Client

    assert (elasticdl.Client, elasticdl.AsyncClient) == (Client, AsyncClient)


def test_a_python_without_docstrings_is_refused() -> None:
    command = [sys.executable, "-OO", "-m", "elasticdl", "train", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "unset PYTHONOPTIMIZE" in done.stderr
