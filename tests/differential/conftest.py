from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.main import warm_up
from tests.differential.driver import Bench, clean, configure
from tests.differential.legacy import LegacyBench
from tests.differential.whole_cluster import WholeClusterBench
from tests.e2e.local_cluster import Cluster, user_environment
from tests.fakes.redis_server import RedisServer


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """What rows run on."""
    try:
        configure()
    except RuntimeError as error:
        pytest.fail(f"{error}: run tests/differential in a process of its own, as ./dev test does")
    folder = Path(tempfile.mkdtemp(prefix="edl-d-", dir="/tmp"))
    # Master, servers and workers share one event loop: where it stands still while kernels are compiled, as in a
    # fresh checkout, leases are lost, and their records are trained twice.
    warm_up(load_kernels())
    server = RedisServer()
    server.start()
    made = Bench(folder, server)
    try:
        yield made
    finally:
        server.close()
        clean(folder)
        terminal = request.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"\ndifferential suite: {made.rows} rows, {made.runs} training runs")


@pytest.fixture(scope="session")
def legacy() -> Iterator[LegacyBench]:
    """What rows with Keras 2 run on."""
    made = LegacyBench()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeClusterBench]:
    """A cluster of processes that rows are submitted to."""
    directory = tmp_path_factory.mktemp("whole-cluster")
    with Cluster(directory, user_environment(directory)).running("--slots", "2", "--policy", "fair") as cluster:
        yield WholeClusterBench(directory, cluster)
