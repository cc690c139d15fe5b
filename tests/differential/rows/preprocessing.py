"""Rows about layers that prepare features, with and without a state that is set before training."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module, net

VOCABULARY = '["red", "green", "blue"]'


def words(*lines: str, last: str = "layers.Dense(1)(h)") -> str:
    """A model of a word for each record."""
    return net(*lines, features="word", shape="(1,)", dtype='"string"', last=last)


def ids(*lines: str) -> str:
    """A model of three ids for each record."""
    return net(*lines, features="ids", shape="(3,)", dtype='"int64"')


def row(name: str, *parts: str, **more: object) -> Row:
    """A row of this file."""
    return Row(name, module(*parts), "preprocessing", **more)  # type: ignore[arg-type]


ROWS = []
