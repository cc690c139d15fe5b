"""The states of metrics that workers report with evaluation tasks: read, added up, and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl_core.errors import UserCodeError
from elasticdl_core.json_numbers import from_json


def states_of(result: bytes) -> dict[str, Any]:
    """Reads the metric states that a worker reported: ``{name: {"sum": [...], "kind": ...}}``.

    Raises:
        UserCodeError: that is not what was reported.
    """
    try:
        data = json.loads(result or b"{}")
        states = data.get("states", data)
        return {str(name): from_json(dict(state)) for name, state in states.items()}
    except (ValueError, TypeError, AttributeError):
        raise UserCodeError("a worker reported an evaluation without metric states") from None


def records_of(result: bytes) -> int | None:
    """How many records a worker says that it evaluated; None if it does not say."""
    try:
        records = json.loads(result or b"{}").get("records")
    except (ValueError, AttributeError):
        return None
    return records if isinstance(records, int) else None


def metrics_of(result: bytes) -> dict[str, float]:
    """Reads the metrics that a worker made of merged states.

    Raises:
        UserCodeError: that is not what was reported.
    """
    try:
        data = json.loads(result or b"{}")
        metrics = data["metrics"] if isinstance(data.get("metrics"), Mapping) else data
        return {str(name): float(from_json(value)) for name, value in metrics.items()}
    except (ValueError, TypeError, AttributeError):
        raise UserCodeError("a worker reported a summary without metrics") from None


def merge(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Adds two states of one metric.

    Raises:
        UserCodeError: they differ in kind or shape.
    """
    other = {key: value for key, value in first.items() if key != "sum"}
    if other != {key: value for key, value in second.items() if key != "sum"}:
        raise UserCodeError(f"the states of metric {name!r} differ in kind", fix="return the same metrics each time")
    return {**other, "sum": _add(name, first.get("sum", 0), second.get("sum", 0))}


def _add(name: str, first: Any, second: Any) -> Any:
    if isinstance(first, Sequence) and isinstance(second, Sequence) and len(first) == len(second):
        return [_add(name, one, two) for one, two in zip(first, second, strict=True)]
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    raise UserCodeError(f"the states of metric {name!r} differ in shape", fix="return the same metrics each time")
