from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_core.backoff import Backoff


@pytest.fixture(autouse=True)
def _own_index_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps indexes out of the home of whoever runs the tests."""
    folder: Path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr("elasticdl.data.steady._PAUSES", Backoff(0.0, 0.0))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may read: root may read everything, so a test of rights goes on as nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        was = os.geteuid()
        yield folder
        os.seteuid(was)
