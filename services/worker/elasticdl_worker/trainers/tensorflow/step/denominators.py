"""Measures the denominator of a Keras loss (``loss_denominators``), within the compiled step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.loss_denominators import (
    CLOSE,
    CLOSE_OF_HALF,
    NO_OUTPUT,
    FlatLossError,
    JoinedLoss,
    LossReference,
    no_ratio,
    reference_rows,
    require_mean,
    unmeasured,
)
from elasticdl_worker.trainers.tensorflow.compiled import mask_of, set_mask
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.metrics import cut
from elasticdl_worker.trainers.tensorflow.types import KerasModel, Labels, Predictions, Tensor

_Loss = Callable[[Labels, Predictions], Tensor]


class _Anchor(NamedTuple):
    """Rows on which the gradient of the loss is known, for others to join."""

    labels: list[Tensor]
    predictions: list[Tensor]
    rows: int
    loss: float
    gradients: list[Tensor]


class KerasDenominators:
    """The denominators of a loss on parts of an update.

    The reference must be the same in all members, to the last bit.

    Args:
        loss: of labels and predictions, without regularisation, a scalar.
        labels: of the first records.
        predictions: of these; any that the model may give.
        rows: how many there are.

    Raises:
        UserCodeError: no denominator makes the losses of parts that of the whole.
    """

    def __init__(self, loss: _Loss, labels: Labels, predictions: Predictions, rows: int) -> None:
        self._loss = loss
        halves = any(leaf.dtype.size < 4 and leaf.dtype.is_floating for leaf in tf.nest.flatten(predictions))
        self._close = CLOSE_OF_HALF if halves else CLOSE
        self._adds_by_batch = False
        self._weighs = False
        numbers = sum(int(tf.size(leaf)) // rows for leaf in tf.nest.flatten(predictions))
        kept = reference_rows(rows, numbers)
        self._anchor, at = self._first_anchor(labels, predictions, rows, kept)
        twice = self._values(self._rows_of(labels, at, kept), self._rows_of(predictions, at, kept))
        self._reference = LossReference.of(kept, self._anchor.loss, _joined_loss(twice))
        start = 0 if at else kept
        if others := min(start + kept, rows) - start if rows > 1 else 0:
            targets, given = self._rows_of(labels, start, others), self._rows_of(predictions, start, others)
            turned = tf.nest.map_structure(_turned, given)
            found = [self.of(self._values(targets, one), others, targets, one) for one in (given, turned)]
            self._reference.check_same(found[0], found[1])

    @property
    def adds(self) -> bool:
        """Whether the loss is a sum over records: then gradients of parts add up as they are."""
        return self._reference.is_sum

    @property
    def close(self) -> float:
        """The part by which values may be off by rounding."""
        return self._close

    def note_added(self, net: KerasModel) -> bool:
        """Notes whether a model that was just called in training adds what it computes of records to its loss.

        Returns:
            Whether that is to be compared with the loss (``added_losses``); to sums regularisers are added, too.
        """
        self._adds_by_batch = any(getattr(layer, "_losses", None) for layer in net._flatten_layers())
        return self._adds_by_batch or (self.adds and bool(net.losses))

    def measure(self, labels: Labels, predictions: Predictions) -> Tensor:
        """The loss of a part, and with the reference: value, share and bend; to be called while tracing.

        A share below 0 says that the records have other shapes than those of the reference.
        """
        alike: list[Tensor] = []
        for own, leaf in self._pairs(labels, predictions):
            if own.shape.rank != leaf.shape.rank:
                return self._unlike(labels, predictions)
            if not own.shape.rank:
                continue
            sizes = leaf.shape.as_list()[1:]
            if None in sizes:
                alike.append(tf.reduce_all(tf.equal(tf.shape(own)[1:], tf.shape(leaf)[1:])))
            elif own.shape.as_list()[1:] != sizes:
                return self._unlike(labels, predictions)
        if not alike:
            return self._values(labels, predictions)
        return tf.cond(
            tf.reduce_all(tf.stack(alike)),
            lambda: self._values(labels, predictions),
            lambda: self._unlike(labels, predictions),
        )

    def of(self, measured: Tensor, rows: int, labels: Labels, predictions: Predictions) -> float:
        """The denominator of a part, in rows; 1 if the loss is a sum.

        Args:
            measured: what ``measure`` gave.
            rows: of the part.
            labels: of the part.
            predictions: of the part.

        Raises:
            UserCodeError: the loss of the whole cannot be made of those of the parts.
        """
        loss, _, share, _ = np.asarray(measured).tolist()
        if share < 0.0:
            if rows > 1 or self._weighs:
                require_mean(cut, self._loss, labels, predictions, rows, loss, self._close)
            return self._reference.plain(rows)
        denominator = self._reference.denominator(_joined_loss(measured), rows, loss, self._close)
        self._weighs = self._weighs or denominator != self._reference.plain(rows)
        if self._adds_by_batch and denominator != self._reference.plain(rows):
            raise no_ratio("a mean by weights, to which the model adds what it computes of a minibatch (add_loss)")
        return denominator

    def _first_anchor(self, labels: Labels, predictions: Predictions, rows: int, kept: int) -> tuple[_Anchor, int]:
        """The first so many rows on which the loss has a gradient (not all are masked), and where they begin."""
        why = ""
        for start in range(0, rows - kept + 1, kept):
            targets = tf.nest.flatten(self._rows_of(labels, start, kept))
            given = tf.nest.flatten(self._rows_of(predictions, start, kept))
            anchor = _Anchor(targets, given, kept, 0.0, [])
            loss, gradients = self._run(anchor, labels, predictions, alone=True)
            squares = sum(float(tf.reduce_sum(tf.square(one))) for one in gradients)
            if math.isfinite(float(loss) + squares) and squares:
                return anchor._replace(loss=float(loss), gradients=gradients), start
            why = why or (
                NO_OUTPUT
                if math.isfinite(float(loss))
                else f"the loss of the records that were looked at is {float(loss)}"
            )
        raise unmeasured(f"{why} (outputs: {_shapes(predictions)})", FlatLossError)

    def _values(self, labels: Labels, predictions: Predictions) -> Tensor:
        anchor = self._anchor
        loss = tf.cast(self._loss(labels, predictions), tf.float64)
        together, gradients = self._run(anchor, labels, predictions, alone=False)
        pairs = list(zip(anchor.gradients, gradients, strict=True))
        squares = [tf.reduce_sum(tf.square(one)) for one in anchor.gradients]
        total = tf.add_n(squares)
        share = tf.add_n([tf.reduce_sum(one * other) for one, other in pairs]) / total
        bends = [
            tf.reduce_sum(tf.square(other - share * one)) / tf.maximum(square, 1e-12 * total)
            for (one, other), square in zip(pairs, squares, strict=True)
        ]
        # What is no number is no share: below 0 is for other shapes.
        finite = tf.math.is_finite(share)
        return tf.stack(
            [
                loss,
                tf.cast(together, tf.float64),
                tf.where(finite, tf.maximum(share, 0.0), 0.0),
                tf.where(finite, tf.sqrt(tf.reduce_max(tf.stack(bends))), np.inf),
            ]
        )

    def _unlike(self, labels: Labels, predictions: Predictions) -> Tensor:
        loss = tf.cast(self._loss(labels, predictions), tf.float64)
        return tf.stack([loss, *(tf.constant(value, tf.float64) for value in (0.0, -1.0, 0.0))])

    def _run(
        self, anchor: _Anchor, labels: Labels, predictions: Predictions, *, alone: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss, and its gradient on the outputs of the reference."""
        own = [_wide(leaf) for leaf in anchor.predictions]
        watched = [leaf for leaf in own if leaf.dtype.is_floating and _has_rows(leaf, anchor.rows)]
        if not watched:
            raise unmeasured(f"{NO_OUTPUT} (outputs: {_shapes(predictions)})")
        try:
            with tf.GradientTape() as tape:
                tape.watch(watched)
                given = self._joined(own, anchor.predictions, anchor.rows, predictions, alone)
                targets = self._joined(anchor.labels, anchor.labels, anchor.rows, labels, alone)
                loss = self._loss(targets, given)
            found = tape.gradient(loss, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        except UserCodeError:
            raise
        except Exception as error:
            shapes = _shapes(predictions)
            raise unmeasured(
                f"the loss fails on records of two parts, which meet in the first dimension of the outputs {shapes} "
                f"({error})"
            ) from error
        return loss, [tf.cast(tf.convert_to_tensor(one), tf.float64) for one in found]

    def _joined(
        self, own: list[Tensor], masked: list[Tensor], rows: int, values: Predictions | Labels, alone: bool
    ) -> Predictions:
        """Nested tensors, with the rows of the reference before theirs, and masks."""
        made: list[Any] = []
        for mine, of_mask, theirs in zip(own, masked, tf.nest.flatten(values), strict=True):
            if theirs is None:  # labels, where the loss takes none
                made.append(theirs)
                continue
            if alone:
                made.append(tf.identity(mine))
                parts = [mask_of(of_mask)]
            elif not _has_rows(mine, rows):
                made.append(theirs)
                parts = [mask_of(theirs)]
            else:
                made.append(tf.concat([mine, tf.cast(theirs, mine.dtype)], 0))
                parts = [mask_of(of_mask), mask_of(theirs)]
            masks = [mask for mask in parts if mask is not None]
            if masks and len(masks) == len(parts):
                set_mask(made[-1], masks[0] if alone else tf.concat(masks, 0) if len(masks) > 1 else masks[0])
        return tf.nest.pack_sequence_as(values, made)

    def _rows_of(self, values: Labels | Predictions, start: int, rows: int) -> Predictions:
        """Some rows of what has rows."""

        def part(leaf: Tensor) -> Tensor:
            if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor):
                raise unmeasured("labels or outputs are sparse or ragged")
            if leaf is None or not leaf.shape.rank:
                return leaf
            found, mask = leaf[start : start + rows], mask_of(leaf)
            if mask is not None:
                set_mask(found, mask[start : start + rows])
            return found

        return tf.nest.map_structure(part, values)

    def _pairs(self, labels: Labels, predictions: Predictions) -> list[tuple[Tensor, Tensor]]:
        own = [*self._anchor.labels, *self._anchor.predictions]
        theirs = [*tf.nest.flatten(labels), *tf.nest.flatten(predictions)]
        return [(one, other) for one, other in zip(own, theirs, strict=True) if other is not None]


class OfAddedAlone(KerasDenominators):
    """The denominators of a loss that is 0 but for what the model adds, which is known to be means, or sums.

    Args:
        loss: of labels and predictions, without regularisation, a scalar.
        sums: whether sums over records are added.
    """

    def __init__(self, loss: _Loss, *, sums: bool) -> None:
        self._loss = loss
        self._sums = sums
        self._close = CLOSE
        self._adds_by_batch = True

    @property
    def adds(self) -> bool:
        """Whether sums over records are added."""
        return self._sums

    def measure(self, labels: Labels, predictions: Predictions) -> Tensor:
        """The loss of a part, to be called while tracing."""
        return self._unlike(labels, predictions)

    def of(self, measured: Tensor, rows: int, labels: Labels, predictions: Predictions) -> float:
        """The denominator of a part.

        Raises:
            UserCodeError: the loss is no longer 0.
        """
        loss = float(np.asarray(measured)[0])
        if loss:
            raise no_ratio(
                f"0 on the first records, but for what the model adds (add_loss), and {loss:.6g} on others"
            )
        return 1.0 if self._sums else float(rows)


def _shapes(values: Predictions) -> str:
    return ", ".join(str(list(leaf.shape)) for leaf in tf.nest.flatten(values))


def _joined_loss(measured: Tensor) -> JoinedLoss:
    _, loss, share, bend = np.asarray(measured).tolist()
    return JoinedLoss(loss, share, bend)


def _turned(leaf: Tensor) -> Tensor:
    """The rows of an output in the opposite order, its mask as it is."""
    if not leaf.shape.rank or not leaf.dtype.is_floating:
        return leaf
    found, mask = tf.reverse(leaf, [0]), mask_of(leaf)
    if mask is not None:
        set_mask(found, mask)
    return found


def _wide(leaf: Tensor) -> Tensor:
    return tf.cast(leaf, tf.float32) if leaf.dtype.is_floating and leaf.dtype.size < 4 else tf.identity(leaf)


def _has_rows(leaf: Tensor, rows: int) -> bool:
    return bool(leaf.shape.rank) and leaf.shape[0] == rows
