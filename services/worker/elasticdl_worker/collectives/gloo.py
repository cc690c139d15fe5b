"""Sums by gloo of leaves in the host's memory.

Gloo tells only the direct neighbours of a member that died, and neither ``abort`` nor ``shutdown`` ends an operation
that hangs. So when the mesh fails, the group's own connected sockets are shut down, which ends whatever waits for
them within a millisecond. That is torch's private behaviour: it is tested for the version that is installed, and each
operation has its time-out besides.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Container, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import CollectiveError, Leaf
from elasticdl_worker.collectives.process_groups import GroupSum, GroupSums, MeshStore, dist
from elasticdl_worker.collectives.sums import OwnLeaves, SumShape
from elasticdl_worker.collectives.tree import Array, StubAdder, aligned, chunk_bounds, chunk_step

_THREADS = 2


def form_gloo(mesh: Mesh, host: str, timeout_s: float) -> GlooSums:
    """Makes the group of leaves in the host's memory; see ``join_gloo``."""
    return GlooSums(mesh, join_gloo(mesh, MeshStore(mesh, timeout_s), host, timeout_s))


def join_gloo(mesh: Mesh, store: MeshStore, host: str, timeout_s: float) -> GlooGroup:
    """Makes torch's group.

    Args:
        mesh: of at least two members.
        store: over the mesh.
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
        group = dist.ProcessGroupGloo(store, mesh.rank, mesh.size, options)
        new = _descriptors(before)
        ports = sorted(port for descriptor in new if (port := _listening_port(descriptor)))
        store.set(f"ports/{mesh.rank}", ",".join(map(str, ports)))
        foreign = {int(p) for rank in range(mesh.size) for p in store.get(f"ports/{rank}").decode().split(",") if p}
        return GlooGroup(group, [dup for each in new if (dup := _own_connection(each, ports, foreign))])
    except (RuntimeError, TimeoutError) as error:
        mesh.check()
        raise CollectiveError(f"gloo could not form the group: {error}") from None


class GlooGroup:
    """Torch's group, which ends with its sockets.

    Args:
        group: torch's.
        connections: the group's connected sockets, duplicated.

    Attributes:
        group: torch's; None once it was closed.
    """

    def __init__(self, group: Any, connections: list[socket.socket]) -> None:
        self.group = group
        self._connections = connections
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Ends what hangs in gloo."""
        with self._lock:
            self._shut_down()

    def close(self, kept: object) -> None:
        """Drops the group."""
        with self._lock:
            self._shut_down()  # torch's destructor would wait for the other side
            for connection in self._connections:
                connection.close()
            self._connections = []
        self.group = None

    def _shut_down(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class GlooSums(GroupSums):
    """The sums of one group, of leaves in the host's memory."""

    def _make_memory(self, shape: SumShape) -> _Memory:
        return _Memory(shape, self._mesh.rank, self._mesh.size)

    def _make_sum(self, group: Any, memory: _Memory, operation: int, shape: SumShape, timeout_s: float) -> _GlooSum:
        return _GlooSum(self._mesh, group, memory, operation, shape, timeout_s)


class _Memory:
    """The memory for sums of one shape, kept for the next one of that shape.

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


class _GlooSum(GroupSum):
    def __init__(
        self, mesh: Mesh, group: Any, memory: _Memory, operation: int, shape: SumShape, timeout_s: float
    ) -> None:
        leaves = OwnLeaves(shape, mesh.rank, memory.homes, memory.spares)
        super().__init__(mesh, group, leaves, operation, shape, timeout_s)
        self._memory = memory

    def _issue(self, bucket: int) -> Any:
        if self._shape.fused:
            return self._allreduce(torch.from_numpy(self._memory.homes[bucket][0]))
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
