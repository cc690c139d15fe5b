"""Numbers that an earlier master told the api, shown until this one has heard of newer ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number_told(told: Mapping[str, Any], name: str) -> float | None:
    """A number; None if none was told, or it makes no sense."""
    return _number(told.get(name))


def version_told(told: Mapping[str, Any], name: str) -> int:
    """A version of the model; 0 if none was told, or it makes no sense."""
    return max(0, int(number_told(told, name) or 0))


def metrics_told(told: Mapping[str, Any], name: str) -> dict[str, float]:
    """Metrics by name, without what makes no sense."""
    metrics = told.get(name)
    found = {str(one): _number(value) for one, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    return {one: value for one, value in found.items() if value is not None}


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]
