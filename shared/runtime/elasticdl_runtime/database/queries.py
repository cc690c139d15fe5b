"""Queries that only read, on the shortest way to Postgres: their text is made once, each connection prepares it once.

What SQLAlchemy does for each execution (building the statement, looking its text up, switching stacks) costs several
times what the query itself does. Queries that every request asks are written with SQLAlchemy all the same.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects.postgresql import asyncpg


class Query:
    """A query whose text is made once.

    Values are given by the names of its ``bindparam``s. What Postgres gives is taken as the driver reads it: JSON
    is text.

    Args:
        query: the query; no part of it depends on a value (``in_`` does: write ``== any_(bindparam(...))``).
    """

    def __init__(self, query: Select[Any]) -> None:
        compiled = query.compile(dialect=asyncpg.dialect())  # type: ignore[no-untyped-call]
        self.text = str(compiled)
        self._fixed: dict[str, Any] = dict(compiled.params)
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())

    def arguments(self, given: dict[str, Any]) -> list[Any]:
        """The values in the order in which the text numbers them."""
        values = self._fixed | given
        assert len(values) == len(self._fixed), f"{sorted(given)} are not all of {sorted(self._fixed)}"
        return [values[name] for name in self._names]
