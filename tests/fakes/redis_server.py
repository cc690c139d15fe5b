"""Redis on a unix socket for tests: a real one, whose log outlives a kill, and the one in memory."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from elasticdl_agent.cluster.fake_redis import MemoryServer
from elasticdl_agent.cluster.redis import find_server


class RedisServer:
    """A ``redis-server`` of our own in a temporary folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edl-redis-", dir="/tmp"))
        self.url = f"unix://{self.folder}/redis.sock"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        binary = find_server().program
        if not binary:
            pytest.skip("this machine has no Redis program")
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


class MemoryRedis:
    """The Redis of last resort, on an event loop of its own in a thread."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edl-redis-", dir="/tmp"))
        self.url = f"unix://{self.folder}/redis.sock"
        self._loop = asyncio.new_event_loop()
        self._server = MemoryServer(self.folder / "redis.sock")
        self._thread = threading.Thread(target=self._loop.run_forever, name="memory-redis", daemon=True)

    def start(self) -> None:
        """Starts the server; it accepts connections when this returns."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(timeout=30)

    def close(self) -> None:
        """Ends the server and removes its folder."""
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)
