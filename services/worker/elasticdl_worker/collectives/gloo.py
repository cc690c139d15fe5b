"""Joins members by gloo, for tensors whose device is the CPU.

Gloo tells only the direct neighbours of a member that died, and neither ``abort`` nor ``shutdown`` ends an operation
that hangs. So when the mesh fails, the group's own connected sockets are shut down, which ends what waits for them
within a millisecond, but for one thing: a message of which a part has come or gone is no longer among those that gloo
tells, and whoever waits for it waits until the operation's time is up (ADR 177). That may be a thread of torch's; it
is no member, since sums on devices look at their operations and do not wait for them.
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

from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import CollectiveError
from elasticdl_worker.collectives.process_groups import MeshStore, dist

_THREADS = 2


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
