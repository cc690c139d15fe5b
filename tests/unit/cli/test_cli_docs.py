"""The reference of the command line says what the command line does, and its examples are commands that parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticdl.cli.main import build_app
from elasticdl.cli.removed_flags import REMOVED

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text()
EXAMPLES = sorted(
    {line for line in re.findall(r"^ *(elasticdl .*)$", PAGE, flags=re.MULTILINE) if "[OPTIONS]" not in line}
)


@pytest.mark.parametrize("tool", ["gen_cli_docs.py", "gen_contract_docs.py"])
def test_the_pages_are_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, f"tools/{tool}", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_command_that_parses(example: str) -> None:
    words = shlex.split(example)[1:]
    command: Any = typer.main.get_command(build_app())
    with command.make_context("elasticdl", [words[0], "--help"], resilient_parsing=True) as root:
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        with command.make_context(command.name, words, parent=root) as context:
            assert context.params


def test_there_are_examples_of_every_group_and_gone_options_are_listed() -> None:
    for group in ("train", "evaluate", "predict", "jobs", "zoo"):
        assert any(example.startswith(f"elasticdl {group}") for example in EXAMPLES), group
    assert all(gone.reason in PAGE for gone in REMOVED.values())
