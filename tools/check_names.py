"""Finds public class names with more than one home: one word names one thing in the whole house.

Looks at the classes of every module of the product; those that begin with an underscore belong to their module.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def packages(root: Path = ROOT) -> list[Path]:
    """The folders of the product's packages, as pyproject.toml names them for the wheel."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return [root / folder for folder in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def public_classes(source: str) -> Iterator[str]:
    """The public classes that a module defines at its top, also under a condition."""
    pending: list[ast.stmt] = list(ast.parse(source).body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield node.name
        elif isinstance(node, ast.If | ast.Try):
            pending += [*node.body, *node.orelse]


def homes(folders: Sequence[Path]) -> Mapping[str, list[Path]]:
    """The modules that define each public class; generated protocol code is left out."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if "_pb2" not in path.name:
                for name in dict.fromkeys(public_classes(path.read_text())):
                    found[name].append(path)
    return found


def main() -> int:
    """Prints what has two homes; returns the exit code."""
    shared = {name: paths for name, paths in homes(packages()).items() if len(paths) > 1}
    for name, paths in sorted(shared.items()):
        print(f"{name} has {len(paths)} homes: " + ", ".join(str(path.relative_to(ROOT)) for path in paths))
    if shared:
        print("rename all but one, so that the name says which it is")
    return 1 if shared else 0


if __name__ == "__main__":
    sys.exit(main())
