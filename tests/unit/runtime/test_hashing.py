"""Processes that import users' code go through sets of texts in one order."""

from __future__ import annotations

import pytest

from elasticdl_agent.processes.environment import common_environment
from tests.unit.runtime.test_waiting_threads import local_environment

pytestmark = pytest.mark.unit


def test_jobs_and_local_runs_hash_alike_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert common_environment()["PYTHONHASHSEED"] == "0"
    assert local_environment(monkeypatch)["PYTHONHASHSEED"] == "0"
