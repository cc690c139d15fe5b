"""A group's operations besides sums, over its mesh: exchanges of small messages and streams of large state."""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import (
    Buffer,
    CollectiveError,
    CorruptStateError,
    GroupAbortedError,
    PendingSum,
)
from elasticdl_worker.collectives.sums import CarriedSum, SumCarrier, SumShape
from elasticdl_worker.collectives.waiting import Waiter

_PIECE_BYTES = 1 << 20
_PIECES_UNDER_WAY = 2
_COUNT = struct.Struct("<I")


class MeshCollective:
    """A group whose sums are carried by an adapter, and everything else by the mesh."""

    def __init__(self, adapter: str, mesh: Mesh, carrier: SumCarrier) -> None:
        self._adapter = adapter
        self._mesh = mesh
        self._carrier = carrier
        self._operations = itertools.count(1)
        self._streams: dict[tuple[str, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))
        self._lock = threading.Lock()
        self._under_way: CarriedSum | None = None

    @property
    def generation(self) -> int:
        """Of the plan."""
        return self._mesh.generation

    @property
    def rank(self) -> int:
        """This member's."""
        return self._mesh.rank

    @property
    def size(self) -> int:
        """The number of members."""
        return self._mesh.size

    @property
    def adapter(self) -> str:
        """The adapter that carries the sums."""
        return self._adapter

    @property
    def failure(self) -> CollectiveError | None:
        """Why the group can do nothing more."""
        return self._mesh.failure

    def on_failure(self, tell: Callable[[CollectiveError], None]) -> None:
        """Has a function called when the group breaks."""
        self._mesh.listen(tell)

    def begin_sum(
        self,
        lengths: Sequence[int],
        owners: Sequence[int] | None = None,
        *,
        dtype: str = "float32",
        timeout_s: float = 600.0,
    ) -> PendingSum:
        """Begins to sum buckets over microbatches; see the port."""
        self._mesh.check()
        shape = SumShape.of(lengths, owners, dtype, self.size)
        if self._under_way is not None and not self._under_way.is_over:
            raise InvalidInputError("a sum is under way already", fix="finish it before the next one is begun")
        try:
            self._under_way = self._carrier.begin(next(self._operations), shape, timeout_s)
        except OSError:
            self._mesh.check()  # that broke meanwhile, and took the memory with it
            raise
        self._under_way.start()
        return self._under_way

    def gather(self, payload: bytes, *, timeout_s: float = 60.0) -> list[bytes]:
        """Exchanges small messages; see the port."""
        if self.size == 1:
            self._mesh.check()
            return [payload]
        tag = (Kind.GATHER, next(self._operations), 0, 0)
        found: dict[int, bytes] = {self.rank: payload}
        waiter = self._mesh.open_waiter()

        def take(source: int, message: memoryview, check: int) -> None:
            found[source] = bytes(message)
            waiter.pay(source)
            if not waiter.owed:
                waiter.end()

        def start() -> None:
            others = [rank for rank in range(self.size) if rank != self.rank]
            for rank in others:
                waiter.owe(rank)
            for rank in others:
                self._mesh.send(rank, tag, payload)
                self._mesh.expect(rank, tag, partial(take, rank))

        self._mesh.post(start)
        self._mesh.wait(waiter, timeout_s, "gather")
        return [found[rank] for rank in range(self.size)]

    def broadcast(self, payload: bytes | None, source: int, *, timeout_s: float = 60.0) -> bytes:
        """Hands all members what one gives; see the port."""
        self._check_rank(source)
        tag = (Kind.BROADCAST, next(self._operations), 0, 0)
        if source == self.rank:
            if payload is None:
                raise InvalidInputError("the source of a broadcast gave nothing", fix="give its payload")
            self._mesh.check()
            others = [rank for rank in range(self.size) if rank != self.rank]
            for rank in others:
                self._mesh.post(partial(self._mesh.send, rank, tag, payload))
            return payload
        waiter = self._mesh.open_waiter()
        found: list[bytes] = []

        def take(message: memoryview, check: int) -> None:
            found.append(bytes(message))
            waiter.pay(source)
            waiter.end()

        def start() -> None:
            waiter.owe(source)
            self._mesh.expect(source, tag, take)

        self._mesh.post(start)
        self._mesh.wait(waiter, timeout_s, "broadcast")
        return found[0]

    def send(self, target: int, note: bytes, buffers: Sequence[Buffer], *, timeout_s: float = 600.0) -> None:
        """Streams state to a member; see the port."""
        self._check_other(target)
        views = [_as_bytes(buffer) for buffer in buffers]
        waiter = self._mesh.open_waiter()
        sending = _Sending(self._mesh, target, self._next("to", target), note, views, waiter)
        self._mesh.post(sending.start)
        self._mesh.wait(waiter, timeout_s, f"send to rank {target}")

    def receive(self, source: int, *, timeout_s: float = 600.0) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """Receives what ``send`` streams; see the port."""
        self._check_other(source)
        waiter = self._mesh.open_waiter()
        receiving = _Receiving(self._mesh, source, self._next("from", source), waiter)
        self._mesh.post(receiving.start)
        self._mesh.wait(waiter, timeout_s, f"receive from rank {source}")
        return receiving.note, receiving.arrays

    def abort(self, reason: str, *, suspects: Sequence[int] = ()) -> None:
        """Gives the group up at all members."""
        self._mesh.fail(GroupAbortedError(reason, suspects=suspects))

    def close(self) -> None:
        """Leaves the group and frees all it holds."""
        self._mesh.leave()

    def _next(self, direction: str, rank: int) -> int:
        with self._lock:
            return next(self._streams[direction, rank])

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InvalidInputError(f"there is no rank {rank} among {self.size} members", fix="name a member")

    def _check_other(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise InvalidInputError("a member streams nothing to itself", fix="name another member")


class _Sending:
    """State on its way to another member."""

    def __init__(
        self, mesh: Mesh, target: int, number: int, note: bytes, views: Sequence[memoryview], waiter: Waiter
    ) -> None:
        self._mesh, self._target, self._number = mesh, target, number
        self._waiter = waiter
        lengths = struct.pack(f"<{len(views)}Q", *(len(view) for view in views))
        self._head = _COUNT.pack(len(views)) + lengths + note
        self._pieces = enumerate(
            view[at : at + _PIECE_BYTES] for view in views for at in range(0, len(view), _PIECE_BYTES)
        )

    def start(self) -> None:
        """Waits for the target to be ready for it."""
        self._waiter.owe(self._target)
        self._mesh.expect(self._target, (Kind.GRANT, self._number, 0, 0), self._granted)

    def _granted(self, payload: memoryview, check: int) -> None:
        self._mesh.expect(self._target, (Kind.RECEIPT, self._number, 0, 0), self._received)
        self._mesh.send(self._target, (Kind.NOTE, self._number, 0, 0), self._head, zlib.crc32(self._head))
        for _ in range(_PIECES_UNDER_WAY):
            self._send_piece()

    def _send_piece(self) -> None:
        at, piece = next(self._pieces, (0, None))
        if piece is not None:
            tag = (Kind.PIECE, self._number, at, 0)
            # The next one follows when this was written, so that a sum's messages pass between.
            self._mesh.send(self._target, tag, piece, zlib.crc32(piece), lambda: self._mesh.post(self._send_piece))

    def _received(self, payload: memoryview, check: int) -> None:
        self._waiter.pay(self._target)
        self._waiter.end()


class _Receiving:
    """State on its way from another member.

    Attributes:
        note: as it was sent.
        arrays: the buffers' bytes.
    """

    def __init__(self, mesh: Mesh, source: int, number: int, waiter: Waiter) -> None:
        self._mesh, self._source, self._number = mesh, source, number
        self._waiter = waiter
        self.note = b""
        self.arrays: list[NDArray[np.uint8]] = []
        self._targets: Iterator[tuple[int, memoryview]] = iter(())

    def start(self) -> None:
        """Says that this member is ready."""
        self._waiter.owe(self._source)
        self._mesh.expect(self._source, (Kind.NOTE, self._number, 0, 0), self._noted)
        self._mesh.send(self._source, (Kind.GRANT, self._number, 0, 0))

    def _noted(self, payload: memoryview, check: int) -> None:
        if not self._matches(payload, check):
            return
        (count,) = _COUNT.unpack_from(payload)
        end = _COUNT.size + 8 * count
        lengths = struct.unpack_from(f"<{count}Q", payload, _COUNT.size)
        self.note = bytes(payload[end:])
        self.arrays = [np.empty(length, np.uint8) for length in lengths]
        self._targets = enumerate(
            array.data[at : at + _PIECE_BYTES] for array in self.arrays for at in range(0, len(array), _PIECE_BYTES)
        )
        self._expect_piece()

    def _expect_piece(self) -> None:
        at, target = next(self._targets, (0, None))
        if target is None:
            self._mesh.send(self._source, (Kind.RECEIPT, self._number, 0, 0))
            self._waiter.pay(self._source)
            self._waiter.end()
            return
        tag = (Kind.PIECE, self._number, at, 0)
        self._mesh.expect(self._source, tag, self._take_piece, lambda length: target)

    def _take_piece(self, payload: memoryview, check: int) -> None:
        if self._matches(payload, check):
            self._expect_piece()

    def _matches(self, payload: memoryview, check: int) -> bool:
        if zlib.crc32(payload) == check:
            return True
        self._mesh.fail(
            CorruptStateError(
                f"what rank {self._source} sent does not have its checksum",
                suspects=[self._source],
                fix="the state is fetched again from another member; look at the machines' memory and network",
            )
        )
        return False


def _as_bytes(buffer: Buffer) -> memoryview:
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8).data
    return memoryview(buffer).cast("B")
