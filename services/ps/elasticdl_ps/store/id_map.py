"""The map from ids to rows of one table, grown without a pause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import NO_ID
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.kernels.lines import AFTER, GROWN_FROM, LINE_BYTES, NONE_GROWN, SLOTS, WORDS
from elasticdl_ps.store.arena import Arena

_FIRST_LINES = 1 << 6
_MAX_LOAD = 0.85
_LOAD_GROWN = 0.66
"""The load after growth, which so is by not quite a third: memory is saved at the cost of more moving."""
_LOAD_WITH_STALE = 0.5
"""The load to begin with where rows come and go, so that growth stays rare."""
_MOVED_PER_ID = 12
_MOVED_AT_LEAST = 1 << 14
_LINES_AT_ONCE = 1 << 9
_LEAST_BYTES = 1 << 20


class IdMap:
    """Gives each id that it sees the next row number. Not safe for threads: its owner has a lock.

    When the map is full it grows where it is, a few lines with each call, so that no call takes long and there is
    never a second map to hold or to ask.

    Ids can be removed: the row gets the key ``NO_ID``, is free, and is given to a later id. Its entry in the map
    stays until the map grows, which does no harm: an entry counts only if its row has the key that is looked for. So
    to remove costs one write for each row. Any other int64 is an id.

    Args:
        kernels: the kernels.
        beside: arenas that have a record of each row. There is room in them for all rows that the map gives.
        max_bytes: the most room for ids; the machine's memory by default.
    """

    def __init__(self, kernels: KernelSet, beside: Sequence[Arena] = (), max_bytes: int | None = None) -> None:
        self._kernels = kernels
        self._keys = Arena(1, np.int64, max_bytes)
        self._of_rows = (self._keys, *beside)
        self.count = 0
        """Number of rows ever used at once; rows are numbered below it."""
        self.free_count = 0
        """How many of them are free."""
        self._free = np.empty(0, np.int64)
        # In lines that are half full an entry takes more than an id, and there are lines beyond the last.
        most = 4 * self._keys.row_bytes * self._keys.max_rows + _LEAST_BYTES
        self._lines = Arena(WORDS, np.uint32, most, rows=2 * _FIRST_LINES + 1)
        self._shape = np.array([_FIRST_LINES, _FIRST_LINES, 0], np.uint64)
        self._entries = 0

    @property
    def keys(self) -> NDArray[np.int64]:
        """The id of each row; ``NO_ID`` for free rows. Another array after ids were added."""
        return cast("NDArray[np.int64]", self._keys.flat)

    @property
    def _table(self) -> NDArray[np.uint32]:
        return cast("NDArray[np.uint32]", self._lines.flat)

    @property
    def live(self) -> int:
        """Number of ids."""
        return self.count - self.free_count

    @property
    def nbytes(self) -> int:
        """Memory of ids and entries."""
        return 8 * self.count + LINE_BYTES * int(self._shape[AFTER]) + self._free.nbytes

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of ids, -1 where they have none."""
        rows = np.empty(len(ids), np.int64)
        self._kernels.find(self._table, self._shape, self.keys, ids, rows)
        return rows

    def find_or_insert(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of ids; those that have none get rows ``count``, ``count + 1``, ... in order.

        Raises:
            ElasticDLError: the table is full.
        """
        self.require(ids)
        rows = np.empty(len(ids), np.int64)
        count = int(self._kernels.find_or_insert(self._table, self._shape, self.keys, ids, rows, self.count))
        self._entries += count - self.count
        self.count = count
        return rows

    def require(self, ids: NDArray[np.int64]) -> None:
        """Makes room for ids, of which some may be there.

        Raises:
            ElasticDLError: the table is full.
        """
        fresh = len(ids)
        if self.count + fresh > min(arena.max_rows for arena in self._of_rows):
            fresh = len(np.unique(ids[self.find(ids) < 0]))  # a full table still knows its ids
        self._make_room(fresh, fresh)

    def require_rows(self, number: int, *, exactly: bool) -> int:
        """Makes room for so many ids that have no rows; returns how many rows there may be then.

        Args:
            number: of ids.
            exactly: whether all of them will be inserted. Of others as many have room as there may ever be.

        Raises:
            ElasticDLError: the table is full.
        """
        fresh = max(0, number - self.free_count)
        if not exactly:
            fresh = min(fresh, min(arena.max_rows for arena in self._of_rows) - self.count)
        self._make_room(number, fresh)
        return self.count + fresh

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
        self._kernels.enter(self._table, self._shape, self.keys, ids, rows)
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
        self.keys[rows] = NO_ID

    def _make_room(self, entries: int, rows: int) -> None:
        for arena in self._of_rows:
            arena.require(self.count + rows)
        moved = max(_MOVED_AT_LEAST, _MOVED_PER_ID * entries)
        self._grow(moved)
        lines = int(self._shape[AFTER])
        if self._entries + entries <= _MAX_LOAD * SLOTS * lines:
            return
        self._grow(SLOTS * lines)
        load = _LOAD_GROWN if self._entries == self.count else _LOAD_WITH_STALE
        wanted = math.ceil((self.count + entries) / (load * SLOTS))
        # All ids of a map may belong to its last line, and go on beyond it.
        self._lines.require(2 * max(lines, wanted) + 1)
        self._shape[:] = lines, max(lines, wanted), NONE_GROWN
        self._grow(moved)

    def _grow(self, entries: int) -> None:
        """Goes on with growth, if there is one, by the lines of so many entries."""
        left = entries // SLOTS + 1
        # Each id has one entry, and any more are stale.
        stale = self._entries != self.live
        while left > 0 and self._shape[GROWN_FROM]:
            dropped = self._kernels.grow(self._table, self._shape, self.keys, _LINES_AT_ONCE, stale)
            self._entries -= int(dropped)
            left -= _LINES_AT_ONCE
