"""The denominator of a loss: what makes the losses of parts of an update into the loss of the whole update.

Nearly all losses are a sum over records, or such a sum divided by another: by the records, by their class weights, by
what a mask leaves. The gradient of the whole is then the sum of ``denominator * gradient`` over the parts, divided
by the sum of the denominators; of a sum, it is the sum. The function is the user's, so its denominator is measured:
*reference* rows, the same for all parts of a job, are joined with the rows of a part. What is left of the gradient
that the loss has on the reference by itself is ``share = D / (D + d)``, with the denominators D of the reference and
d of the part. A loss for which that does not hold is no such ratio (pairs of records are compared, there is a root of
a mean, two heads have two denominators) and is refused, for the mean of the parts' losses is another objective.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors

T = TypeVar("T")
REFERENCE_ROWS = 16
"""Rows of the reference, at most: enough that not all of them are masked."""
_LOOKED_AT = (2 * REFERENCE_ROWS, 1 << 9, 1 << 13)
"""Records, for one of which ``feed`` makes a row."""
_PLACES = 16
"""Parts of the data at whose beginnings records are looked at, where the first ones have no gradient."""
_MOST_NUMBERS = 1 << 22
"""In the predictions of the reference: a row may be a text with logits of a whole vocabulary for each word."""
NO_OUTPUT = "the loss of the records that were looked at goes by no output that has a row for each record"
"""What is said where gradients are zero, or where the model computes its loss itself."""
CLOSE = 3e-4
"""How far a value may be off by rounding, as part of it."""
CLOSE_OF_HALF = 2e-2
"""The same where the loss of training is computed in 16 bits."""
_STRAIGHT = 1e-3
"""How far the gradient may be from a multiple of what it was, as part of it."""
_SAME_SHARE = 1e-5
"""Shares of which one is the other, but for rounding: records are counted exactly then."""
_SAME_DENOMINATOR = 3e-5
_NOTHING = 3e-7
GRADIENT_FACTORS = (1.0, 2.0**-10, 2.0**10)
"""Of a loss whose gradients shall grow with it: powers of two, which change no digit."""
WHOLE = (
    "--microbatches 1 (one worker computes) or --distribution_strategy ParameterServerStrategy, without "
    "--grads_to_wait, compute the loss of a minibatch as a whole; or write it as a mean over records"
)
"""What to do about a loss that cannot be computed in parts."""


class FlatLossError(UserCodeError):
    """The loss of some records has no gradient on their outputs, or is none: they may all be masked."""


def on_first_rows(first: Callable[[int, float], Minibatch | None], measure: Callable[[Minibatch], T]) -> T:
    """Measures on the first records of which ``feed`` makes rows, or on the first others whose loss has a gradient.

    Args:
        first: gives so many records of the data from a place on, as part of it, or fewer; None if nothing is made of
            them.
        measure: what is to be done.

    Raises:
        UserCodeError: ``feed`` makes nothing of them, or what ``measure`` raises.
    """
    found = next(filter(None, (first(size, 0.0) for size in _LOOKED_AT)), None)
    if found is None:
        raise unmeasured(f"feed makes nothing of the first {_LOOKED_AT[-1]} records")
    try:
        return measure(found)
    except FlatLossError as error:
        for place in range(1, _PLACES):
            other = first(_LOOKED_AT[0], place / _PLACES)
            with contextlib.suppress(FlatLossError):
                if other is not None:
                    return measure(other)
        raise error


def at_places(first: Callable[[int, float], Minibatch | None], look: Callable[[Minibatch], None]) -> None:
    """Looks at the first records, and at some from other places: what masks records may mask none of the first.

    Args:
        first: gives so many records of the data from a place on, as part of it, or fewer; None if nothing is made of
            them.
        look: at records.

    Raises:
        UserCodeError: ``feed`` makes nothing of the first records, or what ``look`` raises.
    """
    on_first_rows(first, look)
    for place in range(_PLACES // 4, _PLACES, _PLACES // 4):
        if (other := first(_LOOKED_AT[0], place / _PLACES)) is not None:
            look(other)


def any_rows(shapes: Mapping[str, tuple[int, int]]) -> dict[str, NDArray[np.float32]]:
    """Numbers in place of rows of tables that lie elsewhere: any outputs show what denominator a loss has."""
    draw = np.random.default_rng(0)
    return {table: draw.normal(0.0, 0.05, shape).astype(np.float32) for table, shape in shapes.items()}


def reference_rows(rows: int, numbers: int) -> int:
    """The number of rows of the reference.

    Args:
        rows: of the first records, of which the reference is half at most.
        numbers: in the predictions of a row.
    """
    return max(1, min(rows // 2, REFERENCE_ROWS, _MOST_NUMBERS // max(1, numbers)))


@dataclass(frozen=True)
class JoinedLoss:
    """The loss of some rows together with others that joined them.

    Attributes:
        loss: of all of them.
        share: the factor that is left of the gradient that the loss has on the first rows alone.
        bend: how far the gradient is from being that multiple, as part of it, in the output where it is furthest.
        of_others: the loss of the rows that joined, where it is not that of training; else None.
    """

    loss: float
    share: float
    bend: float
    of_others: float | None = None


@dataclass(frozen=True)
class LossReference:
    """The loss of rows that parts of updates are compared with.

    Attributes:
        rows: how many there are.
        loss: of them alone.
        is_sum: whether the loss is a sum over records; else a sum divided by a denominator.
    """

    rows: int
    loss: float
    is_sum: bool

    @classmethod
    def of(cls, rows: int, loss: float, twice: JoinedLoss) -> LossReference:
        """Learns what kind of loss it is from rows that are joined with themselves.

        Raises:
            UserCodeError: neither of both.
        """
        for is_sum, share, together in ((False, 0.5, loss), (True, 1.0, 2 * loss)):
            if abs(twice.share - share) <= _STRAIGHT and twice.bend <= _STRAIGHT and _close(twice.loss, together):
                return cls(rows, loss, is_sum)
        if any(_close(twice.loss, value) for value in (loss, 2 * loss)):
            raise bent_gradients("the model's outputs")  # which do not go with such values
        raise no_ratio(f"{loss:.6g} on {rows} records and {twice.loss:.6g} on these twice over")

    def plain(self, rows: int) -> float:
        """The denominator of rows that weigh alike: their number, or 1 where the loss is a sum."""
        return 1.0 if self.is_sum else float(rows)

    def denominator(self, joined: JoinedLoss, rows: int, loss: float, close: float = CLOSE) -> float:
        """Measures the denominator of a part, in units in which the reference has its number of rows.

        Args:
            joined: the reference with the rows of the part.
            rows: of the part.
            loss: of the part alone.
            close: how far values may be off by rounding.

        Returns:
            The number of rows where the loss is a mean over records; 1 where it is a sum; 0 for a part that has no
            weight at all, whose loss may be NaN.

        Raises:
            UserCodeError: the loss is no such ratio.
        """
        share, straight = joined.share, joined.bend <= _STRAIGHT
        loss = loss if joined.of_others is None else joined.of_others
        said = f"{self.loss:.6g} on {self.rows} records, {loss:.6g} on {rows} others and {joined.loss:.6g} on all"
        if self.is_sum:
            if math.isfinite(loss) and not (straight and _close(joined.loss, self.loss + loss, close)):
                raise no_ratio(said)
            return 1.0
        whole = self.rows / (self.rows + rows)
        denominator = float(rows) if abs(share - whole) <= _SAME_SHARE * whole else self._of_share(share)
        if not math.isfinite(loss):
            return 0.0 if straight and denominator <= _SAME_SHARE * self.rows else float(rows)
        together = share * self.loss + (1.0 - share) * loss
        scale = max(abs(self.loss), abs(loss))
        if not straight or not 0.0 < share <= 1.0 + _SAME_SHARE or not _close(joined.loss, together, close, scale):
            raise no_ratio(said)
        if denominator > _NOTHING * self.rows:
            return denominator
        if abs(loss) > close * scale:  # a part without weight has no loss: this one is the largest of some, or so
            raise no_ratio(said)
        return 0.0

    def check_same(self, found: float, again: float) -> None:
        """Compares the denominators of the same labels with other predictions: they show a root of a mean, too.

        Raises:
            UserCodeError: they differ.
        """
        if abs(found - again) > _SAME_DENOMINATOR * max(found, again):
            shown = f"a mean by {found:.6g} and, of the same labels with other outputs, by {again:.6g} records"
            raise no_ratio(shown)

    def _of_share(self, share: float) -> float:
        return self.rows * (1.0 / share - 1.0) if share > 0.0 else math.inf


def no_ratio(shown: str) -> UserCodeError:
    """Refuses a loss that parts of an update cannot add up.

    Args:
        shown: values of it that show it.
    """
    return UserCodeError(
        f"the loss is {shown}: it is neither a sum nor a mean nor a weighted mean over records, and in "
        "parts (--microbatches, --grads_to_wait) another objective would be trained than that of the whole update",
        fix=WHOLE,
    )


def is_bent(apart: float, size: float) -> bool:
    """Whether a gradient is no multiple of what it was; one that is not finite says nothing.

    Args:
        apart: the norm of the difference.
        size: the norm of the multiple.
    """
    return math.isfinite(size) and not apart <= _STRAIGHT * size


def bent_gradients(name: str) -> UserCodeError:
    """Refuses what changes gradients by their size within the backward pass.

    Args:
        name: of a parameter.
    """
    return UserCodeError(
        f"the gradient of {name} does not grow as the loss does: something clips, normalises or adds to it within "
        "the backward pass (a hook, a gradient function of its own), and in parts (--microbatches, --grads_to_wait) "
        "that would be done to each part, not to the update",
        fix="clip with callbacks() -> [elasticdl.callbacks.GradientClipping(...)]; or --microbatches 1 (one worker "
        "computes) or --distribution_strategy ParameterServerStrategy, without --grads_to_wait, compute a minibatch "
        "as a whole",
    )


def require_mean(
    cut: Callable[[Tensors, int, int], Tensors],
    loss: Callable[[Any, Any], Any],
    labels: Tensors,
    predictions: Tensors,
    rows: int,
    whole: float,
    close: float = CLOSE,
) -> None:
    """Refuses a loss that is no mean over some records, by the values of their halves.

    Args:
        cut: gives some of the records of nested tensors; None if they cannot be cut.
        loss: of labels and predictions.
        labels: of the records.
        predictions: of the records.
        rows: how many records there are.
        whole: the loss of all.
        close: how far values may be off by rounding.

    Raises:
        UserCodeError: it is none, or nobody can tell.
    """
    at = rows // 2
    halves = [(cut(labels, *ends), cut(predictions, *ends)) for ends in ((0, at), (at, rows))]
    if not at or any(part is None for half in halves for part in half):
        raise unmeasured("a part has records of another shape than the first ones")
    first, second = (float(loss(*half)) for half in halves)
    mean = (first * at + second * (rows - at)) / rows
    if math.isfinite(whole) and not _close(whole, mean, close, max(abs(first), abs(second))):
        raise no_ratio(
            f"{whole:.6g} on {rows} records and {mean:.6g} on average on their halves, where parts have records of "
            "other shapes than the first ones and a mean is needed"
        )


def all_masked() -> NotFiniteError:
    """Says that an update has no loss, since no record of it counts."""
    return NotFiniteError(
        "the loss is nan in each part of a minibatch: none of its records counts",
        fix="let no mask, ignore_index or class weight of 0 cover all records of a minibatch, or take larger ones",
    )


def unmeasured(why: str, kind: type[UserCodeError] = UserCodeError) -> UserCodeError:
    """Refuses a loss of which nobody can tell whether parts of an update add up."""
    return kind(
        f"{why}: whether the loss of an update is the mean of those of its parts (--microbatches, --grads_to_wait) "
        "cannot be told",
        fix=WHOLE,
    )


def _close(found: float, wanted: float, close: float = CLOSE, scale: float = 0.0) -> bool:
    return abs(found - wanted) <= close * max(abs(wanted), scale) + 1e-6
