"""Whether a loss is a mean over records, where an update goes by the mean of the losses of its parts.

That is the loss of the whole for a mean over records, and another objective for a loss with a denominator of its own,
such as the sum of class weights or of a mask, and for a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.loss_denominators import WHOLE
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors

_LOOKS = 8
"""Minibatches that are looked at: in the first one all weights may be equal."""
_CLOSE, _CLOSE_OF_HALF = 1e-3, 2e-2
"""How far a mean over records may be off by rounding; the latter where the loss is of 16 bits."""


class FusedLoss:
    """Refuses a loss that is no mean over records, by the halves of the first minibatches.

    Args:
        applies: whether updates have several parts; else nothing is looked at.
        cut: gives some of the records of nested tensors; None if they cannot be cut.
        predict: the model's outputs.
        loss: of labels and predictions, without regularisation.
    """

    def __init__(
        self,
        applies: bool,
        cut: Callable[[Tensors, int, int], Tensors],
        predict: Callable[[Any], Tensors],
        loss: Callable[[Any, Any], Any],
    ) -> None:
        self._left = _LOOKS if applies else 0
        self._cut = cut
        self._predict = predict
        self._loss = loss

    def look(self, batch: Minibatch, records: int) -> None:
        """Looks at a minibatch, before it is trained on.

        Raises:
            UserCodeError: the loss is no mean over its records.
        """
        if not self._left or records < 2:
            return
        self._left -= 1
        predictions, at = self._predict(batch.features), records // 2
        halves = [
            (self._cut(batch.labels, start, end), self._cut(predictions, start, end))
            for start, end in ((0, at), (at, records))
        ]
        if any(part is None for half in halves for part in half):
            return
        loss = self._loss(batch.labels, predictions)
        whole, close = float(loss), _CLOSE_OF_HALF if "float16" in str(getattr(loss, "dtype", "")) else _CLOSE
        first, second = (float(self._loss(*half)) for half in halves)
        mean = (first * at + second * (records - at)) / records
        if not (math.isfinite(whole) and math.isfinite(mean)) or abs(whole - mean) <= close * (1e-3 + abs(whole)):
            return
        raise UserCodeError(
            f"the loss is {whole:.6g} on {records} records and {mean:.6g} on average on their halves: it is no mean "
            "over records, and by AllReduce in parts (--microbatches) another objective would be trained than that "
            "of the minibatch",
            fix=WHOLE,
        )
