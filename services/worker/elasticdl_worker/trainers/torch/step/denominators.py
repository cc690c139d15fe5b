"""Measures the denominator of a PyTorch loss (``loss_denominators``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.loss_denominators import (
    CLOSE,
    NO_OUTPUT,
    FlatLossError,
    JoinedLoss,
    LossReference,
    no_ratio,
    reference_rows,
    unmeasured,
)
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors

_Loss = Callable[[Tensors, Tensors], torch.Tensor]


class TorchDenominators:
    """The denominators of a loss on parts of an update.

    The reference must be the same in all members, to the last bit.

    Args:
        loss: of labels and predictions, a scalar.
        labels: of the reference.
        predictions: of the reference; any that the model may give.
        rows: of the reference.
        close: how far values of training may be off by rounding.

    Raises:
        UserCodeError: no denominator makes the losses of parts that of the whole.
    """

    def __init__(self, loss: _Loss, labels: Tensors, predictions: Tensors, rows: int, close: float = CLOSE) -> None:
        self._loss = loss
        self._close = close
        self._kept: tuple[Tensors, Tensors] = (None, None)
        self._weighs = False
        numbers = sum(leaf.numel() // rows for leaf in leaves(predictions))
        kept = reference_rows(rows, numbers)
        self._anchor, at = self._first_anchor(labels, predictions, rows, kept)
        twice = self._anchor.join(self._anchor.labels, self._anchor.predictions, kept)
        self._reference = LossReference.of(kept, self._anchor.loss, twice)
        start = 0 if at else kept
        if others := min(start + kept, rows) - start if rows > 1 else 0:
            targets, given = (_cut(values, start, start + others, rows) for values in (labels, predictions))
            turned = map_tensors(lambda leaf: leaf.flip(0) if leaf.ndim and leaf.is_floating_point() else leaf, given)
            found = []
            for outputs in (given, turned):
                self.keep(targets, outputs)
                found.append(self.of(others, _run(loss, targets, outputs, others).loss))
            self._reference.check_same(found[0], found[1])

    @property
    def adds(self) -> bool:
        """Whether the loss is a sum over records: then gradients of parts add up as they are."""
        return self._reference.is_sum

    def _first_anchor(self, labels: Tensors, predictions: Tensors, rows: int, kept: int) -> tuple[_Anchor, int]:
        """The first so many rows on which the loss has a gradient (not all are masked), and where they begin."""
        for start in range(0, rows - kept + 1, kept):
            targets, given = (_cut(values, start, start + kept, rows) for values in (labels, predictions))
            try:
                return _Anchor(self._loss, targets, given, kept), start
            except _FlatError as error:
                why = str(error)
        raise unmeasured(f"{why} (outputs: {_shapes(predictions)})", FlatLossError)

    def keep(self, labels: Tensors, predictions: Tensors) -> None:
        """Keeps labels and predictions of a part as they are before its loss is computed."""
        labels, predictions = (map_tensors(lambda leaf: leaf.detach().clone(), one) for one in (labels, predictions))
        self._kept = labels, predictions

    def of(self, rows: int, loss: float) -> float:
        """Measures the denominator of the part that was kept, in rows; 1 if the loss is a sum.

        Args:
            rows: of the part.
            loss: of the part alone.

        Raises:
            UserCodeError: the loss of the whole cannot be made of those of the parts.
        """
        (labels, predictions), self._kept = self._kept, (None, None)
        try:
            joined = self._anchor.join(labels, predictions, rows)
        except _UnlikeError:
            if rows > 1:
                self._require_mean(labels, predictions, rows)
            elif self._weighs:
                raise unmeasured("a part of one record has another shape than the first records") from None
            return self._reference.plain(rows)
        denominator = self._reference.denominator(joined, rows, loss, self._close)
        self._weighs = self._weighs or denominator != self._reference.plain(rows)
        return denominator

    def _require_mean(self, labels: Tensors, predictions: Tensors, rows: int) -> None:
        """Refuses a loss that is no mean over rows that have another shape than the reference, by their halves."""
        at = rows // 2
        targets, given = (_cut(values, 0, at, rows) for values in (labels, predictions))
        later, others = (_cut(values, at, rows, rows) for values in (labels, predictions))
        try:
            anchor = _Anchor(self._loss, targets, given, at)
        except _FlatError as error:
            raise unmeasured(str(error)) from None
        joined, other = anchor.join(later, others, rows - at), _run(self._loss, later, others, rows - at).loss
        reference = LossReference(at, anchor.loss, self._reference.is_sum)
        if reference.denominator(joined, rows - at, other, self._close) != reference.plain(rows - at):
            shapes = [list(leaf.shape[1:]) for leaf in leaves(predictions)]
            raise no_ratio(
                f"a mean by weights, on records of the shapes {shapes} that those of other parts do not have"
            )


class _UnlikeError(Exception):
    """Rows cannot be joined: they have other shapes."""


class _FlatError(Exception):
    """The loss of some rows has no gradient to go by."""


class _Ran(NamedTuple):
    """A loss, and its gradient on the outputs of the first rows that it is of."""

    loss: float
    gradients: list[torch.Tensor]


class _Anchor:
    """Rows on which the gradient of the loss is known, for others to join.

    Attributes:
        loss: of the rows alone.
        labels: of the rows.
        predictions: of the rows.
    """

    def __init__(self, function: _Loss, labels: Tensors, predictions: Tensors, rows: int) -> None:
        self._function = function
        self.labels, self.predictions, self._rows = labels, predictions, rows
        self.loss, self._gradients = _run(function, labels, predictions, rows)
        self._squares = [float(one.square().sum()) for one in self._gradients]
        if not math.isfinite(self.loss + sum(self._squares)):
            raise _FlatError(f"the loss of the records that were looked at is {self.loss}")
        if not sum(self._squares):
            raise _FlatError(NO_OUTPUT)

    def join(self, labels: Tensors, predictions: Tensors, rows: int) -> JoinedLoss:
        """Computes the loss of these and other rows.

        Raises:
            _UnlikeError: these have other shapes.
        """
        loss, gradients = _run(self._function, self.labels, self.predictions, self._rows, (labels, predictions, rows))
        total = sum(self._squares)
        products = [float((one * other).sum()) for one, other in zip(self._gradients, gradients, strict=True)]
        share = sum(products) / total
        bends = [
            float((other - share * one).square().sum()) / max(square, 1e-12 * total)
            for one, other, square in zip(self._gradients, gradients, self._squares, strict=True)
        ]
        return JoinedLoss(loss, share, math.sqrt(max(bends)) if math.isfinite(sum(bends)) else math.inf)


def _run(
    function: _Loss,
    labels: Tensors,
    predictions: Tensors,
    rows: int,
    others: tuple[Tensors, Tensors, int] | None = None,
) -> _Ran:
    """Computes the loss of rows, and of others behind them."""
    own = [_wide(leaf.detach()) for leaf in leaves(predictions)]
    watched = [one.requires_grad_() for one in own if _per_record(one, rows) and one.is_floating_point()]
    targets = [_wide(leaf) for leaf in leaves(labels)]
    with torch.enable_grad(), torch.autocast(own[0].device.type if own else "cpu", enabled=False):
        if others is None:
            given = _joined(own, rows, predictions, 0), _joined(targets, rows, labels, 0)
        else:
            given = _joined(own, rows, others[1], others[2]), _joined(targets, rows, others[0], others[2])
        try:
            loss = function(given[1], given[0])
        except UserCodeError:
            raise
        except Exception as error:
            shapes = _shapes(predictions)
            raise unmeasured(
                f"the loss fails on records of two parts, which meet in the first dimension of the outputs {shapes} "
                f"({error})"
            ) from error
    if not watched or not loss.requires_grad:
        return _Ran(float(loss), [torch.zeros(1, dtype=torch.float64)] * max(1, len(watched)))
    found = torch.autograd.grad(loss, watched, allow_unused=True)
    pairs = zip(found, watched, strict=True)
    return _Ran(
        float(loss.detach()), [_exact(torch.zeros_like(one) if grad is None else grad) for grad, one in pairs]
    )


def _shapes(values: Tensors) -> str:
    return ", ".join(str(list(leaf.shape)) for leaf in leaves(values))


def _exact(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient in 64 bits, which one kind of accelerator does not have."""
    return gradient.cpu().double() if gradient.device.type == "mps" else gradient.double()


def _joined(own: list[torch.Tensor], rows: int, values: Tensors, others: int) -> Tensors:
    """Nested tensors, with rows of one's own before theirs; the own alone if there are no others."""
    if len(own) != len(leaves(values)):
        raise _UnlikeError
    left = iter(own)

    def with_own(leaf: torch.Tensor) -> torch.Tensor:
        mine = next(left)
        if not others:
            return mine.clone()
        theirs = _wide(leaf.detach())
        own_each, each = _per_record(mine, rows), _per_record(theirs, others)
        if not (own_each and each):
            return theirs
        if own_each != each or mine.shape[1:] != theirs.shape[1:]:
            raise _UnlikeError
        return torch.cat([mine, theirs.to(mine.dtype)])

    return map_tensors(with_own, values)


def _wide(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.float() if leaf.is_floating_point() and leaf.element_size() < 4 else leaf


def _per_record(leaf: torch.Tensor, records: int) -> int:
    """Rows for each record, many of texts whose words lie one below the other; 0 if they are of none."""
    return len(leaf) // records if leaf.ndim and not len(leaf) % records else 0


def _cut(values: Tensors, start: int, end: int, records: int) -> Tensors:
    def part(leaf: torch.Tensor) -> torch.Tensor:
        each = _per_record(leaf, records)
        return leaf[start * each : end * each] if each else leaf

    return map_tensors(part, values)
