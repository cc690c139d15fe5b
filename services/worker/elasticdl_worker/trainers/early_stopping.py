"""Finds the rule of early stopping among the callbacks of a model module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl import callbacks as declared
from elasticdl_core.early_stopping import EarlyStopping
from elasticdl_core.errors import UserCodeError


def early_stopping_of(callbacks: Sequence[Any]) -> EarlyStopping | None:
    """The rule that the callbacks declare, if any.

    Raises:
        UserCodeError: they declare more than one.
    """
    found = [callback for callback in callbacks if isinstance(callback, declared.EarlyStopping)]
    if len(found) > 1:
        raise UserCodeError(
            f"callbacks() has {len(found)} EarlyStopping, on {', '.join(repr(one.monitor) for one in found)}",
            fix="keep one of them",
        )
    if not found:
        return None
    one = found[0]
    return EarlyStopping(one.monitor, one.patience, one.mode, abs(one.min_delta))
