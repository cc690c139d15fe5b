"""Changes of a partition's parameters, and how those of several workers become one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_ps.kernels import KernelSet

Rows = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """The update of a slice ``x`` of the model's state: ``keep * x + add``, or the larger or smaller of the two.

    Attributes:
        keep: from 0 (replaced) over the power of a moving average's momentum to 1 (added to); infinite for the
            larger, minus infinite for the smaller of ``x`` and ``add``.
        add: ``[size]``, of the state's dtype.
    """

    keep: float
    add: NDArray[Any]

    def apply(self, values: NDArray[Any]) -> None:
        """Changes a slice in place; a value that nobody else has changed meanwhile comes out as the worker had it."""
        if math.isinf(self.keep):
            (np.maximum if self.keep > 0 else np.minimum)(values, self.add, out=values)
        elif self.keep == 1:
            values += self.add
        elif self.keep == 0:
            values[...] = self.add
        else:
            # In double precision, so that only the result is rounded, as in the worker.
            values[...] = self.keep * values.astype(np.float64) + self.add


@dataclass(frozen=True, slots=True)
class Changes:
    """Checked changes by one push, for one partition.

    Attributes:
        dense: by trained parameter: ``[size]`` gradient.
        rows: by table: unique ids ``[n]`` and gradients ``[n, dim]``.
        state: by parameter that is state.
        pulled_dense: the values that ``dense`` was computed on, where delays are compensated.
        pulled_rows: the same of ``rows``.
        records: how many records they are of.
        task: round and index of the training task whose records they are; None if of none.
        steps: how many minibatches' gradients they sum, for weight decay.
        weight: of the gradients in a round; infinite where they add up; None for the records.
    """

    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    state: Mapping[str, StateUpdate] = field(default_factory=dict)
    records: int = 1
    pulled_dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    pulled_rows: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    task: tuple[int, int] | None = None
    steps: int = 1
    weight: float | None = None


def merge(members: Sequence[Changes], kernels: KernelSet) -> Changes:
    """The changes of a round as one, as if of one minibatch.

    Of state, moving averages take the mean, weighted by records; counters are added up, what is replaced is the last
    member's, and of a largest or smallest value it is the largest or smallest one.

    Args:
        members: at least one.
        kernels: the kernels.

    Returns:
        The changes; gradients are as many times the gradient of the round as there are members.
    """
    if len(members) == 1:
        return members[0]
    records = sum(member.records for member in members)
    weights = _weights(members)
    names = dict.fromkeys(name for member in members for name in member.state)
    return Changes(
        _sum_dense(members, weights),
        _sum_rows(members, weights, kernels),
        {name: _merge_state(name, members) for name in names},
        records,
    )


def _weights(members: Sequence[Changes]) -> list[float]:
    """The factors that make gradients into so many times the round's as there are members."""
    given = [float(member.records) if member.weight is None else member.weight for member in members]
    total = sum(given)
    if math.isinf(total):
        return [float(len(members))] * len(members)
    # Without any weight all gradients are 0.
    return [weight * len(members) / (total or 1.0) for weight in given]


def _sum_dense(members: Sequence[Changes], weights: Sequence[float]) -> dict[str, NDArray[Any]]:
    total: dict[str, NDArray[Any]] = {}
    for member, weight in zip(members, weights, strict=True):
        for name, gradient in member.dense.items():
            weighted = gradient if weight == 1 else gradient * np.float32(weight)
            if name in total:
                total[name] += weighted
            else:
                total[name] = gradient.copy() if weight == 1 else weighted
    return total


def _sum_rows(members: Sequence[Changes], weights: Sequence[float], kernels: KernelSet) -> dict[str, Rows]:
    result = {}
    for name in dict.fromkeys(name for member in members for name in member.rows):
        parts = [(m.rows[name], weight) for m, weight in zip(members, weights, strict=True) if name in m.rows]
        ids = np.concatenate([ids for (ids, _), _ in parts])
        grads = np.concatenate([g if weight == 1 else g * np.float32(weight) for (_, g), weight in parts])
        out_ids, out_grads = np.empty_like(ids), np.empty_like(grads)
        count = kernels.merge_rows(ids, grads, out_ids, out_grads)
        result[name] = (out_ids[:count], out_grads[:count])
    return result


def _merge_state(name: str, members: Sequence[Changes]) -> StateUpdate:
    changes = [(member.state[name], member.records) for member in members if name in member.state]
    if all(0 < change.keep < 1 for change, _ in changes):
        records = sum(count for _, count in changes)
        keep = sum(change.keep * count for change, count in changes) / records
        add = sum(change.add.astype(np.float64) * (count / records) for change, count in changes)
        return StateUpdate(keep, np.asarray(add).astype(changes[0][0].add.dtype))
    whole = changes[0][0]
    for change, _ in changes[1:]:
        add = whole.add.copy()
        change.apply(add)
        whole = StateUpdate(change.keep if math.isinf(change.keep) else whole.keep * change.keep, add)
    return whole
