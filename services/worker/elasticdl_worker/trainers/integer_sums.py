"""Integers as floats of 32 bits whose sums are exact: 64 bits in limbs, of which so many summands fit into 24 bits.

For arrays and tensors of any framework: int64 with ``//``, ``*`` and ``+``, whose overflow wraps around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LIMBS = 5
"""Floats that an integer travels as, the lowest first; the last one has the sign."""
_BASE = 1 << 13
MOST_SUMMANDS = (1 << 24) // _BASE
"""How many integers can be added up exactly: more than an update can have microbatches."""


def split(values: Any) -> list[Any]:
    """The limbs of integers, each of the shape of ``values``, int64."""
    limbs = []
    for _ in range(LIMBS - 1):
        higher = values // _BASE
        limbs.append(values - higher * _BASE)
        values = higher
    return [*limbs, values]


def join(limbs: Sequence[Any]) -> Any:
    """The sums of integers from the sums of their limbs, int64, as if each addition had wrapped around."""
    total = limbs[-1]
    for limb in reversed(limbs[:-1]):
        total = total * _BASE + limb
    return total


def mean(limbs: Sequence[Any], count: Any) -> tuple[Any, Any]:
    """The mean of integers, which no sum overflows.

    Args:
        limbs: the sums of their limbs, int64.
        count: how many there were, int64, at least 1.

    Returns:
        The quotient, rounded down, and what is left: less than ``count``.
    """
    quotient, rest = limbs[-1] // count, limbs[-1] % count
    for limb in reversed(limbs[:-1]):
        total = rest * _BASE + limb
        quotient, rest = quotient * _BASE + total // count, total % count
    return quotient, rest
