"""The list of planted faults is whole: each one can be planted, and in the product itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]


def load(tool: str) -> ModuleType:
    """A script of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"tools_{tool}", ROOT / "tools" / f"{tool}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


mutants = load("mutants")
TABLE = mutants.read_table()


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_planted(mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutant.apply(source) != source
    assert mutant.file.startswith(("services/", "shared/", "sdk/"))
    assert mutant.breaks
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
    assert mutant.tests and missing == []


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in TABLE]
    assert len(names) == len(set(names)) >= 125
    planted = [(mutant.file, mutant.old, mutant.new) for mutant in TABLE]
    assert len(planted) == len(set(planted)), "a fault counts once"


def test_a_fault_whose_text_is_gone_is_an_error() -> None:
    gone = mutants.Mutant("gone", "nothing", "a.py", "no such text", "x", ("tests",))
    with pytest.raises(ValueError, match="occurs 0 times"):
        gone.apply("something else")
