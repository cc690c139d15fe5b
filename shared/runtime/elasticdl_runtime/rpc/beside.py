"""The socket of calls that a server on a unix socket has beside that of gRPC: streams there cost a fraction."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

_UNIX = "unix:"
_LONGEST_PATH = 107
"""What a unix socket's address has room for."""


def path_beside(address: str) -> str | None:
    """The socket of a server's calls; None if it has none: it is not on a unix socket, or too deep."""
    if not address.startswith(_UNIX):
        return None
    path = f"{address.removeprefix(_UNIX)}.calls"
    return path if len(path.encode()) <= _LONGEST_PATH else None


def connect_beside(address: str) -> socket.socket | None:
    """A connection to a server's socket of calls; None if nobody is there, or nobody who has one."""
    path = path_beside(address)
    if path is None:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # It takes no time: there is somebody, with room in the queue, or not.
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def listen_beside(address: str) -> socket.socket | None:
    """The socket of calls of a server that listens at an address; None if it is to have none."""
    path = path_beside(address)
    if path is None:
        return None
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()  # of a server that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener
