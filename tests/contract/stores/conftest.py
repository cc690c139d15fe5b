from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_core.backoff import Backoff
from tests.fakes.s3_server import FaultyS3, serving_s3


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_runtime.object_store._PAUSES", Backoff(first_s=0.001, longest_s=0.01))


@pytest.fixture(scope="session")
def s3() -> Iterator[FaultyS3]:
    pytest.importorskip("s3fs", reason="needs the extra s3-dev")
    pytest.importorskip("moto", reason="needs the extra s3-dev")
    with serving_s3("jobs") as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a job may put what it makes: a path or a URL, of which nothing is there yet."""
    name = uuid.uuid4().hex
    if request.param == "folder":
        yield str(tmp_path / name)
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return
    if request.param == "s3":
        request.getfixturevalue("s3")
    yield f"{request.param}://jobs/{name}"
