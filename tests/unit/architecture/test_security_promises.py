"""Each promise of docs/security.md names a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_HEADER = "| promise | where | test |"


def promises(text: str) -> list[str]:
    """The rows of all tables of promises."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        inside = line == _HEADER or (inside and line.startswith("|"))
        if inside and line != _HEADER and not line.startswith("|---"):
            found.append(line)
    return found


def missing(rows: list[str], root: Path = ROOT) -> list[str]:
    """Rows that name no test, and tests that are not there."""
    found = [row for row in rows if not _NAMED.search(row)]
    for row in rows:
        for path, name in _NAMED.findall(row):
            file = root / path
            tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if name not in functions:
                found.append(f"{path}::{name}")
    return found


def test_each_promise_names_a_test_that_is_there() -> None:
    rows = promises(DOCUMENT.read_text())
    assert len(rows) > 5
    assert missing(rows) == []


def test_a_promise_without_a_test_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("def test_b(): ...\n")
    rows = promises(
        f"{_HEADER}\n|---|---|---|\n| x | y | `tests/test_a.py::test_b` |\n| x | y | later |\n\n| a | b |"
    )
    assert missing(rows, tmp_path) == ["| x | y | later |"]
    assert missing(["| x | y | `tests/test_a.py::test_c` |"], tmp_path) == ["tests/test_a.py::test_c"]
