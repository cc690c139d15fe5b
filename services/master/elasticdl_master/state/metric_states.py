"""The states of metrics that workers report with evaluation tasks: read, added up, and what is made of them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticdl_core.errors import UserCodeError
from elasticdl_core.json_numbers import from_json

_RULES: Mapping[str, Callable[[float, float], float]] = {"sum": operator.add, "max": max, "min": min}


def states_of(result: bytes) -> dict[str, Any]:
    """Reads the metric states that a worker reported: ``{name: {"sum": [...], "kind": ...}}``, and ``by`` for some.

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
    """The number of records that a worker says that it evaluated; None if it does not say."""
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
    """Adds two states of one metric; where ``by`` says so of a variable, takes the larger or smaller numbers.

    Raises:
        UserCodeError: they differ in kind or shape.
    """
    other = {key: value for key, value in first.items() if key != "sum"}
    if other != {key: value for key, value in second.items() if key != "sum"}:
        raise UserCodeError(f"the states of metric {name!r} differ in kind", fix="return the same metrics each time")
    one, two, rules = first.get("sum", 0), second.get("sum", 0), other.get("by")
    if rules is None:
        return {**other, "sum": _merged(name, one, two, "sum")}
    if not all(isinstance(each, list) and len(each) == len(one) for each in (one, two, rules)):
        raise UserCodeError(f"the states of metric {name!r} differ in shape", fix="return the same metrics each time")
    return {**other, "sum": [_merged(name, *three) for three in zip(one, two, rules, strict=True)]}


def _merged(name: str, first: Any, second: Any, rule: str) -> Any:
    if isinstance(first, Sequence) and isinstance(second, Sequence) and len(first) == len(second):
        return [_merged(name, one, two, rule) for one, two in zip(first, second, strict=True)]
    if isinstance(first, int | float) and isinstance(second, int | float) and rule in _RULES:
        return _RULES[rule](first, second)
    raise UserCodeError(f"the states of metric {name!r} differ in shape", fix="return the same metrics each time")
