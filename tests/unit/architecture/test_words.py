"""The check for first lines that ask instead of naming finds them, and only them."""

from __future__ import annotations

import pytest

from tests.unit.architecture.test_mutants import load

pytestmark = pytest.mark.unit
check_words = load("check_words")


def test_asking_first_lines_of_modules_are_found() -> None:
    source = '''"""What a module is."""
class Whole:
    """Whole texts; what comes later may ask."""
    def speed(self):
        """How fast it is."""
    def limit(self):
        """What-if questions have names."""
Option("--size", help="How many.", default="What")
'''
    assert list(check_words.in_python(source)) == [
        (1, "What a module is."),
        (5, "How fast it is."),
        (8, "How many."),
    ]


def test_asking_comments_of_protocols_are_found_at_their_beginning_alone() -> None:
    source = "// What is sent.\nmessage A {\n  // The size of it,\n  // that is, of all.\n  // How\n\n  // Where\n}\n"
    assert [text for _, text in check_words.in_protocol(source)] == ["What is sent.", "Where"]
