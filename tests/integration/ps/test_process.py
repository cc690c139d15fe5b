"""``python -m elasticdl_ps`` as the launcher starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.tokens import issue
from elasticdl_worker.parameters import ParameterClient

pytestmark = pytest.mark.integration

SECRET, JOB = "z" * 64, "job-1"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    processes = []

    def start(**settings: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **settings}
        command = [sys.executable, "-m", "elasticdl_ps"]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def settings(directory: Path) -> dict[str, str]:
    return {
        "ELASTICDL_JOB_ID": JOB,
        "ELASTICDL_INDEX": "0",
        "ELASTICDL_NUM_PS": "1",
        "ELASTICDL_JOB_SECRET": SECRET,
        "ELASTICDL_LISTEN": f"unix:{directory}/ps.sock",
    }


async def test_the_process_serves_and_stops_on_sigterm(start: Start, tmp_path: Path) -> None:
    process = start(**settings(tmp_path))
    token = issue(SECRET, JOB, Role.WORKER, 0, 0)
    client = ParameterClient([f"unix:{tmp_path}/ps.sock"], lambda: token, "worker-0.0", patience_s=60)
    assert await client.ensure_model({}, [], [TableSpec("t", 4)], OptimizerSpec("adam"), UpdateMode())
    assert (await client.pull({"t": np.arange(3)})).rows["t"].shape == (3, 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    await client.close()


async def test_another_process_takes_the_place_of_a_killed_one(start: Start, tmp_path: Path) -> None:
    token = issue(SECRET, JOB, Role.WORKER, 0, 0)
    client = ParameterClient([f"unix:{tmp_path}/ps.sock"], lambda: token, "worker-0.0", patience_s=60)
    model: Any = ({}, [], [TableSpec("t", 4)], OptimizerSpec("sgd"), UpdateMode())
    first = start(**settings(tmp_path))
    assert await client.ensure_model(*model)
    rows = (await client.pull({"t": np.arange(3)})).rows["t"]
    first.kill()
    assert first.wait(30) == -signal.SIGKILL
    start(**settings(tmp_path))
    assert await client.ensure_model(*model)
    np.testing.assert_array_equal((await client.pull({"t": np.arange(3)})).rows["t"], rows)
    await client.close()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ELASTICDL_INDEX": "1"}, "PS 1 of 1"),
        ({"ELASTICDL_NUM_PS": "two"}, "ELASTICDL_NUM_PS"),
        ({"ELASTICDL_LISTEN": "0.0.0.0:0"}, "TLS"),
        ({"ELASTICDL_PS_KERNELS": "fortran"}, "fortran"),
    ],
)
def test_wrong_settings_are_refused_with_the_fix(start: Start, tmp_path: Path, change: Any, word: str) -> None:
    process = start(**{**settings(tmp_path), **change})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 64
    assert word in errors
    assert "fix:" in errors
