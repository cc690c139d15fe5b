"""Sums through the links of the mesh, for members of different machines.

Each member adds its part of each bucket: it gets that slice of all partial sums from their owners, and sends the sum
to all. No byte travels twice to the same member, and a member sends and receives about twice a bucket's bytes in all,
as in a ring, but in two steps instead of ``2 (n - 1)``. A small bucket travels whole, in one step: all add all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from elasticdl_worker.collectives.links import Kind, Tag
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import Leaf
from elasticdl_worker.collectives.sums import CarriedSum, OwnLeaves, SumShape
from elasticdl_worker.collectives.tree import Array, PartialSumAdder, aligned, chunk_bounds

_SMALL_BYTES = 16 << 10


@lru_cache(64)
def _parts(length: int, size: int, itemsize: int) -> tuple[bool, list[tuple[int, int]]]:
    """Whether a bucket travels whole, and the part of it that each rank adds."""
    if length * itemsize <= _SMALL_BYTES:
        return True, [(0, length)] * size
    return False, chunk_bounds(length, size, itemsize)


class _Memory:
    """The memory for sums of one shape, kept for the next one of that shape."""

    def __init__(self, shape: SumShape, rank: int, size: int) -> None:
        partial_sums = shape.partial_sums()
        self.homes: list[list[Array]] = []
        self.parts: list[list[Array]] = []
        self.sums: list[Array] = []
        for length in shape.lengths:
            first, end = _parts(length, size, shape.itemsize)[1][rank]
            homes = [aligned(length, shape.dtype) for partial_sum in partial_sums if partial_sum.owner == rank]
            own = iter(homes)
            self.homes.append(homes)
            self.parts.append(
                [
                    next(own)[first:end] if partial_sum.owner == rank else aligned(end - first, shape.dtype)
                    for partial_sum in partial_sums
                ]
            )
            self.sums.append(aligned(length, shape.dtype))
        self.spares: dict[int, list[Array]] = {}


class SocketSums:
    """The sums of one group."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._shape: SumShape | None = None
        self._memory: _Memory | None = None

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum."""
        if self._memory is None or shape != self._shape:
            self._memory, self._shape = _Memory(shape, self._mesh.rank, self._mesh.size), shape
        return _SocketSum(self._mesh, self._memory, operation, shape, timeout_s)


class _SocketSum(CarriedSum):
    def __init__(self, mesh: Mesh, memory: _Memory, operation: int, shape: SumShape, timeout_s: float) -> None:
        leaves = OwnLeaves(shape, mesh.rank, memory.homes, memory.spares)
        super().__init__(mesh, leaves, len(shape.lengths))
        self._memory, self._operation, self._shape, self._timeout_s = memory, operation, shape, timeout_s
        self._partial_sums = shape.partial_sums()
        self._adder = PartialSumAdder(self._partial_sums, shape.dtype)
        self._plans = [_parts(length, mesh.size, shape.itemsize) for length in shape.lengths]
        self._unready = [0] * len(shape.lengths)
        self._undone = 1
        self._waiter = mesh.open_waiter()
        mesh.post(self._expect)

    def _bring(self, bucket: int) -> None:
        self._mesh.post(partial(self._send_partial_sums, bucket))

    def _collect(self) -> list[Leaf]:
        self._mesh.post(self._count_done)
        self._mesh.wait(self._waiter, self._timeout_s, "sum")
        return [array.view() for array in self._memory.sums]

    # On the mesh's thread.

    def _others(self) -> list[int]:
        return [rank for rank in range(self._mesh.size) if rank != self._mesh.rank]

    def _expect(self) -> None:
        """Counts first and expects then: what came early is taken at once."""
        partial_sums: list[tuple[int, int, int]] = []
        sums: list[tuple[int, int]] = []
        for bucket, (whole, parts) in enumerate(self._plans):
            self._unready[bucket] = 1
            first, end = parts[self._mesh.rank]
            if first < end:
                self._undone += 1
                foreign = [(b, s.owner) for b, s in enumerate(self._partial_sums) if s.owner != self._mesh.rank]
                partial_sums += [(bucket, number, owner) for number, owner in foreign]
                self._unready[bucket] += len(foreign)
            if not whole:
                sums += [(bucket, rank) for rank in self._others() if parts[rank][0] < parts[rank][1]]
        self._undone += len(sums)
        for _, _, owner in partial_sums:
            self._waiter.owe(owner)
        for _, rank in sums:
            self._waiter.owe(rank)
        for bucket, number, owner in partial_sums:
            place = partial(_bytes_of, self._memory.parts[bucket][number])
            tag = (Kind.PARTIAL_SUM, self._operation, bucket, number)
            self._mesh.expect(owner, tag, partial(self._take_partial_sum, owner, bucket), place)
        for bucket, rank in sums:
            first, end = self._plans[bucket][1][rank]
            place = partial(_bytes_of, self._memory.sums[bucket][first:end])
            self._mesh.expect(rank, (Kind.CHUNK, self._operation, bucket, 0), partial(self._take_sum, rank), place)

    def _send_partial_sums(self, bucket: int) -> None:
        parts = self._plans[bucket][1]
        own = iter(self._memory.homes[bucket])
        for number, partial_sum in enumerate(self._partial_sums):
            if partial_sum.owner != self._mesh.rank:
                continue
            home = next(own)
            for rank in self._next_ranks():
                first, end = parts[rank]
                if first == end:
                    continue
                self._send(rank, (Kind.PARTIAL_SUM, self._operation, bucket, number), home[first:end])
        self._count_ready(bucket)

    def _next_ranks(self) -> Sequence[int]:
        """The others, each member's next one first, so that not all send to the same one."""
        rank, size = self._mesh.rank, self._mesh.size
        return [(rank + step) % size for step in range(1, size)]

    def _take_partial_sum(self, owner: int, bucket: int, payload: memoryview, check: int) -> None:
        self._waiter.pay(owner)
        self._count_ready(bucket)

    def _count_ready(self, bucket: int) -> None:
        self._unready[bucket] -= 1
        if self._unready[bucket]:
            return
        whole, parts = self._plans[bucket]
        first, end = parts[self._mesh.rank]
        if first == end:
            return
        part = self._memory.sums[bucket][first:end]
        self._adder.add(self._memory.parts[bucket], part)
        if not whole:
            for rank in self._next_ranks():
                self._send(rank, (Kind.CHUNK, self._operation, bucket, 0), part)
        self._count_done()

    def _send(self, rank: int, tag: Tag, values: Array) -> None:
        """Sends, and has ``finish`` wait until that was written: the next sum is made in the same memory."""
        self._undone += 1
        self._mesh.send(rank, tag, _bytes_of(values, 0), sent=self._count_done)

    def _take_sum(self, rank: int, payload: memoryview, check: int) -> None:
        self._waiter.pay(rank)
        self._count_done()

    def _count_done(self) -> None:
        self._undone -= 1
        if not self._undone:
            self._waiter.end()


def _bytes_of(array: Array, length: int) -> memoryview:
    """The bytes of an array, as the place for a message."""
    return array.view(np.uint8).data
