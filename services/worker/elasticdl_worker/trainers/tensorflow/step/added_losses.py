"""Terms that a Keras model adds to its loss (``add_loss``, regularisers): whether parts can compute them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.loss_denominators import WHOLE, unmeasured
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Features

TermsOf = Callable[[int, int, bool, int], NDArray[np.float64]]
_BY_THEMSELVES = 4
_DRAWN = 0.3
"""The part by which values may be off that go by random numbers: a sum of two parts is off by more."""
_NOTHING = 1e-9


def check_added(terms_of: TermsOf, records: int, *, sums: bool, close: float) -> None:
    """Refuses what is added otherwise over records than the loss is, by the values that parts of some records have.

    A mean over records may have regularisers besides, which are the same for any records; to a sum sums are added. Of
    values that go by random numbers only the size tells.

    Args:
        terms_of: gives each value that the model adds for the records from one to another, in training mode or not,
            in so many calls.
        records: how many there are.
        sums: whether the loss is a sum over records; else a mean.
        close: how far values may be off by rounding, as part of them.

    Raises:
        UserCodeError: parts would train another objective.
    """
    whole, trained = (terms_of(0, records, training, 1) for training in (False, True))
    training = len(trained) != len(whole)  # what is added in training alone cannot be seen otherwise
    whole = trained if training else whole
    # Two large parts show masks; in records by themselves a root of a mean shows.
    third, few = max(1, records // 3), min(records, _BY_THEMSELVES)
    if np.array_equal(whole, terms_of(0, records, training, 2)):
        for ends in ([0, third, records], [*range(few + 1)]):
            _compare(terms_of, ends, training, sums=sums, close=close)
    else:
        _compare(terms_of, [0, third, records], training, sums=sums, close=_DRAWN)


def _compare(terms_of: TermsOf, ends: list[int], training: bool, *, sums: bool, close: float) -> None:
    records = ends[-1]
    whole = terms_of(0, records, training, 1)
    parts = [(end - start, terms_of(start, end, training, 1)) for start, end in itertools.pairwise(ends)]
    wanted = sum(found if sums else found * (count / records) for count, found in parts)
    allowed = close * np.maximum.reduce([np.abs(found) for _, found in parts]) + _NOTHING
    wrong = np.flatnonzero(~(np.abs(whole - wanted) <= allowed))
    if wrong.size and len(parts) > 1:
        one = wrong[0]
        shown = ", ".join(f"{found[one]:.6g}" for _, found in parts)
        raise UserCodeError(
            f"what the model adds to the loss (add_loss, a regulariser) is {whole[one]:.6g} on {records} records, "
            f"and {shown} on {len(parts)} parts of them: it is no {'sum' if sums else 'mean'} over records, as the "
            "loss is, and in parts (--microbatches, --grads_to_wait) another objective would be trained than that of "
            "the whole update",
            fix=f"add {'sums' if sums else 'means over records (tf.reduce_mean)'}; or {WHOLE.partition(';')[0]}",
        )


def part_of(features: Features, start: int, end: int) -> Features:
    """The features of some records.

    Raises:
        UserCodeError: they have no records of their own.
    """

    def part(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.concat([[end - start], leaf.dense_shape[1:]], 0)
            return tf.sparse.slice(leaf, tf.one_hot(0, len(leaf.shape), on_value=start, dtype=tf.int64), shape)
        if leaf.shape.rank == 0:
            raise unmeasured("the model adds to its loss (add_loss), and a feature has no value for each record")
        return leaf[start:end]

    return tf.nest.map_structure(part, features)
