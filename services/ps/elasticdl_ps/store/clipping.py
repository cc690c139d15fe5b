"""Clips the gradients of an update as a whole: of a round, whose gradients come from several minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import UpdateClipping
from elasticdl_ps.store.merging import Changes

_Array = NDArray[Any]


def clip(changes: Changes, clipping: UpdateClipping, scale: float) -> Changes:
    """The changes of an update with gradients that keep to a limit.

    Args:
        changes: of the update; the rows of a table count as one gradient.
        clipping: the limit.
        scale: what gradients are multiplied with before they are applied.

    Returns:
        The changes; what is not finite stays as it is.
    """
    if not clipping.by:
        return changes
    if clipping.by == "value":
        limit = clipping.limit / scale
        return _mapped(changes, lambda gradient: np.clip(gradient, -limit, limit))
    gradients = [*changes.dense.values(), *(values for _, values in changes.rows.values())]
    if clipping.by == "norm":
        return _mapped(changes, lambda gradient: gradient * _factor([gradient], clipping, scale))
    factor = _factor(gradients, clipping, scale)
    return changes if factor == 1 else _mapped(changes, lambda gradient: gradient * factor)


def _factor(gradients: Iterable[_Array], clipping: UpdateClipping, scale: float) -> np.float32:
    norms = np.array([np.linalg.norm(one.astype(np.float64).ravel(), clipping.norm_type) for one in gradients])
    norm = scale * float(np.linalg.norm(norms, clipping.norm_type)) if len(norms) else 0.0
    if not np.isfinite(norm):
        return np.float32(1)
    return np.float32(min(1.0, clipping.limit / (norm + clipping.slack))) if norm else np.float32(1)


def _mapped(changes: Changes, function: Callable[[_Array], _Array]) -> Changes:
    return replace(
        changes,
        dense={name: function(gradient) for name, gradient in changes.dense.items()},
        rows={table: (ids, function(values)) for table, (ids, values) in changes.rows.items()},
    )
