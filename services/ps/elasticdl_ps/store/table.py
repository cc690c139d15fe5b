"""One embedding table of one partition: an open-ended map from int64 ids to float32 vectors with optimizer slots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import TableSpec
from elasticdl_ps.initializers import make_initializer
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.id_map import IdMap

_BLOCK = 1 << 15
"""Rows worked on between two releases of the lock, so that a reader waits for a millisecond, not for a batch."""


class Overlay:
    """What a table's rows were at a cut: copies of those that have changed since.

    Args:
        kernels: the kernels.
        count: rows that the table had at the cut.
        width: columns kept of each row.
    """

    def __init__(self, kernels: KernelSet, count: int, width: int) -> None:
        self.count = count
        self.width = width
        self._kernels = kernels
        self._saved = IdMap(kernels)
        self._copies = cast("NDArray[np.float32]", Arena(width, np.float32).array)

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return self._saved.nbytes + self._saved.count * self.width * 4

    def save(self, arena: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Keeps rows that are about to change, unless they are kept already or newer than the cut."""
        rows = rows[rows < self.count]
        before = self._saved.count
        self._saved.find_or_insert(rows)
        fresh = self._saved.keys[before : self._saved.count]
        self._kernels.gather(arena, fresh, self._copies[before : self._saved.count])

    def read(self, arena: NDArray[np.float32], rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Copies rows as they were; ``out`` stays as it is where a row is missing (-1) or newer than the cut."""
        rows = np.where(rows < self.count, rows, -1)
        kept = self._saved.find(rows)
        self._kernels.gather(arena, np.where(kept < 0, rows, -1), out)
        self._kernels.gather(self._copies, kept, out)


class EmbeddingTable:
    """One partition of an embedding table. Methods may be called from any thread.

    A row lies in the arena as its value, then one slot of the optimizer after another.

    Args:
        spec: the table.
        optimizer: gives the slots.
        kernels: the kernels.

    Raises:
        InvalidInputError: the table's initialiser is unknown.
    """

    def __init__(self, spec: TableSpec, optimizer: Optimizer, kernels: KernelSet) -> None:
        self.spec = spec
        self.dim = spec.dim
        self.width = spec.dim * (1 + len(optimizer.slots))
        self._slots = optimizer.slot_values
        self._update = kernels.update(optimizer.kernel)
        self._initializer = make_initializer(spec)
        self._kernels = kernels
        self._lock = threading.Lock()
        self._map = IdMap(kernels)
        self._arena = cast("NDArray[np.float32]", Arena(self.width, np.float32).array)
        self._overlays: dict[int, Overlay] = {}

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._map.count

    @property
    def nbytes(self) -> int:
        """Memory of values, slots, ids, map and pins."""
        pinned = sum(overlay.nbytes for overlay in list(self._overlays.values()))
        return self._map.nbytes + self._map.count * self.width * 4 + pinned

    def read(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Looks vectors up, making rows of ids that have none.

        Args:
            ids: int64 ``[n]``.
            out: float32 ``[n, dim]``, set.
        """
        for at in range(0, len(ids), _BLOCK):
            with self._lock:
                rows = self._rows_of(ids[at : at + _BLOCK])
                self._kernels.gather(self._arena, rows, out[at : at + _BLOCK])

    def read_pinned(self, pin: int, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Looks vectors up as they were at a pin; ids unknown then get their first values and no row."""
        for at in range(0, len(ids), _BLOCK):
            block, target = ids[at : at + _BLOCK], out[at : at + _BLOCK]
            init = self._initializer
            with self._lock:
                overlay = self._overlays.get(pin)
                rows = self._map.find(block)
                # A table that was declared after the pin had no rows then.
                unknown = np.flatnonzero((rows < 0) | (rows >= (overlay.count if overlay else 0)))
                if len(unknown):
                    fresh = np.empty((len(unknown), self.dim), np.float32)
                    self._kernels.initial_values(
                        fresh, block[unknown], self.dim, init.kind, init.a, init.b, init.seed
                    )
                    target[unknown] = fresh
                if overlay:
                    overlay.read(self._arena, rows, target)

    def update(self, ids: NDArray[np.int64], grads: NDArray[np.float32], numbers: NDArray[np.float32]) -> None:
        """Applies the optimizer to rows, making those that are missing.

        Args:
            ids: int64 ``[n]``, all different.
            grads: float32 ``[n, dim]``.
            numbers: from ``Optimizer.numbers``.
        """
        for at in range(0, len(ids), _BLOCK):
            with self._lock:
                rows = self._rows_of(ids[at : at + _BLOCK])
                for overlay in self._overlays.values():
                    overlay.save(self._arena, rows)
                self._update(self._arena, rows, grads[at : at + _BLOCK], numbers)

    def pin(self, number: int, *, with_slots: bool = False) -> None:
        """Keeps the present rows readable under a number."""
        with self._lock:
            width = self.width if with_slots else self.dim
            self._overlays[number] = Overlay(self._kernels, self._map.count, width)

    def unpin(self, number: int) -> None:
        """Forgets a pin; an unknown one is ignored."""
        with self._lock:
            self._overlays.pop(number, None)

    def pinned_rows(self, number: int) -> int:
        """Number of rows at a pin."""
        return self._overlays[number].count

    def pinned_blocks(self, number: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """All rows as they were at a pin with slots, a block at a time: ids ``[n]`` and records ``[n, width]``."""
        total = self._overlays[number].count
        for at in range(0, total, _BLOCK):
            rows = np.arange(at, min(at + _BLOCK, total))
            records = np.empty((len(rows), self.width), np.float32)
            with self._lock:
                ids = self._map.keys[at : at + len(rows)].copy()
                self._overlays[number].read(self._arena, rows, records)
            yield ids, records

    def load(self, ids: NDArray[np.int64], records: NDArray[np.float32]) -> None:
        """Sets whole records (values and slots) of ids, making the rows; columns beyond those given start anew."""
        with self._lock:
            rows = self._rows_of(ids)
            self._kernels.scatter(self._arena, rows, records)

    def with_optimizer(self, optimizer: Optimizer, *, keep_slots: bool) -> EmbeddingTable:
        """The same rows under another optimizer, its slots starting anew unless they are kept."""
        made = EmbeddingTable(self.spec, optimizer, self._kernels)
        width = self.width if keep_slots else self.dim
        for at in range(0, self.rows, _BLOCK):
            stop = min(at + _BLOCK, self.rows)
            records = np.ascontiguousarray(self._arena[at:stop, :width])
            made.load(self._map.keys[at:stop], records)
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
