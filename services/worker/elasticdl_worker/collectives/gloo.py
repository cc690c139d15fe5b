"""Sums by gloo, through a process group of torch's that nobody else sees.

The group is made outside torch's global state, one for each generation, with a store over the mesh: no rank's store
is lost with the rank. What members need besides sums goes over the mesh, which also notices deaths: gloo tells only
the direct neighbours of a member that died, and neither ``abort`` nor ``shutdown`` ends an operation that hangs. So
when the mesh fails, the group's own connected sockets are shut down, which ends whatever waits for them within a
millisecond. That is torch's private behaviour: it is tested for the version that is installed, and each operation has
its time-out besides.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Container, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._C._distributed_c10d

from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import CollectiveError, CollectiveTimeoutError, GroupAbortedError, Leaf
from elasticdl_worker.collectives.sums import CarriedSum, OwnLeaves, SumShape
from elasticdl_worker.collectives.tree import Array, StubAdder, aligned, chunk_bounds, chunk_step

dist: Any = torch._C._distributed_c10d
_THREADS = 2
_LOOK_S, _KNOWN_S = 0.01, 2.0
"""So soon after gloo the mesh knows what happened."""


class MeshStore(dist.Store):  # type: ignore[misc]
    """A store of which each member of a mesh has a copy; what one sets, all get.

    Args:
        mesh: of the group.
        timeout_s: how long a key is waited for.
    """

    def __init__(self, mesh: Mesh, timeout_s: float) -> None:
        super().__init__()
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._count = 0
        mesh.post(partial(mesh.handle, Kind.STORE, self._take))
        mesh.listen(self._wake)

    def set(self, key: str, value: Any) -> None:
        """Gives a key a value at all members."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._values[key] = data
            self._count += 1
            number = self._count
            self._changed.notify_all()
        name = key.encode()
        message = len(name).to_bytes(4, "little") + name + data
        for rank in range(self._mesh.size):
            if rank != self._mesh.rank:
                self._mesh.post(partial(self._mesh.send, rank, (Kind.STORE, number, 0, 0), message))

    def get(self, key: str) -> bytes:
        """The value of a key, once it has one."""
        self.wait([key])
        return self._values[key]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Sets several."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Gets several."""
        return [self.get(key) for key in keys]

    def has_extended_api(self) -> bool:
        """Whether ``multi_get`` and its kin are there: ``append`` is not."""
        return False

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        with self._changed:
            return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys have values.

        Raises:
            CollectiveError: the group is broken.
            TimeoutError: they come too late.
        """
        seconds = self._timeout_s if timeout is None else min(self._timeout_s, timeout.total_seconds())
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._mesh.failure is not None or all(key in self._values for key in keys), seconds
            )
        self._mesh.check()
        if not there:
            raise TimeoutError(f"no member has set {', '.join(keys)}")

    def _take(self, rank: int, tag: object, payload: memoryview) -> None:
        message = bytes(payload)
        end = 4 + int.from_bytes(message[:4], "little")
        with self._changed:
            self._values[message[4:end].decode()] = message[end:]
            self._changed.notify_all()

    def _wake(self, error: CollectiveError) -> None:
        with self._changed:
            self._changed.notify_all()


def form_gloo(mesh: Mesh, host: str, timeout_s: float) -> GlooSums:
    """Makes the group.

    Args:
        mesh: of at least two members.
        host: the address of this member that the others reach.
        timeout_s: how long the others are waited for.

    Raises:
        CollectiveError: that failed.
    """
    before = set(_descriptors())
    try:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = _THREADS
        store = MeshStore(mesh, timeout_s)
        group = dist.ProcessGroupGloo(store, mesh.rank, mesh.size, options)
        new = _descriptors(before)
        ports = sorted(port for descriptor in new if (port := _listening_port(descriptor)))
        store.set(f"ports/{mesh.rank}", ",".join(map(str, ports)))
        foreign = {int(p) for rank in range(mesh.size) for p in store.get(f"ports/{rank}").decode().split(",") if p}
        return GlooSums(mesh, group, [dup for each in new if (dup := _own_connection(each, ports, foreign))])
    except (RuntimeError, TimeoutError) as error:
        mesh.check()
        raise CollectiveError(f"gloo could not form the group: {error}") from None


class GlooSums:
    """The sums of one group.

    Args:
        mesh: of the group.
        group: torch's.
        connections: the group's connected sockets, duplicated.
    """

    def __init__(self, mesh: Mesh, group: Any, connections: list[socket.socket]) -> None:
        self._mesh = mesh
        self._group = group
        self._connections = connections
        self._lock = threading.Lock()
        self._shape: SumShape | None = None
        self._memory: _Memory | None = None
        self._last: _GlooSum | None = None
        mesh.listen(self._cut)
        mesh.at_end(self._close)

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum."""
        memory = self._memory
        if memory is None or shape != self._shape:
            memory = self._memory = _Memory(shape, self._mesh.rank, self._mesh.size)
            self._shape = shape
        with self._lock:
            self._last = _GlooSum(self._mesh, self._group, memory, operation, shape, timeout_s)
            return self._last

    def _cut(self, error: CollectiveError) -> None:
        """Ends what hangs in gloo."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        with self._lock:
            for connection in self._connections:
                # Torch's destructor would wait for the other side.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._connections = []
            group, self._group = self._group, None
            last, self._last = self._last, None
            self._memory = None
        # Outside the lock: what goes with the last reference waits for gloo's threads.
        del group
        if last is not None:
            last.let_go()


class _Memory:
    """What a sum of one shape needs, kept for the next one of that shape.

    A bucket is padded to equal parts for all members. What is sent has, for each member, that part of each of this
    member's stubs; with one stub that is the stub itself.
    """

    def __init__(self, shape: SumShape, rank: int, size: int) -> None:
        self.stubs = shape.stubs()
        self.adder = StubAdder(self.stubs, shape.dtype)
        own = [stub for stub in self.stubs if stub.owner == rank]
        counts = [sum(stub.owner == other for stub in self.stubs) for other in range(size)]
        self.steps: list[int] = []
        self.homes: list[list[Array]] = []
        self.whole: list[list[Array]] = []
        self.received: list[Array] = []
        self.parts: list[list[Array]] = []
        self.sums: list[Array] = []
        self.spares: dict[int, list[Array]] = {}
        for length in shape.lengths:
            step = chunk_step(length, size, shape.itemsize)
            self.steps.append(step)
            whole = [aligned(step * size, shape.dtype) for _ in own]
            for array in whole:
                array[length:] = 0
            self.whole.append(whole)
            self.homes.append([array[:length] for array in whole])
            self.sums.append(aligned(step * size, shape.dtype))
            received = aligned(step * len(self.stubs), shape.dtype)
            self.received.append(received)
            # By owner, and of one owner from left to right.
            order = sorted(range(len(self.stubs)), key=lambda at: self.stubs[at].owner)
            place = {number: at for at, number in enumerate(order)}
            self.parts.append(
                [received[place[number] * step : (place[number] + 1) * step] for number in range(len(self.stubs))]
            )
        self.counts = counts


class _GlooSum(CarriedSum):
    """Operations are issued in the order of the buckets, which is the same at all members."""

    def __init__(
        self, mesh: Mesh, group: Any, memory: _Memory, operation: int, shape: SumShape, timeout_s: float
    ) -> None:
        leaves = OwnLeaves(shape, mesh.rank, memory.homes, memory.spares)
        super().__init__(mesh, leaves, len(shape.lengths))
        self._group, self._memory, self._shape = group, memory, shape
        self._operation = operation
        self._timeout_s = timeout_s
        self._whole: set[int] = set()
        self._issued = 0
        self._works: list[Any] = []

    def _bring(self, bucket: int) -> None:
        self._whole.add(bucket)
        while self._issued in self._whole:
            self._works.append(self._issue(self._issued))
            self._issued += 1
        if self._group is None:  # the group ended meanwhile
            self._works = []

    def _issue(self, bucket: int) -> Any:
        if not self._shape.lengths[bucket]:
            return None
        with self._explained():
            if self._shape.fused:
                options = dist.AllreduceOptions()
                options.timeout = timedelta(seconds=self._timeout_s)
                return self._live().allreduce([torch.from_numpy(self._memory.homes[bucket][0])], options)
            return self._exchange(bucket)

    def _exchange(self, bucket: int) -> Any:
        memory, size, rank = self._memory, self._mesh.size, self._mesh.rank
        step, whole = memory.steps[bucket], memory.whole[bucket]
        if len(whole) == 1:
            sent = torch.from_numpy(whole[0])
        else:
            pieces = [torch.from_numpy(array[at * step : (at + 1) * step]) for at in range(size) for array in whole]
            sent = torch.cat(pieces) if pieces else torch.from_numpy(aligned(0, self._shape.dtype))
        options = dist.AllToAllOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        came = [count * step for count in memory.counts]
        gone = [memory.counts[rank] * step] * size
        return self._live().alltoall_base(torch.from_numpy(memory.received[bucket]), sent, came, gone, options)

    def _collect(self) -> list[Leaf]:
        self._mesh.brought = self._operation
        works = self._works
        self._live()  # only now: a group that ends lets go of the works last
        with self._explained():
            if not self._shape.fused:
                return self._add_parts(works)
            for work in works:
                if work is not None:
                    work.wait()
            return [homes[0].view() for homes in self._memory.homes]

    def let_go(self) -> None:
        """Drops the group, which keeps its threads and sockets as long as anybody has it; on any thread."""
        self._group = None
        self._works = []

    def _live(self) -> Any:
        """The group, as long as it lives; raises what ended it."""
        group = self._group
        if group is None:
            self._mesh.check()
        return group

    def _add_parts(self, exchanges: Sequence[Any]) -> list[Leaf]:
        memory, works = self._memory, []
        for bucket, work in enumerate(exchanges):
            if work is None:
                continue
            work.wait()
            step, sums = memory.steps[bucket], memory.sums[bucket]
            part = sums[self._mesh.rank * step : (self._mesh.rank + 1) * step]
            # Not what pads it: the last numbers are added with other instructions, which shows in the bits of a NaN.
            first, end = chunk_bounds(self._shape.lengths[bucket], self._mesh.size, self._shape.itemsize)[
                self._mesh.rank
            ]
            memory.adder.add([each[: end - first] for each in memory.parts[bucket]], part[: end - first])
            options = dist.AllgatherOptions()
            options.timeout = timedelta(seconds=self._timeout_s)
            works.append(self._live()._allgather_base(torch.from_numpy(sums), torch.from_numpy(part), options))
        for work in works:
            work.wait()
        return [sums[:length] for sums, length in zip(memory.sums, self._shape.lengths, strict=True)]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what went wrong in gloo as the mesh sees it, which may take a moment longer to notice."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            slow = "imed out" in str(error)
            if not slow:
                self._await_reason()
            self._mesh.check()
            if self._mesh.departed and not slow:
                self._mesh.fail(GroupAbortedError(f"rank {self._mesh.departed[0]} has left the group"))
            # Gloo does not say who kept it waiting; the beats do.
            owing = self._mesh.behind(self._operation)
            kind = CollectiveTimeoutError if slow else CollectiveError
            self._mesh.fail(kind(f"gloo: {error}", suspects=owing))
            self._mesh.check()

    def _await_reason(self) -> None:
        broken = threading.Event()
        self._mesh.listen(lambda _: broken.set())
        end = time.monotonic() + _KNOWN_S
        while not broken.wait(_LOOK_S) and not self._mesh.departed and time.monotonic() < end:
            pass


def _descriptors(known: Container[tuple[int, str]] = ()) -> list[tuple[int, str]]:
    """The descriptors of this process that are sockets, each with the socket's name."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = (int(entry.name), str(entry.readlink()))
            if descriptor[1].startswith("socket:") and descriptor not in known:
                found.append(descriptor)
    return found


def _listening_port(descriptor: tuple[int, str]) -> int:
    """The port on which a socket listens; 0 if it does not."""
    with contextlib.suppress(OSError), _opened(descriptor[0]) as each:
        if each.family in {socket.AF_INET, socket.AF_INET6} and each.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            return int(each.getsockname()[1])
    return 0


def _own_connection(descriptor: tuple[int, str], own: Sequence[int], foreign: Container[int]) -> socket.socket | None:
    """A duplicate of a socket that joins this member's part of the group with another one's.

    Other threads open sockets meanwhile, so that being new is not enough: one end is where a member's part listens.
    """
    with contextlib.suppress(OSError):
        each = _opened(descriptor[0])
        if each.family in {socket.AF_INET, socket.AF_INET6} and not _listening_port(descriptor):
            with contextlib.suppress(OSError):
                if each.getsockname()[1] in own or each.getpeername()[1] in foreign:
                    return each
        each.close()
    return None


def _opened(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))
