"""`./dev steady` names what failed in any run, with the seed that gives the same order again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.architecture.test_mutants import load

pytestmark = pytest.mark.unit
steady = load("steady")
DEV = """import os
print("FAILED tests/a.py::test_b[x - y] - assert 0 - 1" if os.environ["TESTS_ORDER"] == "7" else "1 passed")
raise SystemExit(int(os.environ["TESTS_ORDER"] == "7"))
"""


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    (folder / "tools").mkdir(exist_ok=True)
    (folder / "tools" / "dev.py").write_text(DEV)
    monkeypatch.setattr(steady, "ROOT", folder)
    monkeypatch.setattr(steady.tempfile, "mkdtemp", lambda prefix: str(folder))
    handler = steady.signal.getsignal(steady.signal.SIGTERM)
    try:
        return steady.main(arguments)
    finally:
        steady.signal.signal(steady.signal.SIGTERM, handler)


def test_a_test_that_failed_once_is_named_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steady.secrets, "randbelow", lambda _: 8)
    assert run(monkeypatch, tmp_path, "--times", "2", "--load", "1", "--seed", "7") == 1
    said = capsys.readouterr().out
    assert f"tests/a.py::test_b[x - y]: 1 of 2\n  seed 7, 0 busy, {tmp_path}/0.log" in said
    assert f"run 2: seed 8, 1 busy: 0 failed; {tmp_path}/1.log" in said


def test_runs_without_a_failure_end_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, "--times", "1", "--seed", "9") == 0
