"""Finds how state is merged of which no layer says it, by what a training step on a few records makes of it.

Run on both halves of the records and on all of them, and on all of them once more, a step shows

- a largest or smallest value: that of both halves, in either order, and a half that comes again changes nothing;
- a count of updates: an integer that moves alike by either half and by all of them;
- a sum over records: the moves by the halves are together that by all of them;
- a last value: that of the second half;
- a statistic: records that are repeated make the same of it (but for some degrees of freedom of a variance).

What is none of these, such as a decaying sum or a place in a queue, no rule makes of an update's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_worker.trainers.state_merging import Merge

Values = Mapping[str, NDArray[Any]]
_CLOSE = 1e-4
_ALIKE = 0.25
"""The part of a statistic's move that twice as many records may make, of a variance by its degrees of freedom."""


@np.errstate(invalid="ignore", over="ignore")
def learn_by_trial(
    after: Callable[..., Values],
    cut: Callable[[int, int], Any],
    repeat: Callable[[int], Any],
    records: int,
    *,
    draws: bool,
) -> tuple[dict[str, Merge], set[str]]:
    """The rules of the state that moves, and the names of what has none.

    Args:
        after: gives the state after training steps on some minibatches, one after the other, from the beginning.
        cut: gives some of the records as a minibatch.
        repeat: gives all of them several times, as one.
        records: how many there are.
        draws: whether the model draws random numbers, which no two minibatches have alike.
    """
    if records < 2:
        return {}, set()
    first, second, whole = cut(0, records // 2), cut(records // 2, records), cut(0, records)
    old, one, other = after(), after(first), after(second)
    moved = [name for name in old if not (_equal(old[name], one[name]) and _equal(old[name], other[name]))]
    if not moved:
        return {}, set()
    both, turned, twice = after(first, second), after(second, first), after(first, first)
    rules: dict[str, Merge] = {}
    for name in moved:
        for rule, larger in ((Merge.MAX, np.maximum), (Merge.MIN, np.minimum)):
            wanted = larger(one[name], other[name])
            grows = _equal(larger(old[name], one[name]), one[name])
            alike = _equal(both[name], wanted) and _equal(turned[name], wanted)
            if grows and alike and _equal(twice[name], one[name]):
                rules[name] = rule
                break
    rest = [name for name in moved if name not in rules]
    if not rest:
        return rules, set()
    every = after(whole)
    looks = [(old, one, other, every), (every, after(whole, first), after(whole, second), after(whole, whole))]
    for name in rest:
        found = _rule([[at[name] for at in look] for look in looks])
        if found is not None:
            rules[name] = found
    rest = [name for name in rest if name not in rules]
    if not rest or draws:
        return rules, set()
    try:
        more, most = after(repeat(2)), after(repeat(4))
    except Exception:  # a queue that has no room for them
        return rules, set(rest)
    return rules, {name for name in rest if not _is_statistic(old[name], more[name], most[name])}


def _rule(looks: Sequence[Sequence[NDArray[Any]]]) -> Merge | None:
    """The rule by the state before, after either half and after all of the records, from two beginnings."""
    counts = looks[0][0].dtype.kind in "iu"
    if counts and all(_equal(one, other) and _equal(one, every) for _, one, other, every in looks):
        return Merge.ONCE
    if all(_adds_up(*look) for look in looks):
        return Merge.SUM
    if all(_equal(every, other) and not _equal(every, one) for _, one, other, every in looks):
        return Merge.LAST
    return None


def _adds_up(*look: NDArray[Any]) -> bool:
    wide = [value.astype(np.float64 if value.dtype.kind == "f" else np.int64) for value in look]
    old, one, other, every = wide
    if old.dtype.kind == "i":
        return _equal(every - old, (one - old) + (other - old))
    size = max(float(np.max(np.abs(value), initial=0.0)) for value in wide)
    return bool(np.allclose(every - old, (one - old) + (other - old), rtol=_CLOSE, atol=1e-6 * size))


def _is_statistic(old: NDArray[Any], more: NDArray[Any], most: NDArray[Any]) -> bool:
    """Whether repeated records make nothing else of it; true where nothing can be told."""
    if old.dtype.kind != "f":
        return False
    moved, apart = most.astype(np.float64) - old, most.astype(np.float64) - more
    size, move = float(np.linalg.norm(old)), float(np.linalg.norm(moved))
    return not np.isfinite(move) or move <= 1e-5 * size or float(np.linalg.norm(apart)) <= _ALIKE * move


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.array_equal(one, other))
