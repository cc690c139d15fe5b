"""Finds losses and gradients that are NaN or infinite, and applies the job's policy for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.skips import SkipReason, Skips
from elasticdl_worker.parameters import StateChange
from elasticdl_worker.reporting.failures import NotFiniteError

MAX_IN_A_ROW = 100
"""Bad minibatches in a row after which skipping is no longer training."""
_FIX = (
    "lower the learning rate, clip gradients (clipnorm), or mend these records; --on_nan skip leaves such "
    "minibatches out and counts them; --eager prints every layer's output"
)


class NanPolicy:
    """Fails or skips minibatches that are not finite, by the job's ``on_nan``.

    Args:
        policy: ``fail`` or ``skip``.
        limit: bad minibatches in a row that are one too many.

    Attributes:
        skips: whether they are left out.
    """

    def __init__(self, policy: str, limit: int = MAX_IN_A_ROW) -> None:
        self.skips = policy == "skip"
        self._limit = limit
        self._row = 0

    def reset(self) -> None:
        """Ends a run of bad minibatches: this one was finite."""
        self._row = 0

    def handle(self, what: str, where: str, records: int, version: int) -> Skips:
        """Fails, or returns what is skipped, for a minibatch that is not finite.

        Args:
            what: is wrong with it, from ``find_not_finite``.
            where: the records that it is made of.
            records: how many those are.
            version: model version that it was computed at.

        Raises:
            NotFiniteError: the policy is to fail, or there were too many in a row.
        """
        self._row += 1
        message = f"{what} in the minibatch of {where}, at model version {version}"
        if not self.skips:
            raise NotFiniteError(message, fix=_FIX)
        if self._row >= self._limit:
            raise NotFiniteError(
                f"{self._row} minibatches in a row were left out (on_nan=skip): nothing is trained any more; "
                f"in the last one, {message}",
                fix="lower the learning rate, clip gradients (clipnorm), or look for bad values in the data",
            )
        return Skips.of(SkipReason.NAN, records, f"{where}: {what}")


def find_not_finite(
    losses: Sequence[float],
    gradients: Mapping[str, NDArray[np.generic]],
    state: Mapping[str, StateChange],
    unset: Collection[str] = (),
) -> str:
    """Describes the part of a step's result that is NaN or infinite; empty if all are finite.

    Args:
        losses: of the step's minibatches.
        gradients: by parameter or table.
        state: changes of what has no gradient, such as moving averages. Values that are taken as they are may be
            infinite.
        unset: names of state that began without numbers, and may be so.
    """
    for loss in losses:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
    for name, values in gradients.items():
        if not _finite(values):
            return describe_bad_gradient(name, losses[-1])
    for name, change in state.items():
        taken = change.keep == 0 or math.isinf(change.keep)
        if taken and name in unset:
            continue
        bad = change.add.dtype.kind == "f" and np.isnan(change.add).any() if taken else not _finite(change.add)
        if bad:
            return f"the new value of {name} is not finite (the loss is {losses[-1]:.6g})"
    return ""


def describe_bad_gradient(name: str, loss: float) -> str:
    """Describes a minibatch whose loss is finite and whose gradient of a parameter is not."""
    return f"the gradient of {name} is not finite (the loss is {loss:.6g})"


def _finite(values: NDArray[np.generic]) -> bool:
    if values.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        # A sum is one pass without a temporary; only if it is none does it need a second look, for it can overflow.
        return math.isfinite(float(values.sum())) or bool(np.isfinite(values).all())
