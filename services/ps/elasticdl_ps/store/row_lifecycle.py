"""Lifecycle of the rows in one table: admission after some sightings, eviction of what was not seen for long."""

from __future__ import annotations

from collections import deque
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import NO_ID, RowPolicy
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.id_map import IdMap

_NEVER = np.iinfo(np.int64).max
_SWEEPS_PER_AGE = 8
_NOTED_AGE = 64
"""The age from which rows are swept; up to it sweeps would come too often for a table that was large once."""
_SLACK = 16
_LINES = 4
_COUNTERS = 1 << 21
"""Counters in each line of a sketch; with 4 lines 8 MiB a table and PS."""


class RowLifecycle:
    """The book on one table's rows. Not safe for threads: the table has a lock.

    Sightings of ids without rows are counted in a count-min sketch (see ``kernels.compiled.policy``). When it has
    counted half as many as a line has counters, all counts are halved (Einziger et al. 2017, "TinyLFU"): what was
    seen long ago fades, and counts that are too high by collision stay below 3 in 100.

    Args:
        policy: the policy, ``max_rows`` being this PS's share.
        kernels: the kernels.
        present: the table's map; the rows that it has now count as seen at ``version``.
        version: updates applied.
        counters: counters in each line of the sketch, a power of two.

    Attributes:
        policy: the policy.
        admitted: rows made.
        evicted: rows that left.
        refused: updates of ids that had no row yet.
    """

    def __init__(
        self, policy: RowPolicy, kernels: KernelSet, present: IdMap, version: int, counters: int = _COUNTERS
    ) -> None:
        self.policy = policy
        self.admitted = self.evicted = self.refused = 0
        self._kernels = kernels
        self._times = Arena(1, np.int64) if policy.eviction_updates or policy.max_rows else None
        if self._times is not None:
            self._times.require(present.count)
            self._seen[: present.count] = np.where(present.keys[: present.count] == NO_ID, _NEVER, version)
        self._sketch = np.zeros((_LINES, counters if policy.admission > 1 else 0), np.uint8)
        self._counted = 0
        self._swept = version
        # Where rows leave young, those of each update are noted instead of swept.
        self._seen_at: deque[tuple[int, NDArray[np.int64]]] | None = None
        if 0 < policy.eviction_updates < _NOTED_AGE:
            self._seen_at = deque([(version, np.flatnonzero(self._seen[: present.count] == version))])
        self._count = present.count

    @property
    def _seen(self) -> NDArray[np.int64]:
        """The version of the update that saw each row last; nothing where that does not matter."""
        return cast("NDArray[np.int64]", self._times.flat) if self._times is not None else np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the sketch and of the times of the last sightings."""
        return self._sketch.nbytes + (8 * self._count if self._times is not None else 0)

    def admits(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Counts a sighting of ids without rows; which of them are to have one now: bool ``[n]``."""
        if self.policy.admission <= 1:
            self.admitted += len(ids)
            return np.ones(len(ids), np.bool_)
        if self._counted >= self._sketch.shape[1] // 2:
            self._sketch >>= 1
            self._counted //= 2
        counts = np.empty(len(ids), np.uint8)
        self._kernels.count_sightings(self._sketch, ids, counts)
        self._counted += len(ids)
        admitted: NDArray[np.bool_] = counts >= self.policy.admission
        number = int(np.count_nonzero(admitted))
        self.admitted += number
        self.refused += len(ids) - number
        return admitted

    def require(self, count: int) -> None:
        """Makes room for so many rows in all.

        Raises:
            ElasticDLError: there is no memory.
        """
        if self._times is not None:
            self._times.require(count)

    def touch(self, rows: NDArray[np.int64], count: int, version: int) -> None:
        """Notes that rows, of ``count`` in all, were seen by the update that makes ``version``."""
        self._count = count
        self.require(count)
        if self._times is not None:
            self._seen[rows] = version
        if self._seen_at is not None:
            self._seen_at.append((version, rows))

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Notes that rows are free."""
        self.evicted += len(rows)
        self._seen[rows] = _NEVER

    def cold(self, live: int, version: int) -> NDArray[np.int64]:
        """The rows that are to leave after the update that made ``version``, of ``live`` rows with ids."""
        found = np.zeros(0, np.int64)
        seen = self._seen[: self._count]
        age = self.policy.eviction_updates
        if self._seen_at is not None:
            if version > age:
                found = self._last_seen_until(version - age)
        elif age and version > age and version - self._swept >= age // _SWEEPS_PER_AGE:
            self._swept = version
            found = np.flatnonzero(seen <= version - age)
        limit = self.policy.max_rows
        if limit and live - len(found) > limit:
            # Some more than must be, so that the next updates need not sort again.
            wanted = min(live, live - limit + limit // _SLACK)
            last = np.partition(seen, wanted - 1)[wanted - 1]
            older, equal = np.flatnonzero(seen < last), np.flatnonzero(seen == last)
            found = np.concatenate([older, equal[: wanted - len(older)]])
        return found

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Notes that rows which were found cold could not leave: the next update finds them again."""
        self._swept = 0
        if self._seen_at is not None:
            times = self._seen[rows]
            self._seen_at.extendleft((int(at), rows[times == at]) for at in np.unique(times)[::-1])

    def _last_seen_until(self, version: int) -> NDArray[np.int64]:
        """The rows that no update after a version has seen; once."""
        assert self._seen_at is not None
        found = [np.zeros(0, np.int64)]
        while self._seen_at and self._seen_at[0][0] <= version:
            at, rows = self._seen_at.popleft()
            found.append(rows[self._seen[rows] == at])
        return np.concatenate(found)
