"""One embedding table of one partition: an open-ended map from int64 ids to float32 vectors with optimizer slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError, NotFoundError
from elasticdl_core.model import NO_ID, RowPolicy, TableSpec
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.compensation import Delay
from elasticdl_ps.store.fair_lock import FairLock
from elasticdl_ps.store.id_map import IdMap
from elasticdl_ps.store.overlay import Overlay
from elasticdl_ps.store.row_lifecycle import RowLifecycle
from elasticdl_runtime.initializers import make_initializer

_BLOCK_ROWS = 1 << 15
_BLOCK_BYTES = 4 << 20
"""Rows worked on between two releases of the lock, so that a reader waits for a millisecond, not for a batch."""


class EmbeddingTable:
    """One partition of an embedding table. Methods may be called from any thread.

    A row lies in the arena as its value, then one slot of the optimizer after another. Every id that is read or
    updated gets a row, unless a policy says which do.

    Attributes:
        steps: how many updates the table had: what its rows' slots are counted by.

    Raises:
        InvalidInputError: the table's initialiser is unknown.
    """

    def __init__(self, spec: TableSpec, optimizer: Optimizer, kernels: KernelSet) -> None:
        self.spec = spec
        self.dim = spec.dim
        self.steps = 0
        self.width = spec.dim * (1 + len(optimizer.slots))
        self._slots = optimizer.slot_values(spec.group)
        self._update = kernels.update(optimizer.kernel)
        self._initializer = make_initializer(spec)
        self._kernels = kernels
        self._lock = FairLock()
        self._block = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * self.width)))
        self._records = Arena(self.width, np.float32)
        self._map = IdMap(kernels, (self._records,))
        self._overlays: dict[int, Overlay] = {}
        self._lives: RowLifecycle | None = None

    @property
    def _arena(self) -> NDArray[np.float32]:
        return cast("NDArray[np.float32]", self._records.array)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._map.live

    @property
    def nbytes(self) -> int:
        """Memory of values, slots, ids, map, pins, and of the book on rows that come and go."""
        pinned = sum(overlay.nbytes for overlay in list(self._overlays.values()))
        book = self._lives.nbytes if self._lives else 0
        return self._map.nbytes + self._map.count * self.width * 4 + pinned + book

    @property
    def lives(self) -> RowLifecycle | None:
        """The book on rows that come and go, if there is a policy."""
        return self._lives

    def set_policy(self, policy: RowPolicy, version: int) -> None:
        """Says which ids have rows from now on; sightings are counted anew, present rows count as just seen.

        Args:
            policy: ``max_rows`` being this PS's share.
            version: updates applied so far.
        """
        with self._lock:
            self._lives = RowLifecycle(policy, self._kernels, self._map, version) if policy.active else None

    def declare_anew(self, spec: TableSpec, optimizer: Optimizer) -> None:
        """Takes what a model says now of this table: its ids, how new rows begin, weight decay and group.

        Args:
            spec: of the same vectors; ``id_outside`` its ids there is none.
            optimizer: that the group is of.
        """
        self.spec, self._initializer = spec, make_initializer(spec)
        # Another optimizer's come with the table that takes this one's place.
        if len(optimizer.slots) == len(self._slots):
            self._slots = optimizer.slot_values(spec.group)

    def id_outside(self, limit: int | None) -> int | None:
        """An id with a row that a closed id space of ``limit`` ids does not have; None if there is none."""
        keys = self._map.keys[: self._map.count]
        odd = keys[((keys < 0) | (keys >= limit)) & (keys != NO_ID)] if limit is not None else keys[:0]
        return int(odd[0]) if len(odd) else None

    def read(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Looks vectors up, making rows of ids that have none; with a policy those read as their first values.

        Args:
            ids: int64 ``[n]``.
            out: float32 ``[n, dim]``, set.
        """
        for at in range(0, len(ids), self._block):
            block, target = ids[at : at + self._block], out[at : at + self._block]
            with self._lock:
                rows = self._rows_of(block) if self._lives is None else self._map.find(block)
                self._kernels.gather(self._arena, rows, target)
            if self._lives is not None:
                self._set_first_values(block, rows < 0, target)

    def read_pinned(self, pin: int, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Looks vectors up as they were at a pin; ids unknown then get their first values and no row.

        Raises:
            NotFoundError: there is no such pin, or no more.
        """
        for at in range(0, len(ids), self._block):
            block, target = ids[at : at + self._block], out[at : at + self._block]
            with self._lock:
                overlay = self._overlays.get(pin)
                if overlay is None:
                    raise no_pin(pin)
                known = overlay.read(self._arena, block, self._map.find(block), target)
            self._set_first_values(block, ~known, target)

    def update(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        numbers: NDArray[np.float32],
        version: int = 0,
        delay: Delay | None = None,
    ) -> None:
        """Applies the optimizer to rows, making those that are missing, or as the policy says.

        Args:
            ids: int64 ``[n]``, all different.
            grads: float32 ``[n, dim]``.
            numbers: from ``Optimizer.numbers``.
            version: the partition's version after this update; the policy counts by it.
            delay: for gradients that are to be compensated.
        """
        for at in range(0, len(ids), self._block):
            block, changes = ids[at : at + self._block], grads[at : at + self._block]
            late = delay and delay.of(slice(at, at + self._block))
            with self._lock:
                if self._lives is None:
                    rows = self._rows_of(block)
                else:
                    rows = self._admitted_rows_of(self._lives, block)
                    if rows.min() < 0:
                        kept = np.flatnonzero(rows >= 0)
                        block, rows, changes = block[kept], rows[kept], changes[kept]
                        late = late and late.of(kept)
                    self._lives.touch(rows, self._map.count, version)
                for overlay in self._overlays.values():
                    overlay.save(self._arena, rows, block)
                if late is not None:
                    now = np.empty_like(changes)
                    self._kernels.gather(self._arena, rows, now)
                    changes = late.compensate(changes, now)
                self._update(self._arena, rows, changes, numbers)
        if self._lives is not None:
            self._evict(self._lives, version)

    def require(self, ids: NDArray[np.int64]) -> None:
        """Makes room for what an update is about to make, and so refuses it before anything is changed.

        That is for rows, for their entries in the book of a policy, and for what pins and cuts keep of changed rows.

        Raises:
            ElasticDLError: the table is full, or there is no memory.
        """
        with self._lock:
            if self._lives is None:
                self._map.require(ids)
            else:
                missing = int(np.count_nonzero(self._map.find(ids) < 0))
                self._lives.require(self._map.require_rows(missing, exactly=self._lives.policy.admission <= 1))
            for overlay in self._overlays.values():
                overlay.require(len(ids))

    def pin(self, number: int, *, with_slots: bool = False) -> None:
        """Keeps the present rows readable under a number."""
        with self._lock:
            width = self.width if with_slots else self.dim
            self._overlays[number] = Overlay(self._kernels, self._map, width)

    def unpin(self, number: int) -> None:
        """Forgets a pin; an unknown one is ignored."""
        with self._lock:
            self._overlays.pop(number, None)

    def pinned_rows(self, number: int) -> int:
        """Number of rows at a pin."""
        return self._overlays[number].rows

    def pinned_blocks(self, number: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """All rows as they were at a pin with slots, a block at a time: ids ``[n]`` and records ``[n, width]``."""
        overlay = self._overlays[number]
        for stop in range(self._block, overlay.stop + self._block, self._block):
            with self._lock:
                ids, records = overlay.block(self._arena, self._map.keys, min(stop, overlay.stop))
            yield ids, records
        with self._lock:
            left = overlay.left
        for at in range(0, len(left), self._block):
            ids = left[at : at + self._block]
            with self._lock:
                records = overlay.kept(self._arena, ids)
            yield ids, records

    def load(self, ids: NDArray[np.int64], records: NDArray[np.float32]) -> None:
        """Sets whole records (values and slots) of ids, making the rows; columns beyond those given start anew."""
        with self._lock:
            rows = self._rows_of(ids)
            self._kernels.scatter(self._arena, rows, records)

    def with_optimizer(self, optimizer: Optimizer, *, keep_slots: bool) -> EmbeddingTable:
        """The same rows under another optimizer, its slots starting anew unless they are kept."""
        made = EmbeddingTable(self.spec, optimizer, self._kernels)
        made.steps = self.steps if keep_slots else 0
        width = self.width if keep_slots else self.dim
        for at in range(0, self._map.count, self._block):
            with self._lock:
                ids = self._map.keys[at : min(at + self._block, self._map.count)].copy()
                records = self._arena[at : at + len(ids), :width].copy()
            there = ids != NO_ID
            made.load(ids[there], records[there])
        return made

    def _rows_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        before = self._map.count
        rows = self._map.find_or_insert(ids)
        if self._map.count > before:
            init = self._initializer
            self._kernels.initialise(
                self._arena,
                self._map.keys,
                before,
                self._map.count,
                self.dim,
                init.kind,
                init.a,
                init.b,
                init.seed,
                self._slots,
            )
        return rows

    def _admitted_rows_of(self, lives: RowLifecycle, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of ids, -1 for those that have none and are to have none yet."""
        rows = self._map.find(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            fresh = missing[lives.admits(ids[missing])]
            rows[fresh] = self._map.insert(ids[fresh])
            init = self._initializer
            self._kernels.initialise_rows(
                self._arena,
                ids[fresh],
                rows[fresh],
                self.dim,
                init.kind,
                init.a,
                init.b,
                init.seed,
                self._slots,
            )
        return rows

    def _evict(self, lives: RowLifecycle, version: int) -> None:
        """Lets the rows go that the policy has no room for, some at a time, so that readers get their turn.

        The update is made by now: what a pin has no memory to keep stays until the next one.
        """
        cold = lives.cold(self._map.live, version)
        for at in range(0, len(cold), self._block):
            rows = cold[at : at + self._block]
            with self._lock:
                ids = self._map.keys[rows]
                try:
                    for overlay in self._overlays.values():
                        overlay.require(len(ids))
                except ElasticDLError:
                    lives.keep(cold[at:])
                    return
                for overlay in self._overlays.values():
                    overlay.leave(self._arena, rows, ids)
                self._map.remove(rows)
                lives.forget(rows)

    def _set_first_values(self, ids: NDArray[np.int64], where: NDArray[np.bool_], out: NDArray[np.float32]) -> None:
        unknown = np.flatnonzero(where)
        if len(unknown):
            init = self._initializer
            fresh = np.empty((len(unknown), self.dim), np.float32)
            self._kernels.initial_values(fresh, ids[unknown], self.dim, init.kind, init.a, init.b, init.seed)
            out[unknown] = fresh


def no_pin(number: int) -> NotFoundError:
    """Says that a pin is not known, or no more."""
    return NotFoundError(f"the parameter server has no pin {number}", fix="ask the master for a new evaluation task")
