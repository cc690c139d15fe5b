"""One group on its way: each member connects to those of lower rank, and takes in those of higher rank."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.installation import install_command
from elasticdl_worker.collectives import handshake
from elasticdl_worker.collectives.endpoint import ON_DEVICE, SHARED_MEMORY, MemberEndpoint
from elasticdl_worker.collectives.handshake import Hello, RefusedError
from elasticdl_worker.collectives.links import Link
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.operations import MeshCollective
from elasticdl_worker.collectives.port import (
    Collective,
    CollectiveError,
    GroupAbortedError,
    GroupPlan,
    MemberLostError,
)
from elasticdl_worker.collectives.shared_memory import OwnRegions, SharedMemorySums, SharedRegion, make_region
from elasticdl_worker.collectives.sockets import SocketSums
from elasticdl_worker.collectives.sums import SumCarrier
from elasticdl_worker.collectives.waiting import SilenceLimits

STRANGER_S = 1.0
"""How long a caller may take to say who he is."""


@dataclass(slots=True)
class IncomingConnection:
    """A connection that came in and said what it wants."""

    hello: Hello
    first: bytes
    connection: socket.socket

    def send_away(self) -> None:
        """Tells a member that it is late, so that it does not wait."""
        with contextlib.suppress(OSError):
            handshake.write_message(self.connection, b"a newer generation is being formed")
        self.connection.close()


class ConnectionAcceptor(Protocol):
    """The parts of a listener that a forming needs."""

    @property
    def regions(self) -> OwnRegions:
        """Shared memory of this member."""
        ...

    @property
    def here(self) -> MemberEndpoint:
        """Of this process."""
        ...

    @property
    def host(self) -> str:
        """The address on which members of other machines reach this one; loopback if there are none."""
        ...

    @property
    def patience(self) -> SilenceLimits:
        """The time that members may be silent."""
        ...

    def connect(self, endpoint: MemberEndpoint, timeout_s: float) -> socket.socket:
        """Connects to another member."""
        ...

    def take_incoming(self, channel: str, generation: int) -> IncomingConnection | None:
        """Takes a connection that came for a group before or beside its forming."""
        ...

    def accept(self, listener: socket.socket) -> None:
        """Takes one connection in and keeps it for the forming that it means."""
        ...

    def listening(self) -> list[socket.socket]:
        """The sockets on which members connect."""
        ...


class Forming:
    """One group on its way."""

    def __init__(
        self,
        group_listener: ConnectionAcceptor,
        plan: GroupPlan,
        rank: int,
        endpoints: list[MemberEndpoint],
        adapter: str,
        deadline: float,
    ) -> None:
        self._group_listener, self._plan, self._rank = group_listener, plan, rank
        self._endpoints, self._adapter, self._deadline = endpoints, adapter, deadline
        self._files: dict[int, int] = {}
        self._sums = -1
        self._region: SharedRegion | None = None
        self._missing = set(range(len(endpoints))) - {rank}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_lock = threading.Lock()
        self._busy: socket.socket | None = None
        self.mesh = Mesh(plan.generation, rank, len(endpoints), self._runs, group_listener.patience)
        self.mesh.listen(lambda _: self._interrupt())

    def run(self) -> Collective:
        """Connects all, and makes the group.

        Raises:
            CollectiveError: some did not come, or the group was given up meanwhile.
        """
        try:
            if self._adapter == SHARED_MEMORY:
                self._region = self._group_listener.regions.take()
                if self._rank == 0:
                    self._sums = make_region()
            for other in range(self._rank):
                self._reach(other)
            while self._missing:
                self._receive()
            self.mesh.check()
            return MeshCollective(self._adapter, self.mesh, self._carrier())
        except CollectiveError as error:
            self.mesh.fail(error)
            raise
        except BaseException as error:
            self.mesh.fail(GroupAbortedError(f"the group could not be formed: {error}"))
            raise
        finally:
            if self._region is not None:
                self._group_listener.regions.give_back(self._region)
            for descriptor in (*self._files.values(), self._sums):
                if descriptor >= 0:
                    os.close(descriptor)

    def ring(self) -> None:
        """Has the forming look what happened."""
        with self._bell_lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Frees what only the forming needed."""
        with self._bell_lock:
            os.close(self._bell)
            self._bell = -1

    def _interrupt(self) -> None:
        """Ends what the forming waits for: the group was given up."""
        self.ring()
        with self._bell_lock:
            if self._busy is not None:
                with contextlib.suppress(OSError):
                    self._busy.shutdown(socket.SHUT_RDWR)

    def _runs(self, rank: int) -> bool:
        return self._endpoints[rank].is_running(self._group_listener.here)

    def _remaining(self) -> float:
        """Seconds left.

        Raises:
            MemberLostError: none; who is missing did not come.
            CollectiveError: the group was given up.
        """
        self.mesh.check()
        remaining = self._deadline - time.monotonic()
        if remaining > 0:
            return remaining
        missing = sorted(self._missing)
        raise MemberLostError(
            f"ranks {', '.join(map(str, missing))} did not come to form generation {self._plan.generation}",
            suspects=missing,
        )

    def _reach(self, other: int) -> None:
        """Connects to a member of lower rank."""
        hello = Hello(
            self._plan.channel,
            self._plan.generation,
            len(self._endpoints),
            self._adapter,
            self._rank,
            other,
            handshake.draw_nonce(),
        )
        try:
            connection = self._group_listener.connect(self._endpoints[other], self._remaining())
        except OSError as error:
            self._remaining()
            raise MemberLostError(f"rank {other} cannot be reached: {error}", suspects=[other]) from None
        with self._guarded(connection):
            try:
                connection.settimeout(self._remaining())
                handshake.greet(connection, self._plan.secret, hello)
                self._exchange_memory(connection, other, connects=True)
            except OSError as error:
                self._remaining()
                raise MemberLostError(f"rank {other} is gone: {error}", suspects=[other]) from None
            except RefusedError as error:
                raise GroupAbortedError(f"rank {other} refuses generation {self._plan.generation}: {error}") from None
            self._link(other, connection)

    def _receive(self) -> None:
        """Waits for a member of higher rank, and takes it in."""
        while True:
            timeout = self._remaining()
            incoming = self._group_listener.take_incoming(self._plan.channel, self._plan.generation)
            if incoming is not None:
                self._answer(incoming)
                return
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            listeners = {listener.fileno(): listener for listener in self._group_listener.listening()}
            for descriptor in listeners:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(timeout * 1000):
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self._group_listener.accept(listeners[descriptor])

    def _answer(self, incoming: IncomingConnection) -> None:
        hello, connection = incoming.hello, incoming.connection
        with self._guarded(connection):
            try:
                expected = (len(self._endpoints), self._rank)
                if (hello.size, hello.target) != expected or hello.rank not in self._missing:
                    raise RefusedError("it is not expected")
                if hello.adapter != self._adapter:
                    raise RefusedError(f"it chose the adapter {hello.adapter}, and not {self._adapter}")
                connection.settimeout(min(2 * STRANGER_S, self._remaining()))
                handshake.answer(connection, self._plan.secret, incoming.first)
                self._exchange_memory(connection, hello.rank, connects=False)
            except (OSError, RefusedError):
                # It may have been a stranger. The member itself is still awaited.
                connection.close()
                return
            self._link(hello.rank, connection)

    def _exchange_memory(self, connection: socket.socket, other: int, *, connects: bool) -> None:
        if self._adapter != SHARED_MEMORY:
            return
        assert self._region is not None
        own = [self._region.descriptor]
        count = 1
        if self._rank == 0:
            own.append(self._sums)
        if other == 0:
            count = 2
        handshake.send_descriptors(connection, own)
        self._files[other], *sums = handshake.receive_descriptors(connection, count)
        if sums:
            self._sums = sums[0]

    def _link(self, other: int, connection: socket.socket) -> None:
        self._missing.discard(other)
        self.mesh.add(other, Link(connection))

    def _carrier(self) -> SumCarrier:
        if self._adapter == SHARED_MEMORY:
            own, files, sums = self._region, self._files, self._sums
            assert own is not None
            self._region, self._files, self._sums = None, {}, -1
            return SharedMemorySums(self.mesh, own, files, sums, self._group_listener.regions)
        if self._adapter in ON_DEVICE:
            form = load_torch("tensors").form_tensors
            carrier: SumCarrier = form(self.mesh, self._adapter, self._group_listener.host, self._remaining())
            return carrier
        return SocketSums(self.mesh)

    @contextlib.contextmanager
    def _guarded(self, connection: socket.socket) -> Iterator[None]:
        """Has an interruption end what waits for a socket, which is closed if anything fails."""
        with self._bell_lock:
            self._busy = connection
        try:
            self.mesh.check()
            yield
        except BaseException:
            connection.close()
            raise
        finally:
            with self._bell_lock:
                self._busy = None


def load_torch(name: str) -> Any:
    """A module that needs PyTorch.

    Raises:
        InvalidInputError: there is no PyTorch.
    """
    try:
        return importlib.import_module(f"elasticdl_worker.collectives.{name}")
    except ImportError:
        raise InvalidInputError(
            "gloo and nccl are parts of PyTorch, which is not installed",
            fix=f"{install_command('torch')}, or use auto",
        ) from None
