"""Threads of pools that compute sleep soon while they wait, unless somebody chose otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cli import local
from elasticdl_agent.processes.environment import common_environment
from elasticdl_runtime.waiting_threads import TURNS

pytestmark = pytest.mark.unit

JOB = {"model_zoo": "/zoo", "model_def": "m.f", "framework": "tensorflow", "training_data": "/data"}


class Started(Exception):
    """Says with which environment a process would have been started."""


def local_environment(monkeypatch: pytest.MonkeyPatch, **envs: str) -> dict[str, str]:
    def start(command: list[str], environment: Any) -> None:
        raise Started(environment)

    monkeypatch.setattr(local, "_process", start)
    with pytest.raises(Started) as started:
        local.run_local({**JOB, "envs": envs})
    found: dict[str, str] = started.value.args[0]
    return found


def test_jobs_and_local_runs_wait_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert common_environment({})["GOMP_SPINCOUNT"] == TURNS
    assert local_environment(monkeypatch)["GOMP_SPINCOUNT"] == TURNS


def test_who_chose_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert "GOMP_SPINCOUNT" not in common_environment({"OMP_WAIT_POLICY": "ACTIVE"})
    assert common_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in local_environment(monkeypatch, OMP_WAIT_POLICY="ACTIVE")
