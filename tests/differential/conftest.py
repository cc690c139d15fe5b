from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.driver import Bench, clean
from tests.fakes.redis_server import RedisServer


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """What rows run on; TensorFlow gets the threads that workers ask for, so that asking changes nothing."""
    from elasticdl_worker.trainers.tensorflow import framework

    try:
        framework.configure(max(1, len(os.sched_getaffinity(0)) // 2))
    except RuntimeError as error:
        pytest.fail(f"{error}: run tests/differential in a process of its own, as ./dev test does")
    folder = Path(tempfile.mkdtemp(prefix="edl-d-", dir="/tmp"))
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
