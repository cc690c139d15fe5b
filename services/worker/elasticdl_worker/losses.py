"""Watches losses for values that are no numbers."""

from __future__ import annotations

import math

from elasticdl_core.errors import UserCodeError

MAX_BAD_LOSSES = 5


class LossGuard:
    """Ends training when the loss stays NaN or infinite.

    Args:
        limit: consecutive bad losses that are one too many.
    """

    def __init__(self, limit: int = MAX_BAD_LOSSES) -> None:
        self._limit = limit
        self._bad = 0

    def check(self, loss: float, version: int) -> bool:
        """Takes a loss; returns whether it is a number.

        Args:
            loss: the loss of a minibatch.
            version: model version that it was computed at, for the message.

        Raises:
            UserCodeError: too many bad losses in a row.
        """
        if math.isfinite(loss):
            self._bad = 0
            return True
        self._bad += 1
        if self._bad >= self._limit:
            raise UserCodeError(
                f"the loss was {loss} in {self._bad} minibatches in a row, at model version {version}",
                fix="lower the learning rate, clip gradients (clipnorm), or look for bad values in the data; "
                "--eager prints every layer's output",
            )
        return False
