"""``elasticdl doctor``: what it looks at, what it says is wrong, and that each fault comes with a fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticdl_core.installation import install_command
from elasticdl_runtime.memory_group import MemoryGroups
from tests.fakes.api import FakeApi
from tests.unit.cli.conftest import Cli, Outcome

pytestmark = pytest.mark.unit


def findings(outcome: Outcome) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in json.loads(outcome.out)}


def test_a_machine_that_works_is_told_so(cli: Cli, api: FakeApi) -> None:
    outcome = cli("doctor", "--json")
    found = findings(outcome)
    assert outcome.code == 0, outcome.out
    for name in ("python", "elasticdl", "data directory", "postgres", "redis", "api", "token"):
        assert found[name]["verdict"] == "ok", found[name]
    assert all(one["fix"] for one in found.values() if one["verdict"] != "ok")
    shown = cli("doctor").out
    assert "python" in shown and "it is accepted" in shown


def test_without_a_cluster_that_is_a_warning(cli: Cli) -> None:
    outcome = cli("doctor", "--json")
    assert outcome.code == 0
    assert "elasticdl up" in findings(outcome)["api"]["fix"]


def test_an_api_that_does_not_answer_or_a_token_that_is_refused_is_a_failure(
    cli: Cli, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_TOKEN", "wrong")
    outcome = cli("doctor", "--json")
    assert (outcome.code, findings(outcome)["token"]["verdict"]) == (1, "failed")
    monkeypatch.setenv("ELASTICDL_API_URL", "http://127.0.0.1:1")
    outcome = cli("doctor", "-o", "json")
    assert (outcome.code, findings(outcome)["api"]["verdict"]) == (1, "failed")
    monkeypatch.setenv("ELASTICDL_API_URL", "nonsense")
    outcome = cli("doctor", "--json")
    assert (outcome.code, "is not the address of an API" in findings(outcome)["api"]["detail"]) == (1, True)


def test_what_is_missing_here_comes_with_what_brings_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("elasticdl.extras._found", lambda module: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("elasticdl.cli.doctor.LEAST_SHARED_MEMORY", 1 << 60)
    monkeypatch.setattr("elasticdl_runtime.memory_group.SLOT_BYTES", 1 << 60)
    found = findings(cli("doctor", "--json", "--data-dir", str(tmp_path / "file" / "x")))
    assert found["data directory"]["verdict"] == "failed"
    assert install_command("local") in found["packages: elasticdl up"]["fix"]
    assert install_command("worker", "tensorflow") in found["packages: train --local"]["fix"]
    assert "--database-url" in found["postgres"]["fix"] and "--redis-url" in found["redis"]["fix"]
    assert "--shm-size" in found["shared memory"]["fix"]
    assert "a slot takes about 0.5 GiB" in found["memory"]["fix"]
    assert found["memory"]["detail"].startswith(f"{MemoryGroups().room().limit / (1 << 30):.1f} GiB, ")
