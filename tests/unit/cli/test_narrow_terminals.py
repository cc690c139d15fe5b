"""Tables on a terminal of 60 columns."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Sequence

import pytest

from elasticdl.cli.output import print_table

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
