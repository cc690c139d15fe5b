"""The map from ids to rows of one table, grown without a pause."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.store.arena import Arena

_FIRST_ENTRIES = 1 << 10
_MAX_LOAD = 0.8
_MOVED_PER_INSERT = 8
_MOVED_AT_LEAST = 1 << 14


class IdMap:
    """Gives each id that it sees the next row number. Not safe for threads: its owner has a lock.

    When the map is full a map of twice the size takes its place at once; the entries of the old one follow a few at
    a time with later calls, and until then lookups ask both.

    Args:
        kernels: the kernels.
        max_bytes: room for ids; the machine's memory by default.
    """

    def __init__(self, kernels: KernelSet, max_bytes: int | None = None) -> None:
        self._kernels = kernels
        self._arena = Arena(1, np.int64, max_bytes)
        self.keys = cast("NDArray[np.int64]", self._arena.array.reshape(-1))
        """The id of each row."""
        self.count = 0
        """Number of rows."""
        self._new = np.zeros(_FIRST_ENTRIES, np.uint64)
        self._old = np.zeros(0, np.uint64)
        self._moved = 0
        self._to_move = 0

    @property
    def nbytes(self) -> int:
        """Memory of ids and entries."""
        return 8 * self.count + self._new.nbytes + self._old.nbytes

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of ids, -1 where they have none."""
        rows = np.empty(len(ids), np.int64)
        self._kernels.find(self._new, self._old, self.keys, ids, rows)
        return rows

    def find_or_insert(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of ids; those that have none get rows ``count``, ``count + 1``, ... in order.

        Raises:
            ElasticDLError: the table is full.
        """
        if self.count + len(ids) > self._arena.max_rows:
            raise ElasticDLError(
                f"an embedding table has no room beyond {self._arena.max_rows:,} rows",
                fix="use more parameter servers (--num_ps_pods) or machines with more memory",
            )
        self._make_room(len(ids))
        rows = np.empty(len(ids), np.int64)
        self.count = int(self._kernels.find_or_insert(self._new, self._old, self.keys, ids, rows, self.count))
        return rows

    def _make_room(self, extra: int) -> None:
        self._move(max(_MOVED_AT_LEAST, _MOVED_PER_INSERT * extra))
        needed = self.count + extra
        if needed <= _MAX_LOAD * len(self._new):
            return
        self._move(self.count)
        size = len(self._new)
        while needed > _MAX_LOAD * size:
            size *= 2
        self._old, self._new = self._new, np.zeros(size, np.uint64)
        self._moved, self._to_move = 0, self.count
        self._move(_MOVED_AT_LEAST)

    def _move(self, rows: int) -> None:
        if not len(self._old):
            return
        stop = min(self._moved + rows, self._to_move)
        self._kernels.migrate(self._new, self.keys, self._moved, stop)
        self._moved = stop
        if stop == self._to_move:
            self._old = np.zeros(0, np.uint64)
