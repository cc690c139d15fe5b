"""Embedding rows that a worker sees often, kept for a bounded number of its own updates.

Gradients are pushed for all rows as ever, so the parameter servers miss nothing; only what is *read* may be old. A
row that misses more than the bound's number of updates is pulled again.

The store is direct-mapped: an id has one place, given by its hash, and a later id with the same place takes it over.
So a look-up is a few numpy operations over all ids, the memory is bounded, and nothing is ever sorted or rebuilt. An
id is kept from its second miss in a row of its place on: most ids of a skewed distribution come once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import NO_ID
from elasticdl_runtime.partition import hash_ids

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


@dataclass(slots=True)
class _Places:
    """One table's places: the id whose row is there, the id that missed there last, and how old the row is."""

    keys: Ids
    missed: Ids
    born: Ids
    values: Rows


@dataclass(frozen=True, slots=True)
class Found:
    """The known rows of some ids.

    Attributes:
        missing: positions of the ids that must be pulled.
        rows: float32 ``[n, dim]``, set where they are known.
    """

    missing: NDArray[np.intp]
    rows: Rows


class HotRows:
    """The rows that one worker keeps. Used from the event loop only.

    Args:
        staleness: how many own updates a row may miss, at least 1.
        max_rows: rows kept of each table, rounded up to a power of two.

    Attributes:
        asked: ids looked up so far.
        hits: ids whose rows were known.
        epoch: grows when everything is forgotten.
    """

    def __init__(self, staleness: int, max_rows: int) -> None:
        self.asked = self.hits = self.epoch = 0
        self._staleness = staleness
        self._size = 1 << max(0, max_rows - 1).bit_length()
        self._tables: dict[str, _Places] = {}

    @property
    def nbytes(self) -> int:
        """Memory taken."""
        return sum(t.values.nbytes + 3 * t.keys.nbytes for t in self._tables.values())

    def forget(self) -> None:
        """Forgets all rows: they are of parameters that are no more."""
        self.epoch += 1
        self._tables.clear()

    def find(self, table: str, ids: Ids, dim: int, pushes: int) -> Found:
        """Looks rows up.

        Args:
            table: the table.
            ids: int64 ``[n]``, unique.
            dim: length of the table's vectors.
            pushes: own pushes begun so far.
        """
        out = np.empty((len(ids), dim), np.float32)
        places = self._tables.get(table)
        self.asked += len(ids)
        if places is None:
            return Found(np.arange(len(ids)), out)
        at = self._places_of(ids)
        known = (places.keys[at] == ids) & (pushes - places.born[at] <= self._staleness)
        hits = np.flatnonzero(known)
        out[hits] = places.values[at[hits]]
        self.hits += len(hits)
        return Found(np.flatnonzero(~known), out)

    def keep(self, table: str, ids: Ids, rows: Rows, pushes: int) -> None:
        """Keeps rows that were pulled, if their ids missed before.

        Args:
            table: the table.
            ids: int64 ``[n]``, unique.
            rows: float32 ``[n, dim]``.
            pushes: own pushes that had been answered when the pull was sent, which the rows surely contain.
        """
        places = self._tables.get(table)
        if places is None:
            size = self._size
            places = self._tables[table] = _Places(
                np.full(size, NO_ID), np.full(size, NO_ID), np.zeros(size, np.int64), _zeros(size, rows.shape[1])
            )
        at = self._places_of(ids)
        present = places.keys[at] == ids
        # Pulls may overtake each other: a younger row stays.
        chosen = np.flatnonzero(np.where(present, places.born[at] <= pushes, places.missed[at] == ids))
        places.missed[at] = ids
        places.keys[at[chosen]] = ids[chosen]
        # Of ids with the same place the last one has it.
        chosen = chosen[places.keys[at[chosen]] == ids[chosen]]
        places.born[at[chosen]] = pushes
        places.values[at[chosen]] = rows[chosen]

    def _places_of(self, ids: Ids) -> NDArray[np.int64]:
        return (hash_ids(ids) & np.uint64(self._size - 1)).astype(np.int64)


def _zeros(size: int, dim: int) -> Rows:
    return np.zeros((size, dim), np.float32)
