"""Whatever is typed, whatever the environment holds, a command ends with words and an exit code of the table."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticdl.cli.main import build_app
from tests.fakes import bad_inputs
from tests.fakes.api import TOKEN, FakeApi, make_job, sse
from tests.unit.cli.conftest import Cli, Outcome
from tests.unit.cli.test_scheduler_verbs import make_comparison, make_explanation, make_plan

pytestmark = pytest.mark.unit

CODES = {0, 1, 2, 3, 4, 5, 130}
STRANGE = (
    "",
    " ",
    "-",
    "--",
    "=",
    "..",
    "../../etc/passwd",
    "a/b?c=d#e",
    "%2e%2e%2f",
    "%",
    "ünïcödé",
    "\udcff\udcfe",
    "\x1b[2J\x1b]52;c;aGk=\x07",
    "‮gnp.exe",
    "a\nb",
    "💥" * 40,
    "x" * 5000,
    "0",
    "-1",
    "99999999999999999999999",
    "1e999",
    "nan",
    "{",
    '{"a": ' * 200,
    "[1,2",
    "a=b;a=c",
    "~nobody-here/x",
    "/dev/full",
    "/proc/self/mem",
    "s3://",
    "://",
    "file:///",
    "\\",
    "$(true)",
    "[red]x[/nothing]",
)
RUNS_ON = {"up", "top"}
"""Commands that go on until they are stopped, or start what does; they are tried by themselves."""


def commands() -> Iterator[tuple[list[str], Any]]:
    """Every command with its words."""

    def walk(group: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
        for verb, command in group.commands.items():
            if getattr(command, "commands", None):
                yield from walk(command, [*words, verb])
            elif verb not in RUNS_ON:
                yield [*words, verb], command

    yield from walk(typer.main.get_command(build_app()), [])


def calls(values: Any) -> Iterator[list[str]]:
    """Every command, with each of its parameters strange once while the others are plain."""
    for words, command in commands():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        plain = {param.name: "a-1" for param in arguments if param.required}
        for param in command.params:
            value = next(values)
            if param.param_type_name == "argument":
                yield [*words, "--", *({**plain, param.name: value}).values()]
            elif param.name not in {"help", "watch", "wait"}:
                named = [param.opts[0]] if getattr(param, "is_flag", False) else [f"{param.opts[0]}={value}"]
                yield [*words, *named, *plain.values()]


@pytest.fixture
def whole_api(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """An API with an answer to everything; and a command line that is built once, not for every call."""
    api.streams["a-1"] = [[sse("end", {})]]
    api.explanations["a-1"], api.plans = make_explanation(job_id="a-1"), [make_plan()]
    api.comparison = make_comparison()
    api.prepared["series"] = {"by": "version", "from": 0, "to": 0, "resolution_s": 1, "series": []}
    monkeypatch.setattr("elasticdl.cli.tensorboard.PACKAGE", "no_such_package")  # it would run until it is stopped
    command = typer.main.get_command(build_app())
    monkeypatch.setattr("elasticdl.cli.main.build_app", lambda: command)
    return api


def check(outcome: Outcome, args: object) -> None:
    bad_inputs.count("the command line")
    said = outcome.out + outcome.err
    assert outcome.code in CODES, (args, outcome)
    assert "Traceback (most recent call last)" not in said, (args, said)
    assert "internal error" not in said, (args, said)
    assert not set("\x1b\x07\x9b‮") & set(said), (args, said)


def test_no_argument_brings_a_command_down(whole_api: FakeApi, cli: Cli, zoo: Path) -> None:
    tried = 0
    for args in calls(itertools.cycle(STRANGE)):
        whole_api.jobs.setdefault("a-1", make_job("a-1", state="SUCCEEDED"))
        check(cli(*args), args)
        tried += 1
    assert tried > 240


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_argument_brings_a_command_down_in_all_combinations(whole_api: FakeApi, cli: Cli, zoo: Path) -> None:
    for value in STRANGE:
        for args in calls(itertools.repeat(value)):
            whole_api.jobs.setdefault("a-1", make_job("a-1", state="SUCCEEDED"))
            check(cli(*args), args)


ADDRESSES = ("http://[::1", "http://127.0.0.1:99999", "http://a b", "ftp://x", "http://", "http://\udcff", "x", "//x")
ADDRESSES += (
    "http://ü..x",
    "http://127.0.0.1:1",
    "http://127.0.0.1:0",
    "https://me:secret@127.0.0.1:1/x?y",
    "http://\n",
)
ASKING = (["jobs", "list"], ["jobs", "get", "a-1"], ["top", "--once"], ["reserve"], ["explain", "a-1"])


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_strange_address_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr("elasticdl.client.retry.RetryPolicy.pause", lambda *_: None)
    monkeypatch.setenv("ELASTICDL_API_URL", address)
    monkeypatch.setenv("ELASTICDL_TOKEN", TOKEN)
    outcome = cli("jobs", "list")
    check(outcome, address)
    assert outcome.code in {2, 4}
    assert "fix:" in outcome.err


@pytest.mark.parametrize("token", ["hé", "\udcff", "a b", "a\nb", "\x1b[0m", "‮"])
@pytest.mark.parametrize("args", ASKING)
def test_a_strange_token_is_told_and_not_shown(
    api: FakeApi, cli: Cli, monkeypatch: pytest.MonkeyPatch, token: str, args: list[str]
) -> None:
    monkeypatch.setenv("ELASTICDL_TOKEN", token)
    outcome = cli(*args)
    check(outcome, token)
    assert outcome.code == 2
    assert "characters that no token has" in outcome.err
    assert "hé" not in outcome.err
    assert api.seen == []


@pytest.mark.parametrize("job_id", ["..", "../../cluster", "a/b", "\udcff", "é", "a?b", "", ".", "%2e%2e"])
def test_an_id_that_no_job_can_have_never_reaches_the_api(api: FakeApi, cli: Cli, job_id: str) -> None:
    for words in (["jobs", "cancel"], ["jobs", "delete", "--yes"], ["explain"], ["jobs", "artifacts"]):
        outcome = cli(*words, "--", job_id)
        check(outcome, job_id)
        assert outcome.code in {1, 2}
    assert [seen for seen in api.seen if seen.path != "/jobs"] == []


def test_a_home_or_a_data_directory_that_cannot_be_used_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for place in ("~nobody-here/x", str(tmp_path / "file"), "/proc/1/x", "\udcff", "/dev/null/x"):
        monkeypatch.setenv("ELASTICDL_DATA_DIR", place)
        for args in (["status"], ["jobs", "list"], ["down"], ["up", "--port=99999"]):
            outcome = cli(*args)
            check(outcome, (place, args))


def fresh(*args: str, stdout: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTICDL_", "LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "elasticdl", *args],
        env={**kept, "PYTHONUTF8": "0", **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_an_output_without_space_is_a_failure_in_words() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        for args in (["version"], ["--help"], ["train", "--help"]):
            done = fresh(*args, stdout=full)
            assert done.returncode == 1, args
            assert b"Traceback" not in done.stderr
            assert b"No space left" in done.stderr


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = fresh("train", "--help", stdout=pipe)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_locale_without_the_letters_shows_them_as_escapes(api: FakeApi) -> None:
    api.jobs["a-1"] = make_job("a-1", reason="größer als 2 €", state="FAILED")
    asked = {"ELASTICDL_API_URL": api.url, "ELASTICDL_TOKEN": TOKEN, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for args in (["jobs", "list"], ["jobs", "get", "a-1"], ["jobs", "get", "a-1", "--json"]):
        done = fresh(*args, **asked)
        assert done.returncode == 0, done.stderr
        assert b"gr\\xf6\\xdfer" in done.stdout or b"gr\xc3\xb6" in done.stdout or b"gr\\u00f6" in done.stdout
