"""Checks of the learning rates that a schedule gives."""

from __future__ import annotations

import math

from elasticdl_core.errors import UserCodeError


def checked_rate(rate: float, version: int, optimizer: str) -> float:
    """Returns what a schedule gave, if it is a learning rate. 0 is one: nothing moves.

    Args:
        rate: what it gave.
        version: at which model version.
        optimizer: name of the optimizer.

    Raises:
        UserCodeError: it is none, or the optimizer divides by it.
    """
    lowest = "over 0" if optimizer == "ftrl" else "of 0 or more"
    if not math.isfinite(rate) or rate < 0 or (rate == 0 and optimizer == "ftrl"):
        raise UserCodeError(
            f"the learning rate schedule gave {rate} at model version {version}",
            fix=f"return a finite number {lowest}",
        )
    return rate
