"""A local cluster for a session of whole-job tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.local_cluster import Cluster, user_environment
from tests.integration.conftest import postgres_server

__all__ = ["cluster", "digits", "postgres_server"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local cluster with four slots."""
    directory = tmp_path_factory.mktemp("e2e")
    cluster = Cluster(directory, user_environment(directory))
    # Under the default policy a job whose measured speed does not grow with its workers, as on a machine with two
    # cores, is rightly given fewer; these tests are about what happens when it has them.
    with cluster.running("--slots", "4", "--policy", "fair"):
        yield cluster


@pytest.fixture(scope="session")
def digits(cluster: Cluster) -> Path:
    """The digits as RecordIO: ``train`` and ``validation`` below the directory."""
    directory = cluster.directory / "digits"
    cluster.cli("data", "generate", "digits", str(directory))
    return directory
