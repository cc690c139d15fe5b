"""Ids cut over the parameter servers: once, however many tables and calls have the same ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_runtime.partition import ps_of_ids

_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class Split:
    """Ids cut over the PS.

    Attributes:
        ids: the ids, int64 ``[n]``.
        chosen: for each PS the positions of its ids; None means all of them.
        parts: for each PS its ids.
    """

    ids: NDArray[np.int64]
    chosen: Sequence[NDArray[np.intp] | None]
    parts: Sequence[NDArray[np.int64]]


class Splits:
    """Cuts ids, and remembers the last ones: a step pushes to the rows that it pulled.

    Args:
        num_ps: how many PS.
    """

    def __init__(self, num_ps: int) -> None:
        self._num_ps = num_ps
        self._known: deque[tuple[bytes, Split]] = deque(maxlen=_REMEMBERED)

    def cut(self, ids: NDArray[np.int64]) -> Split:
        """Cuts ids, int64 ``[n]``; for ids that were cut lately it is the same object as then."""
        wanted = np.ascontiguousarray(ids, np.int64)
        if self._num_ps == 1:
            return Split(wanted, [None], [wanted])
        # By content: the caller may have filled the array anew since.
        content = wanted.tobytes()
        for known, split in self._known:
            if known == content:
                return split
        owner = ps_of_ids(wanted, self._num_ps)
        chosen = [np.flatnonzero(owner == index) for index in range(self._num_ps)]
        split = Split(np.frombuffer(content, np.int64), chosen, [wanted[part] for part in chosen])
        self._known.appendleft((content, split))
        return split

    def cut_all(self, ids: Mapping[str, NDArray[np.int64]]) -> dict[str, Split]:
        """Cuts the ids of several tables; those with one array have one split."""
        splits: dict[str, Split] = {}
        before: NDArray[np.int64] | None = None
        split: Split | None = None
        for table, wanted in ids.items():
            if split is None or wanted is not before:
                before, split = wanted, self.cut(wanted)
            splits[table] = split
        return splits


def distinct(splits: Mapping[str, Split]) -> tuple[list[Split], tuple[int, ...]]:
    """The splits, each once, and for each table the number of its split."""
    once: list[Split] = []
    numbers: list[int] = []
    for split in splits.values():
        for number, other in enumerate(once):
            if other is split:
                numbers.append(number)
                break
        else:
            numbers.append(len(once))
            once.append(split)
    return once, tuple(numbers)
