"""Networks between members of a group that swallow what is sent, as when a cable is pulled."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping, Sequence

HOST = "127.0.0.1"


class Hole:
    """Passes bytes on between members, until it swallows them: nothing is closed, nothing arrives.

    Args:
        target: ``host:port`` of the member that is reached through it.

    Attributes:
        address: where others connect instead.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._swallows = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """From now on nothing gets through."""
        self._swallows.set()

    def close(self) -> None:
        """Ends all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.create_connection(self._target)
            for one in (inner, outer):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [inner, outer]
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if not self._swallows.is_set():
                    sink.sendall(piece)


def hole_before(endpoint: bytes) -> Hole:
    """A hole through which others reach a member.

    Args:
        endpoint: what it publishes.
    """
    return Hole(json.loads(endpoint)["tcp"])


def seen_from(rank: int, endpoints: Sequence[bytes], through: Mapping[int, Hole]) -> list[bytes]:
    """The endpoints of a group as a member sees them whose others are on other machines, out of sight.

    Args:
        rank: of the member.
        endpoints: what all publish.
        through: those that it reaches through a hole.
    """
    seen = []
    for other, endpoint in enumerate(endpoints):
        if other == rank:
            seen.append(endpoint)
            continue
        data = json.loads(endpoint) | {"machine": f"machine {other}"}
        if other in through:
            data["tcp"] = through[other].address
        seen.append(json.dumps(data).encode())
    return seen
