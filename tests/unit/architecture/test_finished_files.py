"""Files get their final names in one place, which knows what a power cut takes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
HOME = "durable.py"
MOVES = {
    "tree_removal.py": "moves what it removes",
    "housekeeping.py": "moves what it removes, and back what turns out to be new",
    "failpoints.py": "arms and disarms tests' failpoints",
    "shim.py": "rotates logs, and imports nothing of ours",
    "traces.py": "rotates traces",
    "redis.py": "puts aside what cannot be read",
    "output_files.py": "gives a user's files names that can be listed",
    "epochs.py": "replaces accounts, no files",
}


def moves(source: str) -> list[int]:
    """Lines that move a file: ``os.replace``, ``Path.rename`` and their like, with what looks like a path."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="rename" | "renames" | "link_to" | "hardlink_to")):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=ast.Name("os"), attr="replace" | "link")):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=ast.Name("shutil"), attr="move")):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_], keywords=[]):  # str.replace has two
                found.append(node.lineno)
    return found


def test_nobody_else_finishes_files_by_hand() -> None:
    files = [path for folder in ("sdk", "services", "shared") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path.name: str(path.relative_to(ROOT)) for path in files if moves(path.read_text())}
    assert found.keys() == {HOME, *MOVES}, f"use elasticdl_runtime.durable: {found}"


@pytest.mark.parametrize(
    "line",
    ["fresh.replace(path)", "fresh.rename(a / 'b')", "os.replace(a, b)", "os.rename(a, b)", "shutil.move(a, b)"],
)
def test_a_move_is_found(line: str) -> None:
    assert moves(f"\n{line}\n") == [2]
    assert moves("text.replace('a', 'b')\nreplace(self, a=1)\nat.replace(tzinfo=UTC)\n") == []
