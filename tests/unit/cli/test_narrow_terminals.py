"""Tables on a terminal of 60 columns."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from elasticdl.cli.output import print_table
from tests.fakes.api import FakeApi, make_job
from tests.unit.cli.test_formats import CALLS, whole_api  # noqa: F401 - a fixture
from tests.unit.cli.test_scheduler_verbs import make_explanation

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]
ID = "churn-of-the-northern-shops-a1b2c3"


def shown(columns: Sequence[str], row: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a table on a terminal of 60 columns."""
    outer, inner = pty.openpty()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch, os.fdopen(inner, "w") as output, os.fdopen(outer, "rb", 0) as screen:
        patch.setattr(sys, "stdout", output)
        print_table(columns, [row], empty="")
        output.write("end\n")
        output.flush()
        found = b""
        while not found.endswith(b"end\r\n"):
            found += screen.read(1 << 16)
    return re.sub(r"\x1b\[[0-9;]*m", "", found.decode()).split("\r\n")[:-2]


@pytest.mark.parametrize(
    "columns", [("ID", "STATE", "PROGRESS", "WORKERS", "REASON"), ("", "ID", "A", "B", "REASON")]
)
def test_names_are_never_broken(columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    row = ["x"] * len(columns)
    row[columns.index("ID")], row[-1] = ID, "waiting for a slot that three more important jobs have"
    assert [line for line in shown(columns, row, monkeypatch) if ID in line]


def test_reasons_are_folded_beside_names_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("a-1", "waiting for a slot that three more important jobs have at present")
    lines = shown(("ID", "REASON"), row, monkeypatch)
    assert len(lines) == 3
    assert max(len(line.rstrip()) for line in lines) <= 60


def on_terminal(*args: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command as a process on a terminal of 60 columns."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 60))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    command = (sys.executable, "-m", "elasticdl", *args)
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    found = bytearray()
    with os.fdopen(outer, "rb", 0) as screen:
        try:
            while piece := screen.read(1 << 16):
                found += piece
        except OSError:
            pass  # Linux says the end of a terminal so
    return process.wait(60), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode()).split("\r\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_command_that_shows_something_does_so_on_60_columns(whole_api: FakeApi) -> None:  # noqa: F811
    """Names of jobs are whole, wherever they stand, and tables are no wider than what cannot be folded."""
    for kept in (whole_api.jobs, whole_api.events, whole_api.streams, whole_api.explanations):
        kept[ID] = kept.pop("a-1")
    whole_api.explanations[ID] = make_explanation(job_id=ID)
    wrong = {}
    for words, given in sorted(CALLS.items()):
        whole_api.jobs[ID] = make_job(ID, state="SUCCEEDED", reason="it ended — größer than what a line has room for")
        code, lines = on_terminal(*words.split(), *(ID if one == "a-1" else one for one in given))
        broken = [line for line in lines if ID[:12] in line and ID not in line]
        if code not in ((0, 1) if words == "doctor" else (0,)) or broken or "Traceback" in "".join(lines):
            wrong[words] = (code, broken or lines[-5:])
    assert not wrong, "\n".join(f"{words}: {found}" for words, found in wrong.items())
