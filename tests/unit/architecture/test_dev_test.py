"""`./dev test` runs every suite once whatever fails before; its exit code is the worst of a round."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
PYTEST = """#!/bin/sh
echo "$*" >> {folder}/calls
for name in e2e unit differential browser; do
    case "$*" in *--ignore=tests/unit*) suite=e2e ;; *tests/$name*) suite=$name ;; esac
done
exit $(cat {folder}/$suite)
"""
SUITES = ("e2e", "unit", "differential", "browser")


def run_with(dev: ModuleType, folder: Path, codes: list[int]) -> tuple[int, list[list[str]]]:
    """The exit code, and the arguments of each pytest, where those of the suites end with these codes."""
    for name, code in zip(SUITES, codes, strict=True):
        (folder / name).write_text(str(code))
    program = folder / "python"
    program.write_text(PYTEST.format(folder=folder))
    program.chmod(0o755)
    dev.BIN = folder
    code = dev.pytest_all("-m", "not slow")
    return code, [line.split() for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize(
    ("codes", "result", "runs"),
    [
        ([0, 0, 0, 0], 0, 4),
        ([1, 0, 0, 0], 1, 4),
        ([0, 3, 0, 1], 3, 4),
        ([0, 0, 0, 4], 4, 4),
        ([5, 0, 0, 0], 0, 4),  # no tests there
        ([0, 0, 2, 0], 2, 3),  # somebody pressed Ctrl-C
    ],
)
def test_what_the_rounds_end_with_counts(
    dev: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], codes: list[int], result: int, runs: int
) -> None:
    code, calls = run_with(dev, tmp_path, codes)
    assert (code, len(calls)) == (result, runs)
    assert ("dev: failed: " in capfd.readouterr().err) is (result != 0)


def test_each_suite_is_in_one_round(dev: ModuleType, tmp_path: Path) -> None:
    _, calls = run_with(dev, tmp_path, [0, 0, 0, 0])
    suites = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))}
    named = [word for call in calls for word in call if word in suites]
    ignored = {word.removeprefix("--ignore=") for call in calls for word in call if word.startswith("--ignore=")}
    assert sorted(named) == sorted(ignored)
    assert len(named) == len(set(named)) and suites - set(named) == {"tests/e2e", "tests/chaos"}
    assert all(call[:4] == ["-m", "pytest", "-m", "not"] for call in calls)


@pytest.mark.parametrize(
    ("given", "names"),
    [([], False), (["-q", "-k", "api"], False), (["tests/containers/test_compose.py::test_x", "-q"], True)],
)
@pytest.mark.parametrize(
    ("verb", "suites"),
    [
        ("containers", ["tests/containers"]),
        ("kubernetes", ["tests/contract/kubernetes", "tests/contract/launcher", "tests/e2e/test_pods.py"]),
    ],
)
def test_options_for_a_suite_that_needs_a_machine_do_not_make_it_all_suites(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, verb: str, suites: list[str], given: list[str], names: bool
) -> None:
    called: list[list[str]] = []
    monkeypatch.setenv("ELASTICDL_TEST_KUBECONFIG", "config")
    monkeypatch.setattr(dev.shutil, "which", lambda _: "docker")
    monkeypatch.setattr(dev, "quiet", lambda *_, **__: 0)
    monkeypatch.setattr(dev, "ensure", lambda _: None)
    monkeypatch.setattr(dev, "run", lambda command, **_: called.append(command) or 0)
    assert dev.main([verb, *given]) == 0
    ((*_, module, pytest_itself), chosen) = called[0][:3], [one for one in called[0][3:] if one not in ("-k", "real")]
    assert (module, pytest_itself) == ("-m", "pytest")
    assert chosen == [one for one in ([] if names else suites) + given if one != "-k"]


def test_each_verb_shows_help_and_does_nothing_else(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(dev, "ensure", lambda _: None)
    monkeypatch.setattr(dev.subprocess, "run", lambda command, **_: called.append(command))
    monkeypatch.setattr(dev, "run", lambda command, **_: called.append(command) or 0)
    monkeypatch.setattr(dev, "ensure_chromium", lambda: called.append(["chromium"]))
    for verb in sorted(set(dev.VERBS) - {"protos"}):
        called.clear()
        assert dev.main([verb, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"./dev {verb} ") or all("--help" in one for one in called), verb
        assert bool(called) == (verb in dev._WITH_OWN_HELP), verb


@pytest.mark.parametrize("verb", ["lock", "setup"])
def test_arguments_that_a_verb_does_not_take_are_refused(
    dev: ModuleType, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert dev.main([verb, "now"]) == 2
    assert f"{verb} takes no arguments, and got now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "ran"),
    [(["ruff"], 2), (["ruff format"], 1), (["mypy", "names"], 2), ([], 9), (["nothing", "mypy"], None)],
)
def test_checks_are_chosen_by_name(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, given: list[str], ran: int | None
) -> None:
    called: list[object] = []
    monkeypatch.setattr(dev, "ensure", lambda _: None)
    for step in ("run", "protos", "client", "docs"):
        monkeypatch.setattr(dev, step, lambda *given: called.append(given) or 0)
    if ran is None:
        with pytest.raises(SystemExit, match=r"there is no check 'nothing'(.|\n)*name some of: ruff check, "):
            dev.main(["check", *given])
        assert not called
        return
    assert dev.main(["check", *given]) == 0
    assert len(called) == ran
