"""A cluster whose jobs get hurt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_runtime import failpoints
from tests.e2e.local_cluster import Cluster, user_environment


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local cluster with four slots, for all faults that leave it up; its failpoints are off until armed."""
    directory = tmp_path_factory.mktemp("chaos")
    armed = directory / "failpoints"
    armed.mkdir()
    cluster = Cluster(directory, user_environment(directory) | {failpoints.VARIABLE: str(armed)})
    with cluster.running("--slots", "4", "--policy", "fair"):
        yield cluster


@pytest.fixture
def armory(cluster: Cluster) -> Iterator[Path]:
    """Where failpoints are armed; none stays armed, and none is remembered as fired."""
    folder = cluster.directory / "failpoints"
    yield folder
    for path in folder.iterdir():
        path.unlink()
