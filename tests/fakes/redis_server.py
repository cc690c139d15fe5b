"""A real Redis on a unix socket for tests, whose log outlives a kill."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from elasticdl_agent.cluster.redis import find_server


class RedisServer:
    """A ``redis-server`` of our own in a temporary folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edl-redis-", dir="/tmp"))
        self.url = f"unix://{self.folder}/redis.sock"
        self._process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        """The file to which changes are appended; of newer servers one of several."""
        return next(iter(sorted(self.folder.rglob("*.incr.aof"))), self.folder / "appendonly.aof")

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        binary = find_server()
        options = {
            "port": "0",
            "unixsocket": str(self.folder / "redis.sock"),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        seen = []
        for line in self._process.stdout:
            seen.append(line)
            if "ready to accept connections" in line.lower():
                return
        raise RuntimeError("Redis did not start: " + "".join(seen))

    def kill(self) -> None:
        """Ends the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        """Ends the server and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
