"""Importing a package loads what its process needs and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "torch"}
SERVERS = {"fastapi", "sqlalchemy", "uvicorn", "alembic"}


def loaded_by(module: str) -> set[str]:
    """Top-level names in ``sys.modules`` of a fresh process that imported one module."""
    code = f"import sys, {module}; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("elasticdl", FRAMEWORKS | SERVERS | {"numba", "kubernetes", "grpc", "httpx", "numpy"}),
        ("elasticdl.cli.main", FRAMEWORKS | SERVERS | {"numba", "kubernetes", "grpc"}),
        ("elasticdl_core.job", FRAMEWORKS | SERVERS | {"numba", "numpy", "grpc", "pydantic"}),
        ("elasticdl_api.main", FRAMEWORKS | {"numba"}),
        ("elasticdl_scheduler.main", FRAMEWORKS | {"numba", "fastapi"}),
        ("elasticdl_master.main", FRAMEWORKS | {"numba", "fastapi", "sqlalchemy"}),
        ("elasticdl_ps.main", FRAMEWORKS | SERVERS | {"redis", "httpx"}),
        ("elasticdl_worker.main", FRAMEWORKS | SERVERS | {"redis", "numba", "httpx"}),
        ("elasticdl_worker.server_client", FRAMEWORKS | SERVERS | {"redis", "numba", "httpx"}),
    ],
)
def test_a_process_stays_light(module: str, absent: set[str]) -> None:
    assert loaded_by(module) & absent == set()
