"""``jobs stacks``, ``jobs trace`` and ``audit JOB``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.api import FakeApi, make_audit, make_job
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


@pytest.fixture
def job(api: FakeApi) -> FakeApi:
    api.jobs["a-1"] = make_job("a-1")
    return api


def test_stacks_are_printed_the_innermost_call_first(job: FakeApi, cli: Cli) -> None:
    assert cli("jobs", "stacks", "a-1").out.splitlines() == [
        "master-0.1: stopped (SIGSTOP) (stopped)",
        "  it is stopped, so it cannot say where it is",
        "worker-2.0: reading data (sleeping)",
        "  training: reading data",
        "    feed (/zoo/\\x1b[2Jmodel.py:3)",
    ]
    assert cli("jobs", "stacks", "a-1", "--brief", "--role=worker").out == "worker-2.0: reading data (sleeping)\n"
    assert cli("jobs", "stacks", "a-1", "--index=0", "--brief").out.startswith("master-0.1")
    assert json.loads(cli("jobs", "stacks", "a-1", "--json").out) == job.prepared["stacks"]


def test_an_audit_is_printed_and_its_verdict_is_the_exit_code(job: FakeApi, cli: Cli) -> None:
    shown = cli("audit", "a-1")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "held: every record that is marked as done was processed")
    for part in ("10 records of the plan were not done", "1 to 1,200", "5 records processed again"):
        assert part in shown.out
    job.prepared["audit"] = make_audit(verdict="broken")
    assert cli("audit", "a-1").code == 1
    assert json.loads(cli("audit", "a-1", "--json").out) == job.prepared["audit"]
    assert "leave out --actor" in cli("audit", "a-1", "--actor=ada").err


def test_a_trace_is_written_to_a_file(job: FakeApi, cli: Cli, tmp_path: Path) -> None:
    shown = cli("jobs", "trace", "a-1", "--seconds", "2", "--output", str(tmp_path / "t.json"))
    assert (shown.code, "1 events" in shown.out) == (0, True)
    assert json.loads((tmp_path / "t.json").read_text()) == job.prepared["trace"]
    assert job.requests("POST", "/jobs/a-1/trace")[0].json() == {"seconds": 2.0}
    refused = cli("jobs", "trace", "a-1", "--output", str(tmp_path / "nowhere" / "t.json"))
    assert (refused.code, "cannot write" in refused.err) == (2, True)
