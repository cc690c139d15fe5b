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
_LOAD_WITH_STALE = 0.5
"""The load to begin with where rows come and go, so that rebuilding stays rare."""
_MOVED_PER_INSERT = 8
_MOVED_AT_LEAST = 1 << 14


class IdMap:
    """Gives each id that it sees the next row number. Not safe for threads: its owner has a lock.

    When the map is full a map of twice the size takes its place at once; the entries of the old one follow a few at
    a time with later calls, and until then lookups ask both.

    Ids can be removed: the row gets a negative key of its own, is free, and is given to a later id. Its entry in the
    map stays until the next rebuilding, which does no harm: an entry counts only if its row has the key that is
    looked for. So to remove costs one write for each row. Where ids are removed, ids must not be negative.

    Args:
        kernels: the kernels.
        max_bytes: room for ids; the machine's memory by default.
    """

    def __init__(self, kernels: KernelSet, max_bytes: int | None = None) -> None:
        self._kernels = kernels
        self._arena = Arena(1, np.int64, max_bytes)
        self.keys = cast("NDArray[np.int64]", self._arena.array.reshape(-1))
        """The id of each row; negative for free rows."""
        self.count = 0
        """Number of rows ever used at once; rows are numbered below it."""
        self.free_count = 0
        """How many of them are free."""
        self._free = np.empty(0, np.int64)
        self._entries = 0
        self._new = np.zeros(_FIRST_ENTRIES, np.uint64)
        self._old = np.zeros(0, np.uint64)
        self._moved = 0
        self._to_move = 0

    @property
    def live(self) -> int:
        """Number of ids."""
        return self.count - self.free_count

    @property
    def nbytes(self) -> int:
        """Memory of ids and entries."""
        return 8 * self.count + self._new.nbytes + self._old.nbytes + self._free.nbytes

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
        self._make_room(len(ids), len(ids))
        rows = np.empty(len(ids), np.int64)
        count = int(self._kernels.find_or_insert(self._new, self._old, self.keys, ids, rows, self.count))
        self._entries += count - self.count
        self.count = count
        return rows

    def insert(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives different ids that have no rows some, free ones first; returns them.

        Raises:
            ElasticDLError: the table is full.
        """
        reused = min(len(ids), self.free_count)
        fresh = len(ids) - reused
        self._make_room(len(ids), fresh)
        rows = np.empty(len(ids), np.int64)
        rows[:reused] = self._free[self.free_count - reused : self.free_count]
        rows[reused:] = np.arange(self.count, self.count + fresh)
        self._kernels.enter(self._new, self.keys, ids, rows)
        self._entries += len(ids)
        self.free_count -= reused
        self.count += fresh
        return rows

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Removes the ids of rows; later ids get the rows."""
        stop = self.free_count + len(rows)
        if stop > len(self._free):
            grown = np.empty(max(stop, 2 * len(self._free)), np.int64)
            grown[: self.free_count] = self._free[: self.free_count]
            self._free = grown
        self._free[self.free_count : stop] = rows
        self.free_count = stop
        # Different keys, so that they do not pile up in one place of a map that is rebuilt.
        self.keys[rows] = -1 - rows

    def _make_room(self, entries: int, rows: int) -> None:
        if self.count + rows > self._arena.max_rows:
            raise ElasticDLError(
                f"an embedding table has no room beyond {self._arena.max_rows:,} rows",
                fix="use more parameter servers (--num_ps_pods) or machines with more memory",
            )
        self._move(max(_MOVED_AT_LEAST, _MOVED_PER_INSERT * entries))
        if self._entries + entries <= _MAX_LOAD * len(self._new):
            return
        self._move(self.count)
        load = _MAX_LOAD if self._entries == self.count else _LOAD_WITH_STALE
        size = len(self._new)
        while self.count + entries > load * size:
            size *= 2
        self._old, self._new = self._new, np.zeros(size, np.uint64)
        self._moved, self._to_move, self._entries = 0, self.count, self.count
        self._move(_MOVED_AT_LEAST)

    def _move(self, rows: int) -> None:
        if not len(self._old):
            return
        stop = min(self._moved + rows, self._to_move)
        self._kernels.migrate(self._new, self.keys, self._moved, stop)
        self._moved = stop
        if stop == self._to_move:
            self._old = np.zeros(0, np.uint64)
