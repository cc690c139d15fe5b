"""No module imports itself by way of others."""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp
import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other: strongly connected components of more than one (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for imported in sorted(imports.get(module, ())):
            if imported not in number:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in path:
                lowest[module] = min(lowest[module], number[imported])
        if lowest[module] == number[module]:
            start = path.index(module)
            if len(path) - start > 1:
                found.append(sorted(path[start:]))
            del path[start:]

    for module in sorted(imports):
        if module not in number:
            visit(module)
    return found


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    assert len(graph.modules) > 300
    assert cycles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []
