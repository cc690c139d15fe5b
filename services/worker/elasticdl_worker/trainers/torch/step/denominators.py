"""Measures the denominator of a PyTorch loss (``loss_denominators``)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

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
from elasticdl_worker.trainers.torch.device import place
from elasticdl_worker.trainers.torch.model.trials import trial_of
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors
from elasticdl_worker.trainers.torch.step.batch_axes import Axes, as_they_were, records_first

_Loss = Callable[[Tensors, Tensors], torch.Tensor]
_LARGER = 4.0
"""Factor of parameters by which a loss is far enough from what it was for a root of a mean to show."""


class TorchDenominators:
    """The denominators of a loss on parts of an update.

    The reference must be the same in all members, to the last bit.

    Args:
        loss: of labels and predictions, a scalar.
        labels: of the reference.
        predictions: of the reference; any that the model may give.
        rows: of the reference.
        close: how far values of training may be off by rounding.
        axes: along which labels and predictions have their records.
        copy: computes the loss from features in place of predictions, where the model computes some of it.

    Raises:
        UserCodeError: no denominator makes the losses of parts that of the whole.
    """

    def __init__(
        self,
        loss: _Loss,
        labels: Tensors,
        predictions: Tensors,
        rows: int,
        close: float = CLOSE,
        axes: tuple[Axes, Axes] = ((), ()),
        copy: LossOfCopy | None = None,
    ) -> None:
        of_labels, of_predictions = self._axes = axes
        self._loss: _Loss = lambda labels, predictions: loss(
            as_they_were(labels, of_labels), as_they_were(predictions, of_predictions)
        )
        self._copy = copy
        self._close = close
        labels, predictions = records_first(labels, of_labels), records_first(predictions, of_predictions)
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
            found = (
                self._found_by_copies(targets, given, others) if copy else self._found_turned(targets, given, others)
            )
            self._reference.check_same(found[0], found[1])

    @property
    def adds(self) -> bool:
        """Whether the loss is a sum over records: then gradients of parts add up as they are."""
        return self._reference.is_sum

    def _first_anchor(
        self, labels: Tensors, predictions: Tensors, rows: int, kept: int
    ) -> tuple[_Anchor | _AnchorOfCopy, int]:
        """The first so many rows on which the loss has a gradient (not all are masked), and where they begin."""
        for start in range(0, rows - kept + 1, kept):
            targets, given = (_cut(values, start, start + kept, rows) for values in (labels, predictions))
            try:
                return self._made_anchor(targets, given, kept), start
            except _FlatError as error:
                why = str(error)
        raise unmeasured(f"{why} (outputs: {_shapes(predictions)})", FlatLossError)

    def _found_turned(self, labels: Tensors, given: Tensors, rows: int) -> list[float]:
        """The denominator of rows, and with outputs in the opposite order."""
        found = []
        for outputs in (given, map_tensors(lambda leaf: leaf.flip(0) if _is_turned(leaf) else leaf, given)):
            self._kept = labels, outputs
            found.append(self.of(rows, self._loss_of(labels, outputs, rows)))
        return found

    def _found_by_copies(self, labels: Tensors, given: Tensors, rows: int) -> list[float]:
        """The denominator of rows by the parameters of the copy, and by larger ones."""
        assert self._copy is not None
        found = []
        for factor in (1.0, _LARGER):
            with self._copy.scaled(factor):
                anchor = _AnchorOfCopy(
                    self._copy, self._anchor.labels, self._anchor.predictions, self._reference.rows
                )
                reference = LossReference(self._reference.rows, anchor.loss, self.adds)
                found.append(reference.denominator(anchor.join(labels, given, rows), rows, math.nan, self._close))
        return found

    def keeping(self, labels: Tensors, features: Tensors) -> Callable[[Tensors, Tensors], None] | None:
        """Keeps labels and features of a part where these show the denominator; else what to tell the outputs."""
        if self._copy is None:
            return self.keep
        self.keep(*place((labels, features), self._copy.device))
        return None

    def keep(self, labels: Tensors, predictions: Tensors) -> None:
        """Keeps labels and predictions of a part as they are before its loss is computed."""
        of_labels, of_predictions = self._axes
        labels, predictions = records_first(labels, of_labels), records_first(predictions, of_predictions)
        labels, predictions = (map_tensors(lambda leaf: leaf.detach().clone(), one) for one in (labels, predictions))
        self._kept = labels, predictions

    def of(self, rows: int, loss: float) -> float:
        """Measures the denominator of the part that was kept, in rows; 1 if the loss is a sum.

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
            anchor = self._made_anchor(targets, given, at)
        except _FlatError as error:
            raise unmeasured(str(error)) from None
        joined, other = anchor.join(later, others, rows - at), self._loss_of(later, others, rows - at)
        reference = LossReference(at, anchor.loss, self._reference.is_sum)
        if reference.denominator(joined, rows - at, other, self._close) != reference.plain(rows - at):
            shapes = [list(leaf.shape[1:]) for leaf in leaves(predictions)]
            raise no_ratio(
                f"a mean by weights, on records of the shapes {shapes} that those of other parts do not have"
            )

    def _made_anchor(self, labels: Tensors, given: Tensors, rows: int) -> _Anchor | _AnchorOfCopy:
        if self._copy is not None:
            return _AnchorOfCopy(self._copy, labels, given, rows)
        return _Anchor(self._loss, labels, given, rows)

    def _loss_of(self, labels: Tensors, given: Tensors, rows: int) -> float:
        return self._copy.of(labels, given)[0] if self._copy else _run(self._loss, labels, given, rows).loss


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


class LossOfCopy:
    """The loss of a copy of the model, and its gradient on the parameters, for models that compute some of it.

    The copy stays as the model was at first, since a denominator does not depend on parameters, and draws no numbers.

    Args:
        net: the model.
        loss_of: of a model, labels and features, a scalar.
        axes: along which labels and features have their records, which come first here.

    Attributes:
        device: where it computes.

    Raises:
        UserCodeError: the model cannot be copied.
    """

    def __init__(
        self,
        net: nn.Module,
        loss_of: Callable[[nn.Module, Tensors, Tensors], torch.Tensor],
        axes: tuple[Axes, Axes] = ((), ()),
    ) -> None:
        trial = trial_of(net)
        if trial is None:
            raise unmeasured("the model computes some of the loss itself, and cannot be copied")
        # Layers of PyTorch that drop, or normalise by the minibatch, do so in training mode alone.
        for module in trial.modules():
            module.train(not type(module).__module__.startswith("torch.nn."))
        self._trial, self._loss_of, self._axes = trial, loss_of, axes
        self.device = next(trial.parameters()).device
        self._parameters = [one for one in trial.parameters() if one.requires_grad]
        self._wide: bool | None = None  # not known yet

    @contextlib.contextmanager
    def scaled(self, factor: float) -> Iterator[None]:
        """A context in which the parameters are so many times what they are."""
        kept = [one.detach().clone() for one in self._parameters]
        with torch.no_grad():
            torch._foreach_mul_([*self._parameters], factor)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_([*self._parameters], kept)

    def of(self, labels: Tensors, features: Tensors) -> tuple[float, torch.Tensor]:
        """Loss and gradient ``[numbers]`` in 64 bits of some records."""
        given = [as_they_were(one, axes) for one, axes in zip((labels, features), self._axes, strict=True)]
        if self._wide is None:
            # In 64 bits a denominator comes out to the last digit, if the model does not insist on fewer.
            self._wide = True
            with contextlib.suppress(Exception):
                self._trial.double()
                return self.of(labels, features)
            self._wide = False
            self._trial.float()
        kind = torch.float64 if self._wide else None
        own = [
            map_tensors(lambda leaf: leaf.detach().clone().to(kind if leaf.is_floating_point() else None), one)
            for one in given
        ]
        try:
            with torch.enable_grad():
                loss = self._loss_of(self._trial, *own)
        except UserCodeError:
            raise
        except Exception as error:
            raise unmeasured(
                f"the model computes some of the loss itself, which fails on records of two parts ({error})"
            ) from error
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True) if loss.requires_grad else ()
        numbers = [
            _exact((torch.zeros_like(one) if gradient is None else gradient.to_dense()).ravel())
            for one, gradient in zip(self._parameters, found, strict=False)
        ]
        return float(loss.detach()), torch.cat(numbers) if numbers else torch.zeros(1, dtype=torch.float64)


class _AnchorOfCopy:
    """Rows on which the gradient of a model's parameters is known, for others to join; as ``_Anchor``.

    The gradient of the whole lies between those of both: as near to either as it has of the whole denominator.
    """

    def __init__(self, copy: LossOfCopy, labels: Tensors, predictions: Tensors, rows: int) -> None:
        self._copy = copy
        self.labels, self.predictions, self._rows = labels, predictions, rows
        self.loss, self._gradient = copy.of(labels, predictions)
        self._size = float(torch.linalg.vector_norm(self._gradient))
        if not math.isfinite(self.loss + self._size):
            raise _FlatError(f"the loss of the records that were looked at is {self.loss}")
        if not self._size:
            raise _FlatError(NO_OUTPUT)

    def join(self, labels: Tensors, predictions: Tensors, rows: int) -> JoinedLoss:
        """Computes the loss of these and other rows, and of the others.

        Raises:
            _UnlikeError: these have other shapes.
        """
        both = [
            _joined(leaves(own), self._rows, values, rows)
            for own, values in ((self.labels, labels), (self.predictions, predictions))
        ]
        (alone, other), (together, whole) = self._copy.of(labels, predictions), self._copy.of(both[0], both[1])
        mine = self._gradient
        if not math.isfinite(alone):  # no row of the others counts
            share = float(whole @ mine) / self._size**2
            return JoinedLoss(together, share, self._apart(whole - share * mine), alone)
        added = self._apart(whole - mine - other)
        between = mine - other
        length = float(between @ between)
        if length <= (1e-9 * self._size) ** 2:  # rows that are alike
            share = self._rows / (self._rows + rows)
            bend = self._apart(whole - mine)
        else:
            share = float((whole - other) @ between) / length
            bend = self._apart(whole - other - share * between)
        return JoinedLoss(together, 1.0, added, alone) if added < bend else JoinedLoss(together, share, bend, alone)

    def _apart(self, difference: torch.Tensor) -> float:
        apart = float(torch.linalg.vector_norm(difference)) / self._size
        return apart if math.isfinite(apart) else math.inf


def goes_by_no_rows(loss: _Loss, labels: Tensors, predictions: Tensors, rows: int, axes: Axes) -> bool:
    """Whether a loss goes by outputs that have no row for each record: then the model computes some of it itself."""
    given = map_tensors(lambda leaf: leaf.detach().clone(), predictions)
    canonical = leaves(records_first(given, axes))
    floats = [
        leaf
        for leaf, first in zip(leaves(given), canonical, strict=True)
        if leaf.is_floating_point() and not _per_record(first, rows)
    ]
    if not floats:
        return False
    with torch.enable_grad():
        for leaf in floats:
            leaf.requires_grad_()
        found = loss(map_tensors(lambda leaf: leaf.detach().clone(), labels), given)
    if not found.requires_grad:
        return False
    return any(one is not None and bool(one.any()) for one in torch.autograd.grad(found, floats, allow_unused=True))


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


def _is_turned(leaf: torch.Tensor) -> bool:
    return bool(leaf.ndim) and leaf.is_floating_point()


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
