"""Minibatches of a local run that make one update together, merged as parameter servers merge those of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.state import ModelState
from elasticdl_worker.trainers.tensorflow.step.programs import sum_duplicates
from elasticdl_worker.trainers.tensorflow.types import Predictions, Tensor, Variable


class RoundPart(NamedTuple):
    """The results of a minibatch.

    Attributes:
        loss: with regularisation.
        bad: which of the loss (0) and the gradients is not finite; -1 for none.
        predictions: in training mode.
        gradients: of the variables that have one.
        measured: what ``KerasDenominators`` makes the denominator of the loss of.
        added: what each tensor of the state became besides what it kept.
    """

    loss: Tensor
    bad: Tensor
    predictions: Predictions
    gradients: list[Tensor]
    measured: Tensor
    added: list[Tensor]


class KerasLocalRound:
    """The gradients of the present update: they weigh what the denominators of their losses do.

    Args:
        state: of the model.
    """

    def __init__(self, state: ModelState) -> None:
        self._state = state
        self._forget()

    @property
    def is_open(self) -> bool:
        """Whether there are gradients that no update was made of."""
        return bool(self._parts)

    def add(
        self, records: int, weight: float, part: RoundPart, before: Sequence[Tensor], keeps: Mapping[str, float]
    ) -> None:
        """Takes a minibatch.

        Args:
            records: of the minibatch.
            weight: of its gradients.
            part: its results.
            before: the state as it was before the minibatch.
            keeps: the share of its old value that each tensor of the state has kept.
        """
        # Where no record counts a gradient may be NaN.
        self._parts.append([_times(one, weight) if weight else _nothing(one) for one in part.gradients])
        self._weight += weight
        for (name, rule), old, added in zip(self._state.rules.items(), before, part.added, strict=True):
            if rule is Merge.AVERAGE and keeps[name] < 1:
                self._before.setdefault(name, old)
                self._averages.setdefault(name, []).append((records, keeps[name], added))

    def close(self, variables: Sequence[Variable], *, adds: bool) -> list[Tensor]:
        """The gradients of the update, and begins anew.

        Args:
            variables: that they are of.
            adds: whether the loss is a sum over records.
        """
        whole = 1.0 if adds else self._weight or 1.0
        made = [
            _sum(list(parts), variable, whole)
            for parts, variable in zip(zip(*self._parts, strict=True), variables, strict=True)
        ]
        for name, changes in self._averages.items():
            records = sum(count for count, _, _ in changes)
            old = self._before[name]
            keep = sum(kept * count for count, kept, _ in changes) / records
            add = tf.add_n([tf.cast(added, tf.float64) * (count / records) for count, _, added in changes])
            self._state.variables[name].assign(tf.cast(keep * tf.cast(old, tf.float64) + add, old.dtype))
        self._forget()
        return made

    def _forget(self) -> None:
        self._parts: list[list[Tensor]] = []
        self._weight = 0.0
        self._before: dict[str, Tensor] = {}
        self._averages: dict[str, list[tuple[int, float, Tensor]]] = {}


def _times(gradient: Tensor, factor: float) -> Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices)
    return gradient * factor


def _nothing(gradient: Tensor) -> Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.zeros_like(gradient.values), gradient.indices)
    return tf.zeros_like(gradient)


def _sum(parts: list[Any], variable: Variable, whole: float) -> Tensor:
    """The sum of a variable's gradients, divided; of rows each id once."""
    if not isinstance(parts[0], tf.IndexedSlices):
        return tf.add_n(parts) / whole
    values = tf.concat([one.values for one in parts], 0) / whole
    ids = tf.concat([one.indices for one in parts], 0)
    return sum_duplicates(tf.IndexedSlices(values, ids, tf.shape(variable)))
