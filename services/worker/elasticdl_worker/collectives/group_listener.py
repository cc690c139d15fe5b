"""The listener that other members of a process' groups find it by, and that forms groups with them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives import handshake
from elasticdl_worker.collectives.endpoint import ON_DEVICE, MemberEndpoint, choose_adapter
from elasticdl_worker.collectives.forming import STRANGER_S, Forming, IncomingConnection, load_torch
from elasticdl_worker.collectives.handshake import Hello, RefusedError
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import (
    Collective,
    GroupAbortedError,
    GroupPlan,
)
from elasticdl_worker.collectives.security import LinkSecurity
from elasticdl_worker.collectives.shared_memory import OwnRegions
from elasticdl_worker.collectives.waiting import SilenceLimits

_BACKLOG = 128
_SECRET_BYTES = 16
_KEPT = 256
"""Connections that wait for the forming that they mean, of all channels together."""
_GREETING = 64
"""Connections whose greeting is read at a time; each has ``STRANGER_S`` for all of it."""
_CROWDED_S = 0.05
_UNIX_PATH_BYTES = 107
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class MemberListener:
    """The listener of this process; make it with ``open_listener``.

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
        self._incoming: list[IncomingConnection] = []
        self._greeting = threading.Semaphore(_GREETING)
        self._groups: dict[str, Mesh] = {}
        self._forming: dict[str, Forming] = {}
        self._last: dict[str, int] = {}
        self._closed = False
        self.regions = OwnRegions()
        _open_listeners.add(self)

    @property
    def endpoint(self) -> bytes:
        """Says where and how this member is reached."""
        return self._here.encode()

    def form(self, plan: GroupPlan, rank: int, *, timeout_s: float = 5.0) -> Collective:
        """Forms a group with the other members; see the port."""
        endpoints = [MemberEndpoint.decode(published) for published in plan.endpoints]
        self._check(plan, rank, endpoints)
        choice = choose_adapter(endpoints, plan.adapter)
        if choice.name in ON_DEVICE:
            load_torch("tensors")  # takes seconds the first time, for which the others are not to wait
        forming = Forming(self, plan, rank, endpoints, choice.name, time.monotonic() + timeout_s)
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
            dropped_connections, self._incoming = self._incoming, []
        for each in forming:
            each.mesh.fail(GroupAbortedError("this member is ending"))
        for mesh in groups:
            mesh.leave(wait=False)
        for incoming in dropped_connections:
            incoming.connection.close()
        for mesh in groups:
            mesh.join()
        self.regions.close()
        for listener in self._listeners:
            listener.close()
        _open_listeners.discard(self)
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
                raise InvalidInputError("the listener was closed", fix="open another one")
        if last is not None and plan.generation <= last:
            raise InvalidInputError(
                f"generation {plan.generation} is not newer than {last}", fix="take the newest plan from the master"
            )

    # What formings share.

    def listening(self) -> list[socket.socket]:
        """The sockets on which members connect."""
        return self._listeners

    def take_incoming(self, channel: str, generation: int) -> IncomingConnection | None:
        """Takes a connection that came for a group before or beside its forming; a late one is sent away."""
        with self._lock:
            meant = [incoming for incoming in self._incoming if incoming.hello.channel == channel]
            late = [incoming for incoming in meant if incoming.hello.generation < generation]
            found = next((incoming for incoming in meant if incoming.hello.generation == generation), None)
            self._incoming = [
                incoming for incoming in self._incoming if incoming not in late and incoming is not found
            ]
        for incoming in late:
            incoming.send_away()
        return found

    def accept(self, listener: socket.socket) -> None:
        """Takes one connection in; what it says is read beside, and kept for the forming that it means."""
        if not self._greeting.acquire(timeout=_CROWDED_S):
            return
        try:
            connection, _ = listener.accept()
        except OSError as error:
            self._greeting.release()
            if not isinstance(error, BlockingIOError | ConnectionError):
                time.sleep(_CROWDED_S)  # no descriptor is free: it waits where it is, and nobody spins meanwhile
            return
        reading = threading.Thread(
            target=self._hear, args=(connection, listener.family), name="greeting", daemon=True
        )
        try:
            reading.start()
        except RuntimeError:  # no thread can be started now: whoever knocked comes again
            connection.close()
            self._greeting.release()

    def _hear(self, connection: socket.socket, family: int) -> None:
        """Reads a greeting: whoever sends one byte a second holds up nobody but himself."""
        try:
            connection.settimeout(STRANGER_S)
            if family != socket.AF_UNIX and self._security is not None:
                connection = self._security.accept(connection)
            first = handshake.read_message(connection, time.monotonic() + STRANGER_S)
            incoming = IncomingConnection(Hello.decode(first), first, connection)
        except (OSError, RefusedError):
            connection.close()
            return
        finally:
            self._greeting.release()
        with self._lock:
            self._incoming.append(incoming)
            dropped = None
            if len(self._incoming) > _KEPT or self._closed:
                # Rather one of a group that nobody forms: that may be a stranger's invention.
                unknown = (one for one in self._incoming if one.hello.channel not in self._forming)
                dropped = next(unknown, self._incoming[0])
                self._incoming.remove(dropped)
            other = self._forming.get(incoming.hello.channel)
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
            connection.settimeout(timeout_s)
            return _closed_on_error(connection, lambda: _to_unix(connection, endpoint.unix))
        host, _, port = endpoint.tcp.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        security = self._security
        return plain if security is None else _closed_on_error(plain, lambda: security.connect(plain, endpoint.name))

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
        """The time that members may be silent."""
        return self._patience


def open_listener(
    directory: Path | None,
    *,
    host: str = "",
    security: LinkSecurity | None = None,
    private_network: bool = False,
    patience: SilenceLimits | None = None,
) -> MemberListener:
    """Opens the listener of this process.

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
        raise InvalidInputError("a listener without a directory or a host cannot be reached", fix="give one of them")
    if host and host not in _LOOPBACK and security is None and not private_network:
        raise InvalidInputError(
            f"refusing to listen on {host} without TLS", fix="configure TLS, or say that the network is private"
        )
    if security is not None:
        security.check()
    listeners: list[socket.socket] = []
    unix = tcp = ""
    if directory is not None:
        unix = str(directory / f"m-{secrets.token_hex(5)}.sock")  # short, as paths of sockets must be
        if len(unix.encode()) > _UNIX_PATH_BYTES:
            raise InvalidInputError(f"the path {unix} is too long for a socket", fix="use a shorter directory")
        listeners.append(_listening(socket.socket(socket.AF_UNIX), unix))
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listeners.append(_listening(socket.socket(family), (host, 0)))
        port = listeners[-1].getsockname()[1]
        tcp = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    endpoint = MemberEndpoint.here(unix, tcp, security.name if security else "")
    return MemberListener(listeners, endpoint, security, patience or SilenceLimits())


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


def _to_unix(connection: socket.socket, path: str) -> socket.socket:
    connection.connect(path)
    return connection


def _closed_on_error(connection: socket.socket, prepare: Callable[[], socket.socket]) -> socket.socket:
    try:
        return prepare()
    except BaseException:
        connection.close()
        raise


_open_listeners: weakref.WeakSet[MemberListener] = weakref.WeakSet()


def _forget_in_child() -> None:
    for group_listener in list(_open_listeners):
        group_listener.forget()


os.register_at_fork(after_in_child=_forget_in_child)
