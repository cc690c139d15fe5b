"""Rows of a table as they were at a cut, while updates and evictions go on."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import NO_ID
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.id_map import IdMap

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class Overlay:
    """Copies of the rows that have changed or left since a cut, by id. Its table's lock guards it.

    Args:
        kernels: the kernels.
        present: the table's map at the cut.
        width: columns kept of each row.

    Attributes:
        rows: number of rows at the cut.
        stop: row numbers at the cut were below this.
    """

    def __init__(self, kernels: KernelSet, present: IdMap, width: int) -> None:
        self.rows = present.live
        self.stop = present.count
        self.width = width
        self._kernels = kernels
        # No more than the rows at the cut are ever copied.
        self._arena = Arena(width, np.float32, max(1, self.rows) * width * 4)
        self._saved = IdMap(kernels, (self._arena,))
        self._gone = present.keys[: self.stop] == NO_ID if present.free_count else np.zeros(0, np.bool_)
        self._written = 0
        self._left: list[Ids] = []

    @property
    def _copies(self) -> Floats:
        return cast("Floats", self._arena.array)

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return self._saved.nbytes + self._saved.count * self.width * 4 + self._gone.nbytes

    def require(self, number: int) -> None:
        """Makes room for so many rows that may change, as far as they are not kept already.

        Raises:
            ElasticDLError: there is no memory.
        """
        self._saved.require_rows(min(number, self.rows - self._saved.count), exactly=True)

    def save(self, arena: Floats, rows: Ids, ids: Ids) -> None:
        """Keeps rows that are about to change, unless they are kept already or newer than the cut."""
        there = self._there(rows)
        if not there.all():
            rows, ids = rows[there], ids[there]
        fresh = np.flatnonzero(self._saved.find(ids) < 0)
        before = self._saved.count
        self._saved.insert(ids[fresh])
        self._kernels.gather(arena, rows[fresh], self._copies[before : self._saved.count])

    def leave(self, arena: Floats, rows: Ids, ids: Ids) -> None:
        """Keeps rows that are about to be given to other ids."""
        self.save(arena, rows, ids)
        self._left.append(ids[self._there(rows) & (rows >= self._written)])
        if not len(self._gone):
            self._gone = np.zeros(self.stop, np.bool_)
        self._gone[rows[rows < self.stop]] = True

    def read(self, arena: Floats, ids: Ids, rows: Ids, out: Floats) -> NDArray[np.bool_]:
        """Copies rows as they were.

        Args:
            arena: the rows as they are.
            ids: ``[n]``.
            rows: where they are now, -1 for nowhere.
            out: ``[n, width]``; stays as it is where there was no row at the cut.

        Returns:
            Bool ``[n]``: whether there was one.
        """
        kept = self._saved.find(ids)
        unchanged = (kept < 0) & self._there(rows)
        self._kernels.gather(arena, np.where(unchanged, rows, -1), out)
        self._kernels.gather(self._copies, kept, out)
        return unchanged | (kept >= 0)

    def block(self, arena: Floats, keys: Ids, stop: int) -> tuple[Ids, Floats]:
        """Ids and records of the rows up to ``stop`` that were not given out yet, as they were."""
        rows = np.arange(self._written, stop)
        rows = rows[self._there(rows)]
        self._written = stop
        return self._records(arena, keys[rows].copy(), rows)

    @property
    def left(self) -> Ids:
        """Ids of the rows that left before ``block`` came to them; ``kept`` has their records."""
        return np.concatenate([np.zeros(0, np.int64), *self._left])

    def kept(self, arena: Floats, ids: Ids) -> Floats:
        """Records of rows that left, as they were."""
        return self._records(arena, ids, np.full(len(ids), -1))[1]

    def _records(self, arena: Floats, ids: Ids, rows: Ids) -> tuple[Ids, Floats]:
        records = np.empty((len(ids), self.width), np.float32)
        self.read(arena, ids, rows, records)
        return ids, records

    def _there(self, rows: Ids) -> NDArray[np.bool_]:
        """Whether what the rows hold now they held at the cut."""
        there: NDArray[np.bool_] = (rows >= 0) & (rows < self.stop)
        if len(self._gone):
            there &= ~self._gone[np.where(there, rows, 0)]
        return there
