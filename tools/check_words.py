"""Finds first lines that ask instead of naming: docstrings, texts of options and routes, and comments of protocols.

The first line of a text says what the thing is or does. One that opens with What, Who or How makes its reader wait
for the noun: "Writes frames to the connection", not "What is told to one who follows".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("sdk", "services", "shared", "benchmarks", "examples", "experiments", "tools")
SHOWN = ("help", "summary", "description")
"""Arguments of options, fields and routes that people read."""

_ASKING = re.compile(r"(What(ever)?|Who(ever)?|Which|Where|How|That|Those|Nobody)\b(?!-)")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def in_python(source: str) -> Iterator[tuple[int, str]]:
    """The lines of docstrings and shown texts of a module that open with an asking word, with their texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED):
            text, line = ast.get_docstring(node), node.body[0].lineno if node.body else 1
        elif isinstance(node, ast.keyword) and node.arg in SHOWN and isinstance(node.value, ast.Constant):
            text, line = str(node.value.value), node.value.lineno
        else:
            continue
        if text and _ASKING.match(text):
            yield line, text.splitlines()[0]


def in_protocol(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a protocol that begin a comment with an asking word, with the comments."""
    before = ""
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text.startswith("//") and not before.startswith("//") and _ASKING.match(text.removeprefix("//").strip()):
            yield number, text.removeprefix("//").strip()
        before = text


def main() -> int:
    """Prints each such line with its place; returns the exit code."""
    found = 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".py", ".proto"} or "_pb2" in path.name:
                continue
            lines = in_python if path.suffix == ".py" else in_protocol
            for number, text in lines(path.read_text()):
                found += 1
                print(f"{path.relative_to(ROOT)}:{number}: {text}")
    if found:
        print("begin with what the thing is or does: a noun, or a verb")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
