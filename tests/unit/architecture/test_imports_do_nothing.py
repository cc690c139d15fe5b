"""Importing a module sets nothing in the process' environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "putenv", "unsetenv"}


def at_import(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but the bodies of functions."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def environment_changes(source: str) -> list[int]:
    """Lines at which importing a module of this source changes the environment."""
    found = []
    for node in at_import(ast.parse(source).body):
        match node:
            case ast.Subscript(value=changed, ctx=ast.Store() | ast.Del()) if "environ" in ast.unparse(changed):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=changed, attr=name)) if name in CHANGES:
                if ast.unparse(changed) in ("os", "os.environ", "environ"):
                    found.append(node.lineno)
            case ast.AugAssign(target=changed) if "environ" in ast.unparse(changed):
                found.append(node.lineno)
    return sorted(found)


@pytest.mark.parametrize("folder", ["sdk", "services", "shared"])
def test_no_module_changes_the_environment_when_it_is_imported(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := environment_changes(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["os.environ['A'] = 'b'", "del os.environ['A']", "os.environ.setdefault('A', 'b')", "os.putenv('A', 'b')"],
)
def test_a_change_is_found_at_the_top_and_left_to_functions(line: str) -> None:
    assert environment_changes(f"import os\nif True:\n    {line}\n") == [3]
    assert environment_changes(f"import os\ndef main():\n    {line}\n") == []
