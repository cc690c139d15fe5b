"""A cluster whose jobs get hurt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.local_cluster import Cluster, user_environment


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local cluster with three slots, for all faults that leave it up."""
    directory = tmp_path_factory.mktemp("chaos")
    cluster = Cluster(directory, user_environment(directory))
    cluster.cli("up", "--port", "0", "--slots", "3", "--policy", "fair", "--detach", timeout=240)
    try:
        yield cluster
    finally:
        cluster.cli("down", timeout=120)
