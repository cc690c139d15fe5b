"""The worker speaks with an untyped framework; its own code has types all the same."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
WORKER = Path(__file__).parents[3] / "services" / "worker"
MOST_IN_1000_LINES = 25


def uses_of_any(source: str) -> int:
    """How often the name ``Any`` occurs in code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)


def test_the_worker_seldom_says_any() -> None:
    sources = [path.read_text() for path in WORKER.rglob("*.py")]
    lines = sum(source.count("\n") for source in sources)
    assert lines > 5000, "the worker's code was not found"
    uses = sum(uses_of_any(source) for source in sources)
    assert uses * 1000 < MOST_IN_1000_LINES * lines, f"{uses} uses of Any in {lines} lines"


def test_a_use_in_code_counts_and_one_in_words_does_not() -> None:
    assert uses_of_any('"""Any."""\nx: Any = dict[str, Any]  # Any\n') == 2
