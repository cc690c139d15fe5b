"""Decides when evaluations no longer get better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from elasticdl.callbacks import EarlyStopping
from elasticdl_core.errors import UserCodeError


class Patience:
    """Counts evaluations without improvement.

    Args:
        callback: what to watch, and for how long.
    """

    def __init__(self, callback: EarlyStopping) -> None:
        self._callback = callback
        self._best: float | None = None
        self._waited = 0

    def exhausted(self, metrics: Mapping[str, Any]) -> bool:
        """Takes the metrics of an evaluation; returns whether training should end.

        Raises:
            UserCodeError: the metric that is watched is not among them.
        """
        watched = self._callback
        if not metrics:
            return False  # nothing was evaluated, and the report says so
        if watched.monitor not in metrics:
            raise UserCodeError(
                f"EarlyStopping watches {watched.monitor!r}, but the evaluation gives {sorted(metrics)}",
                fix="set monitor to one of these",
            )
        value = float(metrics[watched.monitor])
        sign = 1.0 if watched.mode == "min" else -1.0
        # NaN is never an improvement, and nothing is measured against it.
        if not math.isnan(value) and (self._best is None or sign * (self._best - value) > watched.min_delta):
            self._best, self._waited = value, 0
            return False
        self._waited += 1
        return self._waited >= watched.patience
