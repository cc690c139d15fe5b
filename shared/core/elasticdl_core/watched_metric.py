"""A metric of the evaluations that a rule goes by: found among them, compared, with the direction of known names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl_core.errors import UserCodeError

_PREFIX = "val_"
_RISING = ("acc", "accuracy", "auc", "precision", "recall", "f1", "f1_score", "r2", "r2_score", "iou")
_FALLING = ("loss", "error", "mae", "mse", "rmse", "mape", "msle", "crossentropy", "perplexity")


def direction_of(name: str) -> str:
    """``max`` or ``min``, by what a metric's name ends with; empty if it is unknown which is better."""
    name = name.lower().partition("[")[0]
    return "max" if name.endswith(_RISING) else "min" if name.endswith(_FALLING) else ""


def find_metric(who: str, monitor: str, names: Iterable[str]) -> str:
    """The name by which an evaluation gives a metric that may be written with ``val_`` in front.

    Raises:
        UserCodeError: it does not give it.
    """
    known = set(names)
    for name in (monitor, monitor.removeprefix(_PREFIX)):
        if name in known:
            return name
    raise UserCodeError(
        f"{who} watches {monitor!r}, but the evaluation gives {sorted(known)}", fix="set monitor to one of these"
    )


def value_of(metrics: Mapping[str, Any], name: str) -> float:
    """The value of a metric; NaN where it has none."""
    return math.nan if metrics[name] is None else float(metrics[name])


def is_better(value: float, best: float | None, mode: str, min_delta: float) -> bool:
    """Whether a value is better than the best so far, by more than a change that counts; NaN never is."""
    if math.isnan(value) or best is None:
        return not math.isnan(value)
    return (best - value if mode == "min" else value - best) > min_delta
