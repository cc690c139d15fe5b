"""A Redis of its own for a comparison, in memory only, on a unix socket."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.training.processes import Train
from elasticdl_agent.cluster.redis import find_server

_KEPT: list[Any] = []
_START_S = 30.0


def start(arguments: dict[str, Any]) -> tuple[Train, str]:
    """Starts the program that the product would run; answers with its socket.

    Args:
        arguments: ``folder`` for the socket.

    Raises:
        InvalidInputError: there is no Redis program.
    """
    import redis

    folder = Path(arguments["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "redis.sock"
    settings = {"port": "0", "unixsocket": str(socket), "save": "", "appendonly": "no", "dir": str(folder)}
    command = [find_server(), *(part for name, value in settings.items() for part in (f"--{name}", value))]
    _KEPT.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    client, until = redis.Redis(unix_socket_path=str(socket)), time.monotonic() + _START_S
    while True:
        try:
            client.ping()
            return (lambda seconds: 0), str(socket)
        except redis.ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
