"""Every command that shows something prints it as a table, as JSON and as YAML, by the same options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml

from elasticdl.cli.formats import OutputFormat
from elasticdl.cli.main import build_app
from tests.fakes.api import FakeApi, make_job, sse
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_scheduler_verbs import make_comparison, make_explanation, make_plan

pytestmark = pytest.mark.unit

SHOW_NOTHING = {
    "backup": "writes a file",
    "restore": "replaces data",
    "up": "runs until it is stopped",
    "down": "ends a cluster",
    "jobs logs": "prints what others wrote, as it is",
    "jobs delete": "removes",
    "sql": "trains, evaluates, predicts: each statement tells what it did in its own lines",
    "jobs trace": "writes a file",
    "tensorboard": "writes files, and runs until it is stopped",
    "context add": "keeps",
    "context use": "keeps",
    "context remove": "removes",
    "tokens revoke": "removes",
    "namespaces create": "makes",
    "namespaces set": "changes",
    "namespaces delete": "removes",
    "zoo init": "writes files",
    "data generate digits": "writes files",
    "data generate mnist": "writes files",
    "data generate iris": "writes files",
    "data generate textures": "writes files",
    "data generate clicks": "writes files",
}
"""Commands that change something and tell it in a line; each that is not among them shows something."""
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its words."""

    def walk(group: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
        for verb, command in group.commands.items():
            if getattr(command, "commands", None):
                yield from walk(command, [*words, verb])
            else:
                yield " ".join([*words, verb]), command

    yield from walk(typer.main.get_command(build_app()), [])


COMMANDS = dict(commands())
SHOWING = sorted(COMMANDS.keys() - SHOW_NOTHING.keys())


def test_each_command_shows_or_is_known_to_change() -> None:
    assert SHOW_NOTHING.keys() <= COMMANDS.keys()


@pytest.mark.parametrize("words", SHOWING)
def test_each_command_that_shows_something_has_the_formats(words: str) -> None:
    named = {name: param for param in COMMANDS[words].params for name in param.opts}
    assert {"-o", "--json"} <= named.keys()
    annotation = inspect.signature(COMMANDS[words].callback, eval_str=True).parameters[named["-o"].name].annotation
    assert OutputFormat in get_args(get_args(annotation)[0])
    place = words in {"train", "evaluate", "predict", "run", "zoo build"}
    assert ("--format" if place else "--output") in named["-o"].opts


CALLS: dict[str, tuple[str, ...]] = {
    "context list": (),
    "data convert": ("rows.csv", "rows.tfrecord", "--to", "tfrecord", "--force"),
    "data inspect": ("rows.csv",),
    "data validate": ("rows.csv",),
    "doctor": (),
    "evaluate": (
        *("--model_zoo=zoo", "--model_def=digits.forward", "--validation_data=data"),
        *("--checkpoint_dir_for_init=/c", "--dry-run"),
    ),
    "explain": ("a-1",),
    "jobs artifacts": ("a-1",),
    "jobs cancel": ("a-1",),
    "jobs events": ("a-1",),
    "jobs get": ("a-1",),
    "jobs label": ("a-1", "team=ads"),
    "jobs list": (),
    "jobs metrics": ("a-1",),
    "jobs resume": ("a-1",),
    "jobs scale": ("a-1", "--max-workers", "2"),
    "jobs stacks": ("a-1",),
    "jobs suspend": ("a-1",),
    "jobs wait": ("a-1",),
    "predict": (
        *("--model_zoo=zoo", "--model_def=digits.forward", "--prediction_data=data"),
        *("--checkpoint_dir_for_init=/c", "--dry-run"),
    ),
    "reserve": (),
    "run": ("zoo/loop.py", "--dry-run"),
    "simulate": ("--workload", str(EXAMPLES / "scheduling/jobs.csv"), "--nodes", "1x2", "--limit", "2"),
    "status": (),
    "top": ("--once",),
    "train": ("--model_zoo=zoo", "--model_def=digits.forward", "--training_data=data", "--dry-run"),
    "version": (),
    "what-if": ("--slots", "+1"),
    "zoo build": ("zoo",),
    "zoo push": ("zoo",),
}


@pytest.fixture
def whole_api(api: FakeApi, tmp_path: Path, zoo: Path) -> FakeApi:
    """An API, and files, with something to show for every command."""
    api.jobs["a-1"] = make_job("a-1", state="SUCCEEDED")
    api.events["a-1"] = [{"id": 7, "kind": "state", "message": "it runs", "detail": {}, "at": "2026-01-02T03:04:05Z"}]
    api.streams["a-1"] = [[sse("end", {})]]
    api.explanations["a-1"], api.plans = make_explanation(job_id="a-1"), [make_plan()]
    api.comparison = make_comparison()
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    (zoo / "loop.py").write_text("import elasticdl.torch\n")
    return api


OF_A_REAL_API = {"audit", "namespaces list", "tokens create", "tokens list", "whoami"}
"""These are asked of a real API, in ``tests/integration/cli/test_access_commands.py``."""


def test_each_command_that_shows_something_is_tried() -> None:
    assert CALLS.keys() | OF_A_REAL_API == set(SHOWING)


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("words", sorted(CALLS))
def test_all_formats_tell_the_same(whole_api: FakeApi, cli: Cli, words: str) -> None:
    args = (*words.split(), *CALLS[words])
    shown = {name: cli(*args, "-o", name) for name in OutputFormat if name is not OutputFormat.CSV}
    assert cli(*args, "-o", "csv").code == (0 if words == "jobs metrics" else 2)
    expected = {"doctor": {0, 1}}.get(words, {0})
    assert {outcome.code for outcome in shown.values()} <= expected, shown
    assert all(outcome.out for outcome in shown.values()), shown
    told = json.loads(shown[OutputFormat.JSON].out)
    again = list(yaml.safe_load_all(shown[OutputFormat.YAML].out))
    if words == "doctor":  # its clock goes on
        told, again = [one["name"] for one in told], [[one["name"] for one in again[0]]]
    assert again == [told]
    assert cli(*args, "--json", "-o", "yaml").code == 2


def test_more_of_it_is_wide(whole_api: FakeApi, cli: Cli) -> None:
    whole_api.events["a-1"][0]["detail"] = {"workers": 2}
    for words, more in ((("jobs", "events", "a-1"), '{"workers": 2}'), (("top", "--once"), "NAMESPACE")):
        assert more not in cli(*words).out
        assert more in cli(*words, "-o", "wide").out


@pytest.mark.parametrize("given", [("-o", "yaml"), ("-oyaml",), ("-o=yaml",), ("--format=yaml",)])
def test_jobs_take_the_short_option_however_it_is_written(
    whole_api: FakeApi, cli: Cli, given: tuple[str, ...]
) -> None:
    outcome = cli("train", *CALLS["train"], *given)
    assert outcome.code == 0 and yaml.safe_load(outcome.out)["spec"]["model_def"] == "digits.forward"


def test_a_followed_job_is_printed_as_yaml_when_it_ends(whole_api: FakeApi, cli: Cli) -> None:
    outcome = cli("jobs", "get", "a-1", "--watch", "-o", "yaml")
    assert outcome.code == 0 and yaml.safe_load(outcome.out)["id"] == "a-1"
