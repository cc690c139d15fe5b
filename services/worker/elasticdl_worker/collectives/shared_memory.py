"""Sums through memory that the members of one machine share.

Each member has a region that it alone writes, with its partial sums, and one region more takes the sums, of which
each member writes its part. The regions are anonymous files (``memfd``), handed over through the links' unix sockets:
they have no name that could be left behind, and the kernel frees them with the last process that holds them, however
it ended. Members tell each other what is ready with messages of the mesh, which block without spinning on a machine
that has other work, and end with the process.

1. A member whose partial sums of a bucket are whole tells all: READY.
2. When all are ready, each adds its part of the bucket (a slice of all partial sums) into the sums, and tells all:
DONE.
3. When all are done, the sum is there to be read in place.

Nothing is written while somebody may read it: a member writes partial sums of the next sum only when all are done
with this one, and sums only when all have begun the next one. A member that was stopped for long is not waited for:
the others end the group, and write their partial sums of later groups into the same regions. Each region begins with
the number of groups that ended in it: who wakes in the middle of an old sum sees that what it added was not all of
that sum.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import Leaf
from elasticdl_worker.collectives.sums import CarriedSum, OwnLeaves, SumShape
from elasticdl_worker.collectives.tree import ALIGN_BYTES, Array, PartialSumAdder, chunk_bounds

_PAGE = mmap.PAGESIZE
_HEADER_BYTES = ALIGN_BYTES


def make_region() -> int:
    """Makes an empty region; returns its descriptor."""
    descriptor = os.memfd_create("elasticdl-collective", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Who maps it would die of a bus error if it shrank.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


@dataclass(frozen=True, slots=True)
class _Layout:
    """The positions in the memory, the same at all members.

    Attributes:
        homes: by bucket, by partial sum (from left to right), its offset in its owner's region.
        used: bytes of each member's region, by rank.
        sums: by bucket, its offset in the region of the sums.
        sums_used: bytes of that.
    """

    homes: tuple[tuple[int, ...], ...]
    used: tuple[int, ...]
    sums: tuple[int, ...]
    sums_used: int


@lru_cache(8)
def _layout(shape: SumShape, size: int) -> _Layout:
    used, sums, at = [_HEADER_BYTES] * size, [], 0
    homes = []
    for length in shape.lengths:
        padded = -(-length * shape.itemsize // ALIGN_BYTES) * ALIGN_BYTES
        row = []
        for partial_sum in shape.partial_sums():
            row.append(used[partial_sum.owner])
            used[partial_sum.owner] += padded
        homes.append(tuple(row))
        sums.append(at)
        at += padded
    return _Layout(tuple(homes), tuple(used), tuple(sums), at)


class SharedRegion:
    """A region as this member maps it; views keep what they see mapped after it was closed or has grown.

    Attributes:
        descriptor: of the file; -1 once closed.
    """

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self.descriptor = descriptor
        self._writable = writable
        self._map: mmap.mmap | None = None
        self._bytes: np.ndarray = np.empty(0, np.uint8)

    def grow(self, need: int) -> None:
        """Makes the file large enough."""
        if os.fstat(self.descriptor).st_size < need:
            os.ftruncate(self.descriptor, -(-need // _PAGE) * _PAGE)

    def array(self, offset: int, length: int, dtype: str) -> Array:
        """A part of it; the file must be large enough."""
        end = offset + length * np.dtype(dtype).itemsize
        if end > len(self._bytes):
            size = os.fstat(self.descriptor).st_size
            access = mmap.PROT_READ | (mmap.PROT_WRITE if self._writable else 0)
            self._map = mmap.mmap(self.descriptor, size, mmap.MAP_SHARED, access)
            self._bytes = np.frombuffer(self._map, np.uint8)
        return self._bytes[offset:end].view(dtype)

    def groups_ended(self) -> Array:
        """The one number at its head: in how many groups its owner has used it and no longer does."""
        return self.array(0, 1, "uint64")

    def close(self) -> None:
        """Closes the file and drops the map."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._map, self._bytes = None, np.empty(0, np.uint8)


class OwnRegions:
    """The regions that this process wrote in earlier groups, for later ones: their memory is there already."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[SharedRegion] = []
        self._closed = False

    def take(self) -> SharedRegion:
        """One that no group uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        region = SharedRegion(make_region(), writable=True)
        region.grow(_HEADER_BYTES)
        return region

    def give_back(self, region: SharedRegion) -> None:
        """Takes one back from a group that has ended. A member of that group that was stopped may still read it."""
        region.groups_ended()[0] += 1
        with self._lock:
            if not self._closed and not self._free:
                self._free.append(region)
                return
        region.close()

    def close(self) -> None:
        """Closes them all."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for region in free:
            region.close()


class SharedMemorySums:
    """The sums of one group.

    Args:
        mesh: of the group.
        own: this member's region.
        regions: descriptors of the others' regions, by rank; closed with this.
        sums: descriptor of the region of the sums; closed with this.
        kept: where this member's region goes in the end.
    """

    def __init__(
        self, mesh: Mesh, own: SharedRegion, regions: Mapping[int, int], sums: int, kept: OwnRegions
    ) -> None:
        self._mesh = mesh
        self._kept = kept
        self._regions = [
            own if rank == mesh.rank else SharedRegion(regions[rank], writable=False) for rank in range(mesh.size)
        ]
        self._sums = SharedRegion(sums, writable=True)
        # No sum becomes whole without what this member tells from now on: who takes part in one ends the group later.
        self._heads = [(region.groups_ended(), int(region.groups_ended()[0])) for region in self._regions]
        self._spares: dict[int, list[Array]] = {}
        self._spares_of = ""
        mesh.at_end(self._close)

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum."""
        layout, rank = _layout(shape, self._mesh.size), self._mesh.rank
        region = self._regions[rank]
        region.grow(layout.used[rank])
        self._sums.grow(layout.sums_used)
        partial_sums = shape.partial_sums()
        homes = [
            [
                region.array(offset, length, shape.dtype)
                for partial_sum, offset in zip(partial_sums, row, strict=True)
                if partial_sum.owner == rank
            ]
            for length, row in zip(shape.lengths, layout.homes, strict=True)
        ]
        if self._spares_of != shape.dtype:
            self._spares, self._spares_of = {}, shape.dtype
        leaves = OwnLeaves(shape, rank, homes, self._spares)
        return _SharedSum(self._mesh, self._regions, self._sums, self._ended_by, operation, shape, leaves, timeout_s)

    def _ended_by(self) -> list[int]:
        """The ranks for which this group has ended, whose regions may be those of another by now."""
        return [rank for rank, (head, before) in enumerate(self._heads) if head[0] != before]

    def _close(self) -> None:
        self._heads = []
        for rank, region in enumerate(self._regions):
            if rank == self._mesh.rank:
                self._kept.give_back(region)
            else:
                region.close()
        self._sums.close()


class _SharedSum(CarriedSum):
    def __init__(
        self,
        mesh: Mesh,
        regions: Sequence[SharedRegion],
        sums: SharedRegion,
        ended_by: Callable[[], list[int]],
        operation: int,
        shape: SumShape,
        leaves: OwnLeaves,
        timeout_s: float,
    ) -> None:
        super().__init__(mesh, leaves, len(shape.lengths))
        self._regions, self._sums, self._ended_by = regions, sums, ended_by
        self._operation, self._shape, self._timeout_s = operation, shape, timeout_s
        self._layout = _layout(shape, mesh.size)
        self._adder = PartialSumAdder(shape.partial_sums(), shape.dtype)
        self._unready = [mesh.size] * len(shape.lengths)
        self._undone = mesh.size * len(shape.lengths)
        self._results: list[Leaf] = []
        self._waiter = mesh.open_waiter()
        mesh.post(self._expect)

    def _bring(self, bucket: int) -> None:
        self._mesh.post(partial(self._tell_ready, bucket))

    def _collect(self) -> list[Leaf]:
        if self._shape.lengths:
            self._mesh.wait(self._waiter, self._timeout_s, "sum")
        return self._results

    def let_go(self) -> None:
        """Drops the results, which keep the region mapped, with a descriptor of its file."""
        self._results = []

    # On the mesh's thread.

    def _others(self) -> list[int]:
        return [rank for rank in range(self._mesh.size) if rank != self._mesh.rank]

    def _expect(self) -> None:
        for rank in self._others():
            for _ in range(2 * self._buckets):
                self._waiter.owe(rank)
        for rank in self._others():
            for bucket in range(self._buckets):
                ready = partial(self._take_ready, rank, bucket)
                self._mesh.expect(rank, (Kind.READY, self._operation, bucket, 0), ready)
                self._mesh.expect(rank, (Kind.DONE, self._operation, bucket, 0), partial(self._take_done, rank))

    def _tell_ready(self, bucket: int) -> None:
        for rank in self._others():
            self._mesh.send(rank, (Kind.READY, self._operation, bucket, 0))
        self._count_ready(bucket)

    def _take_ready(self, rank: int, bucket: int, payload: memoryview, check: int) -> None:
        self._waiter.pay(rank)
        self._count_ready(bucket)

    def _count_ready(self, bucket: int) -> None:
        self._unready[bucket] -= 1
        if self._unready[bucket]:
            return
        self._add_part(bucket)
        ended_by = self._ended_by()
        for rank in ended_by:
            # It has told why, or hung up: that is still to be read, and whom it suspects with it. Nothing else comes.
            self._mesh.expect(rank, (Kind.DONE, self._operation, bucket, 1), partial(self._take_done, rank))
        if ended_by:
            return
        for rank in self._others():
            self._mesh.send(rank, (Kind.DONE, self._operation, bucket, 0))
        self._count_done()

    def _take_done(self, rank: int, payload: memoryview, check: int) -> None:
        self._waiter.pay(rank)
        self._count_done()

    def _count_done(self) -> None:
        self._undone -= 1
        if self._undone:
            return
        # Looked up here, as long as the group holds the region: the sums stay readable whatever becomes of it.
        self._results = [
            self._sums.array(offset, length, self._shape.dtype)
            for offset, length in zip(self._layout.sums, self._shape.lengths, strict=True)
        ]
        self._waiter.end()

    def _add_part(self, bucket: int) -> None:
        length, dtype = self._shape.lengths[bucket], self._shape.dtype
        first, end = chunk_bounds(length, self._mesh.size, self._shape.itemsize)[self._mesh.rank]
        if first == end:
            return
        parts = [
            self._regions[partial_sum.owner].array(offset, length, dtype)[first:end]
            for partial_sum, offset in zip(self._shape.partial_sums(), self._layout.homes[bucket], strict=True)
        ]
        self._adder.add(parts, self._sums.array(self._layout.sums[bucket], length, dtype)[first:end])
