"""Tokens of a statement, its place in the text, and errors that show where and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from elasticdl_core.errors import InvalidInputError, StatementError

_DIALECT = "postgres"
"""Whose tokens statements have: square brackets are lists."""


def tokens_of(text: str) -> list[Any]:
    """The tokens of a text, by sqlglot; comments are none.

    Raises:
        InvalidInputError: a string or comment does not end.
    """
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import TokenError

    try:
        return list(Dialect.get_or_raise(_DIALECT).tokenize(text))
    except TokenError as error:
        raise InvalidInputError(
            f"the statement cannot be read: {str(error).partition(' from ')[0]}", fix="close each quote and comment"
        ) from None


def word_of(token: Any) -> str:
    """A token as a keyword: in capitals; empty for strings and quoted names."""
    return "" if token.token_type.name in ("STRING", "IDENTIFIER") else str(token.text).upper()


def refusal(text: str, offset: int, message: str, fix: str) -> StatementError:
    """An error at a place of a text, which is shown with its line and a mark."""
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    shown = (text.splitlines() or [""])[min(line, len(text.splitlines()) or 1) - 1]
    start = max(0, column - 60)
    cut = shown[start : start + 100]
    told = f"line {line}, column {column}: {message}\n  {cut}\n  {' ' * (column - 1 - start)}^"
    return StatementError(told, fix=fix, line=line, column=column)


def suggest(word: str, known: Sequence[str]) -> str:
    """``did you mean X?`` or a list of what is known."""
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]}?" if near else f"write one of {', '.join(known)}"
