"""A command line that is run as a user runs it, in this process, against a fake API on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.cli.main import main
from tests.fakes.api import TOKEN, FakeApi, serving

MODULE = """
def forward(): ...
def loss(labels, predictions): ...
def optimizer(lr=0.1): ...
def feed(dataset, mode, metadata): ...
def eval_metrics_fn(): ...
"""


@dataclass
class Outcome:
    """What a command did.

    Attributes:
        code: its exit code.
        out: what it wrote on standard output.
        err: what it wrote on standard error.
    """

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs the command line; there is no cluster unless ``api`` is asked for."""
    monkeypatch.delenv("ELASTICDL_API_URL", raising=False)
    monkeypatch.delenv("ELASTICDL_TOKEN", raising=False)
    monkeypatch.setenv("ELASTICDL_DATA_DIR", str(tmp_path / "no-cluster"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ELASTICDL_CONTEXT", "")  # so that what a command sets does not outlive its test
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Outcome:
        capfd.readouterr()
        monkeypatch.setenv("ELASTICDL_CONTEXT", "")
        with pytest.raises(SystemExit) as end:
            main(list(args))
        captured = capfd.readouterr()
        code = end.value.code
        return Outcome(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


@pytest.fixture
def api(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A fake API that the command line finds."""
    for api in serving():
        monkeypatch.setenv("ELASTICDL_API_URL", api.url)
        monkeypatch.setenv("ELASTICDL_TOKEN", TOKEN)
        yield api


@pytest.fixture
def zoo(tmp_path: Path, cli: Cli) -> Path:
    """A model zoo at ``zoo`` and data at ``data``, in the directory that commands run in."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "digits.py").write_text(MODULE)
    (tmp_path / "data").mkdir()
    return folder
