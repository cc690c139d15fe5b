"""Where a process is found by other members of its groups, and where it forms groups with them."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import select
import socket
import ssl
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives import handshake
from elasticdl_worker.collectives.endpoint import GLOO, SHARED_MEMORY, MemberEndpoint, choose_adapter
from elasticdl_worker.collectives.handshake import Hello, RefusedError
from elasticdl_worker.collectives.links import Link
from elasticdl_worker.collectives.mesh import Mesh, SilenceLimits
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

_BACKLOG = 128
_SECRET_BYTES = 16
_STRANGER_S = 1.0
_KEPT = 256
_UNIX_PATH_BYTES = 107
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """TLS between machines.

    Attributes:
        server: for connections that come in; asks for the other side's certificate.
        client: for those that go out.
        server_name: the name that members' certificates bear; None if the context checks none.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    server_name: str | None = None


@dataclass(slots=True)
class _Knock:
    """A connection that came in and said what it wants."""

    hello: Hello
    first: bytes
    connection: socket.socket


class MemberLobby:
    """The lobby of this process; make it with ``open_lobby``.

    Args:
        listeners: bound and listening.
        endpoint: what is published.
        security: for TCP.
        patience: how long members may be silent.

    Attributes:
        regions: shared memory of this member, for all its groups.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        endpoint: MemberEndpoint,
        security: LinkSecurity | None,
        patience: SilenceLimits,
    ) -> None:
        self._listeners = listeners
        self._here = endpoint
        self._security = security
        self._patience = patience
        self._lock = threading.Lock()
        self._knocks: dict[str, list[_Knock]] = defaultdict(list)
        self._groups: dict[str, Mesh] = {}
        self._forming: dict[str, _Forming] = {}
        self._last: dict[str, int] = {}
        self._closed = False
        self.regions = OwnRegions()
        _open_lobbies.add(self)

    @property
    def endpoint(self) -> bytes:
        """Says where and how this member is reached."""
        return self._here.encode()

    def form(self, plan: GroupPlan, rank: int, *, timeout_s: float = 5.0) -> Collective:
        """Forms a group with the other members; see the port."""
        endpoints = [MemberEndpoint.decode(published) for published in plan.endpoints]
        self._check(plan, rank, endpoints)
        choice = choose_adapter(endpoints, plan.adapter)
        if choice.name == GLOO:
            _gloo()  # takes seconds the first time, for which the others are not to wait
        forming = _Forming(self, plan, rank, endpoints, choice.name, time.monotonic() + timeout_s)
        with self._lock:
            older, group = self._forming.get(plan.channel), self._groups.pop(plan.channel, None)
            self._forming[plan.channel] = forming
            self._last[plan.channel] = plan.generation
        if older is not None:
            older.mesh.fail(GroupAbortedError(f"generation {plan.generation} is being formed"))
        if group is not None:
            group.leave(wait=False)
        try:
            collective = forming.run()
            with self._lock:
                if self._last[plan.channel] == plan.generation and not self._closed:
                    self._groups[plan.channel] = forming.mesh
            return collective
        finally:
            with self._lock:
                if self._forming.get(plan.channel) is forming:
                    del self._forming[plan.channel]
            forming.close()

    def abort(self, reason: str, *, channel: str = "") -> None:
        """Ends a ``form`` that is under way, and aborts the channel's group."""
        with self._lock:
            forming, group = self._forming.get(channel), self._groups.get(channel)
        for mesh in (forming.mesh if forming else None, group):
            if mesh is not None:
                mesh.fail(GroupAbortedError(reason))

    def close(self) -> None:
        """Closes all groups and frees all."""
        with self._lock:
            self._closed = True
            forming, groups = list(self._forming.values()), list(self._groups.values())
            self._groups.clear()
            knocks = [knock for queue in self._knocks.values() for knock in queue]
            self._knocks.clear()
        for each in forming:
            each.mesh.fail(GroupAbortedError("this member is ending"))
        for mesh in groups:
            mesh.leave(wait=False)
        for knock in knocks:
            knock.connection.close()
        for mesh in groups:
            mesh.join()
        self.regions.close()
        for listener in self._listeners:
            listener.close()
        _open_lobbies.discard(self)
        if self._here.unix:
            Path(self._here.unix).unlink(missing_ok=True)

    def forget(self) -> None:
        """Closes a forked child's copies of the listening sockets."""
        for listener in self._listeners:
            listener.close()

    def _check(self, plan: GroupPlan, rank: int, endpoints: list[MemberEndpoint]) -> None:
        if not 0 <= rank < len(endpoints):
            raise InvalidInputError(f"rank {rank} has no endpoint in the plan", fix="give one for each member")
        if endpoints[rank] != self._here:
            raise InvalidInputError(f"the plan's endpoint {rank} is not this process'", fix="give its own rank")
        if len(plan.secret) < _SECRET_BYTES:
            raise InvalidInputError(
                f"a secret of {len(plan.secret)} bytes can be guessed", fix=f"draw at least {_SECRET_BYTES}"
            )
        with self._lock:
            last = self._last.get(plan.channel)
            if self._closed:
                raise InvalidInputError("the lobby was closed", fix="open another one")
        if last is not None and plan.generation <= last:
            raise InvalidInputError(
                f"generation {plan.generation} is not newer than {last}", fix="take the newest plan from the master"
            )

    # What formings share.

    def listening(self) -> list[socket.socket]:
        """The sockets on which members knock."""
        return self._listeners

    def take_knock(self, channel: str, generation: int) -> _Knock | None:
        """Who came for a group before or beside its forming; whoever is late for it is sent away."""
        with self._lock:
            queue = self._knocks[channel]
            late = [knock for knock in queue if knock.hello.generation < generation]
            found = next((knock for knock in queue if knock.hello.generation == generation), None)
            self._knocks[channel] = [knock for knock in queue if knock not in late and knock is not found]
        for knock in late:
            _send_away(knock)
        return found

    def accept(self, listener: socket.socket) -> None:
        """Takes one connection in and keeps it for the forming that it means."""
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        try:
            connection.settimeout(_STRANGER_S)
            if listener.family != socket.AF_UNIX and self._security is not None:
                connection = self._security.server.wrap_socket(connection, server_side=True)
            first = handshake.read_message(connection)
            knock = _Knock(Hello.decode(first), first, connection)
        except (OSError, RefusedError):
            connection.close()
            return
        with self._lock:
            queue = self._knocks[knock.hello.channel]
            queue.append(knock)
            dropped = queue.pop(0) if len(queue) > _KEPT else None
            other = self._forming.get(knock.hello.channel)
        if dropped is not None:
            dropped.connection.close()
        if other is not None:
            other.ring()

    def connect(self, endpoint: MemberEndpoint, timeout_s: float) -> socket.socket:
        """Connects to another member.

        Raises:
            OSError: it does not answer.
        """
        if self._here.shares_machine(endpoint):
            connection = socket.socket(socket.AF_UNIX)
            return _connected(connection, lambda: connection.connect(endpoint.unix), timeout_s)
        host, _, port = endpoint.tcp.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        if self._security is None:
            return plain
        security = self._security
        return _connected(plain, lambda: None, timeout_s, security)

    @property
    def host(self) -> str:
        """The address on which members of other machines reach this one; loopback if there are none."""
        return self._here.tcp.rpartition(":")[0].strip("[]") or "127.0.0.1"

    @property
    def here(self) -> MemberEndpoint:
        """Of this process."""
        return self._here

    @property
    def patience(self) -> SilenceLimits:
        """How long members may be silent."""
        return self._patience


class _Forming:
    """One group on its way."""

    def __init__(
        self,
        lobby: MemberLobby,
        plan: GroupPlan,
        rank: int,
        endpoints: list[MemberEndpoint],
        adapter: str,
        deadline: float,
    ) -> None:
        self._lobby, self._plan, self._rank = lobby, plan, rank
        self._endpoints, self._adapter, self._deadline = endpoints, adapter, deadline
        self._files: dict[int, int] = {}
        self._sums = -1
        self._region: SharedRegion | None = None
        self._missing = set(range(len(endpoints))) - {rank}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_lock = threading.Lock()
        self._busy: socket.socket | None = None
        self.mesh = Mesh(plan.generation, rank, len(endpoints), self._runs, lobby.patience)
        self.mesh.listen(lambda _: self._interrupt())

    def run(self) -> Collective:
        """Connects all, and makes the group.

        Raises:
            CollectiveError: some did not come, or the group was given up meanwhile.
        """
        try:
            if self._adapter == SHARED_MEMORY:
                self._region = self._lobby.regions.take()
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
                self._lobby.regions.give_back(self._region)
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
        return self._endpoints[rank].is_running(self._lobby.here)

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
            connection = self._lobby.connect(self._endpoints[other], self._remaining())
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
            knock = self._lobby.take_knock(self._plan.channel, self._plan.generation)
            if knock is not None:
                self._answer(knock)
                return
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            listeners = {listener.fileno(): listener for listener in self._lobby.listening()}
            for descriptor in listeners:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(timeout * 1000):
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self._lobby.accept(listeners[descriptor])

    def _answer(self, knock: _Knock) -> None:
        hello, connection = knock.hello, knock.connection
        with self._guarded(connection):
            try:
                expected = (len(self._endpoints), self._rank)
                if (hello.size, hello.target) != expected or hello.rank not in self._missing:
                    raise RefusedError("it is not expected")
                if hello.adapter != self._adapter:
                    raise RefusedError(f"it chose the adapter {hello.adapter}, and not {self._adapter}")
                connection.settimeout(min(_STRANGER_S, self._remaining()))
                handshake.answer(connection, self._plan.secret, knock.first)
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
        link = Link(connection)
        self._missing.discard(other)
        self.mesh.post(partial(self.mesh.add, other, link))

    def _carrier(self) -> SumCarrier:
        if self._adapter == SHARED_MEMORY:
            own, files, sums = self._region, self._files, self._sums
            assert own is not None
            self._region, self._files, self._sums = None, {}, -1
            return SharedMemorySums(self.mesh, own, files, sums, self._lobby.regions)
        if self._adapter == GLOO and len(self._endpoints) > 1:
            carrier: SumCarrier = _gloo().form_gloo(self.mesh, self._lobby.host, self._remaining())
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


def open_lobby(
    directory: Path | None,
    *,
    host: str = "",
    security: LinkSecurity | None = None,
    private_network: bool = False,
    patience: SilenceLimits | None = None,
) -> MemberLobby:
    """Opens the lobby of this process.

    Args:
        directory: where its unix socket lies, for members of the same machine: the job's, which other users cannot
            enter. None if it is to have none.
        host: the address on which members of other machines reach it; empty if there are none.
        security: TLS between machines; without it ``host`` must be loopback, ...
        private_network: ... or the network such that nobody listens in.
        patience: how long members may be silent.

    Raises:
        InvalidInputError: it could not be reached, or would be open to others.
    """
    if directory is None and not host:
        raise InvalidInputError("a lobby without a directory or a host cannot be reached", fix="give one of them")
    if host and host not in _LOOPBACK and security is None and not private_network:
        raise InvalidInputError(
            f"refusing to listen on {host} without TLS", fix="configure TLS, or say that the network is private"
        )
    listeners: list[socket.socket] = []
    unix = tcp = ""
    if directory is not None:
        unix = str(directory / f"member-{os.getpid()}-{secrets.token_hex(4)}.sock")
        if len(unix.encode()) > _UNIX_PATH_BYTES:
            raise InvalidInputError(f"the path {unix} is too long for a socket", fix="use a shorter directory")
        listeners.append(_listening(socket.socket(socket.AF_UNIX), unix))
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listeners.append(_listening(socket.socket(family), (host, 0)))
        port = listeners[-1].getsockname()[1]
        tcp = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return MemberLobby(
        listeners, MemberEndpoint.here(unix, tcp, plain=security is None), security, patience or SilenceLimits()
    )


def _gloo() -> Any:
    """The module that needs PyTorch.

    Raises:
        InvalidInputError: there is no PyTorch.
    """
    try:
        return importlib.import_module("elasticdl_worker.collectives.gloo")
    except ImportError:
        raise InvalidInputError(
            "gloo is a part of PyTorch, which is not installed", fix="pip install 'elasticdl[torch]', or use auto"
        ) from None


def _listening(listener: socket.socket, address: object) -> socket.socket:
    try:
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"cannot listen on {address}: {error}", fix="see that the directory or address exists and is yours"
        ) from None
    return listener


def _connected(
    connection: socket.socket, connect: Callable[[], None], timeout_s: float, security: LinkSecurity | None = None
) -> socket.socket:
    try:
        connection.settimeout(timeout_s)
        connect()
        if security is None:
            return connection
        return security.client.wrap_socket(connection, server_hostname=security.server_name)
    except BaseException:
        connection.close()
        raise


def _send_away(knock: _Knock) -> None:
    """Tells a member that it is late, so that it does not wait."""
    with contextlib.suppress(OSError):
        handshake.write_message(knock.connection, b"a newer generation is being formed")
    knock.connection.close()


_open_lobbies: weakref.WeakSet[MemberLobby] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lobby in list(_open_lobbies):
        lobby.forget()


os.register_at_fork(after_in_child=_forget_in_child)
