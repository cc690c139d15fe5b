"""Rows about regularizers, constraints and initializers of dense layers."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module, net

C, R = "keras.constraints.", "keras.regularizers."


def dense(name: str, options: str, *parts: str, family: str, **more: object) -> Row:
    """A row with a dense layer that has these options."""
    source = module(*parts, net(f"h = layers.Dense(5, {options})(h)"))
    return Row(name, source, family, **more)  # type: ignore[arg-type]


ROWS = []
