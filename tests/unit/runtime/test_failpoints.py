"""Failpoints: off unless armed, once, in one place each, and never a job's to set."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints, process_environment
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from elasticdl_runtime import failpoints
from elasticdl_runtime.failpoints import FAILPOINTS, VARIABLE, arm, failpoint

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]
NAME = "worker.after_step"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(failpoints, "_passed", Counter())
    failpoints._folder.cache_clear()
    yield tmp_path
    failpoints._folder.cache_clear()


def test_each_is_in_one_place_and_nothing_else_is() -> None:
    placed = Counter(
        name
        for folder in ("services", "shared", "sdk")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'failpoint\("([^"]+)"\)', path.read_text())
    )
    assert placed == Counter(dict.fromkeys(FAILPOINTS, 1))
    assert len(placed) >= 35
    assert {name.partition(".")[0] for name in placed} == {"master", "ps", "worker", "agent", "api", "scheduler"}


def test_it_is_off_unless_armed(folder: Path) -> None:
    failpoint(NAME)
    arm(folder, "worker.after_lease", "raise")
    failpoint(NAME)
    assert not list(folder.glob("*.fired"))


def test_it_is_off_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    failpoints._folder.cache_clear()
    fired = arm(tmp_path, NAME, "raise")
    failpoint(NAME)
    assert not fired.exists()
    failpoints._folder.cache_clear()


def test_it_fires_once_at_the_hit_that_was_asked_for(folder: Path) -> None:
    fired = arm(folder, NAME, "raise @3")
    failpoint(NAME)
    failpoint(NAME)
    assert not fired.exists()
    with pytest.raises(UnavailableError, match=NAME):
        failpoint(NAME)
    assert fired.exists()
    failpoint(NAME)


@pytest.mark.parametrize(("action", "code"), [("kill", -signal.SIGKILL), ("sleep 0.01", 0)])
def test_it_acts_on_the_process_that_comes_by(folder: Path, action: str, code: int) -> None:
    fired = arm(folder, NAME, action)
    program = f"from elasticdl_runtime.failpoints import failpoint; failpoint({NAME!r})"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ}, timeout=60, check=False)
    assert done.returncode == code
    assert fired.exists()


def test_it_stops_a_process(folder: Path) -> None:
    arm(folder, NAME, "stop")
    program = f"from elasticdl_runtime.failpoints import failpoint; failpoint({NAME!r})"
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ})
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait(timeout=60)


@pytest.mark.parametrize(("name", "action"), [("worker.nowhere", "kill"), (NAME, "explode"), (NAME, "sleep long")])
def test_what_nobody_would_act_on_is_refused(tmp_path: Path, name: str, action: str) -> None:
    with pytest.raises(InvalidInputError):
        arm(tmp_path, name, action)


def test_no_job_can_set_them(tmp_path: Path) -> None:
    spec = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/d", "envs": {VARIABLE: str(tmp_path)}}
    with pytest.raises(InvalidInputError, match="reserved"):
        JobSpec.from_mapping(spec)
    process = ProcessSpec(ProcessId("job-1", Role.WORKER, 0, 0), {VARIABLE: str(tmp_path), "MINE": "1"})
    directories, endpoints = AgentDirectories(tmp_path, tmp_path), Endpoints("0" * 64, "", "")
    assert VARIABLE not in process_environment(process, directories, endpoints, {})
    assert process_environment(process, directories, endpoints, {VARIABLE: "/own"})[VARIABLE] == "/own"
