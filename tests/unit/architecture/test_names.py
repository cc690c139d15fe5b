"""The check for public class names with two homes finds them, and only them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.architecture.test_mutants import load

pytestmark = pytest.mark.unit
check_names = load("check_names")


def test_a_name_with_two_homes_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Answer: ...\nclass _Own: ...\nclass Alone: ...\n")
    (tmp_path / "two.py").write_text(
        "if True:\n    class Answer: ...\nclass _Own: ...\nclass Outer:\n    class Alone: ...\n"
    )
    (tmp_path / "wire_pb2.py").write_text("class Alone: ...\n")
    found = {name: [path.name for path in paths] for name, paths in check_names.homes([tmp_path]).items()}
    assert found == {"Answer": ["one.py", "two.py"], "Alone": ["one.py"], "Outer": ["two.py"]}


def test_two_homes_by_import_are_one(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Answer: ...\n")
    (tmp_path / "two.py").write_text("from one import Answer\n")
    assert [path.name for path in check_names.homes([tmp_path])["Answer"]] == ["one.py"]


def test_the_packages_of_the_wheel_are_looked_at() -> None:
    assert {"elasticdl", "elasticdl_core", "elasticdl_worker"} <= {path.name for path in check_names.packages()}
