"""``elasticdl run``: from a script and its arguments to a job, and what is refused at that door."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from elasticdl.cli.main import build_app
from elasticdl.cli.script_command import flags_of_script
from elasticdl.model_check import check_model_module
from elasticdl_core.errors import ElasticDLError, InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import elasticdl.torch\n")
    return path


def test_help_shows_what_scripts_take_and_nothing_else() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    shown = {one.name for one in commands["run"].params if not one.hidden}
    assert {"minibatch_size", "num_epochs", "training_data", "max_workers", "local"} <= shown
    refused = {"model_def", "model_zoo", "evaluation_steps", "export_formats", "num_ps", "max_staleness", "xla"}
    assert refused <= {one.name for one in commands["run"].params} - shown
    assert refused - {"model_bundle"} <= {one.name for one in commands["train"].params if not one.hidden}


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_script_becomes_a_model_definition(script: Path, order: str) -> None:
    flags = ["--local", "--num_epochs", "2"]
    typed = [str(script), *flags] if order == "first" else [*flags, str(script)]
    found = flags_of_script([*typed, "--", "--lr", "0.1", "a b"])
    assert found == [
        f"--model_zoo={script.parent}",
        "--model_def=train.__main__",
        "--script_args=--lr 0.1 'a b'",
        *flags,
    ]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("", [], "there is no script to run"),
        ("missing.py", [], "there is no script"),
        ("train.py", ["other.py"], "several scripts"),
        ("train-it.py", [], "no name of a Python file"),
        ("train.py", ["--model_def=a.b"], "means nothing"),
    ],
)
def test_what_cannot_be_run_is_refused(script: Path, name: str, flags: list[str], message: str) -> None:
    (script.parent / "train-it.py").write_text("")
    typed = [str(script.parent / name)] if name else []
    with pytest.raises(InvalidInputError) as caught:
        flags_of_script([*typed, *flags])
    assert message in caught.value.message
    assert caught.value.fix


def test_a_script_is_examined_and_not_run(script: Path) -> None:
    spec = JobSpec.from_mapping({"model_zoo": str(script.parent), "model_def": "train.__main__"})
    assert check_model_module(script.parent, spec) == "torch"
    script.write_text("import torch\n")
    with pytest.raises(UserCodeError, match="takes no records"):
        check_model_module(script.parent, spec)
    script.write_text("import elasticdl.torch\nfor\n")
    with pytest.raises(ElasticDLError, match=r"train.py:2"):
        check_model_module(script.parent, spec)
