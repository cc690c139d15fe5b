"""The real api process over a real Postgres and an agent that launches nothing: what recorded states are shown from.

with recorded_cluster(seed, slots=1200) as cluster:
    cluster.url, cluster.token
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import asyncpg

from elasticdl_api.store.migrate import migrate
from elasticdl_api.web.auth import token_digest
from elasticdl_core.access import make_token
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.launcher.client import ProcessLauncher
from tests.fakes import recorded_agent, recorded_states
from tests.integration.conftest import PostgresServer

TOKEN = "admin-token-of-recorded-states"
SECRET = "cluster-secret-of-recorded-states"
Seed = Callable[[asyncpg.Connection, Path], Awaitable[Any]]
"""Writes a state: into the database, and into the data directory."""


@dataclass
class RecordedCluster:
    """An api process with what was recorded.

    Attributes:
        url: where the api listens.
        database_url: its database.
        data: its data directory.
        process: the api.
        agent: the agent's address.
        token: of an administrator.
    """

    url: str
    database_url: str
    data: Path
    process: subprocess.Popen[bytes]
    token: str = TOKEN
    agent: str = ""

    def write(self, seed: Seed) -> Any:
        """Writes more."""
        return aside(_seeded(self.database_url, self.data, seed))

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Runs one statement."""

        async def run(connection: asyncpg.Connection, _: Path) -> list[Any]:
            return await connection.fetch(statement, *values)

        return list(self.write(run))

    def add_job(self, job_id: str, **changes: Any) -> str:
        """One more job, in any state (see ``recorded_rows.job_row``); returns its id."""

        async def add(connection: asyncpg.Connection, _: Path) -> None:
            await recorded_states.add_job(connection, job_id, **changes)

        self.write(add)
        return job_id

    def launch(self, *processes: ProcessId) -> None:
        """Has the agent launch processes that only wait."""

        async def ask() -> None:
            async with ProcessLauncher(self.agent, recorded_agent.NODE_TOKEN) as launcher:
                for process in processes:
                    await launcher.launch(ProcessSpec(process))

        aside(ask())

    def make_token(self, scope: str, namespace: str | None = None) -> str:
        """A token of that scope."""
        token = make_token()
        name = f"made-{secrets.token_hex(4)}"
        self.sql(
            "INSERT INTO tokens (id, namespace, scope, sha256, name, owner) VALUES ($1, $2, $3, $4, $1, 'reader')",
            *(name, namespace, scope, token_digest(token)),
        )
        return token


def aside(work: Awaitable[Any]) -> Any:
    """Runs asyncio code in a thread: where Playwright is open, this one has a loop already."""

    async def whole() -> Any:
        return await work

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, whole()).result(300)


@contextlib.contextmanager
def recorded_cluster(
    server: PostgresServer, seed: Seed, *, slots: int = 8, settings: dict[str, str] | None = None
) -> Iterator[RecordedCluster]:
    """Serves what ``seed`` writes.

    Args:
        server: where the database is made.
        seed: writes the state.
        slots: of the cluster.
        settings: further environment of the api.
    """
    name = f"recorded_{secrets.token_hex(4)}"
    server.sql(f"CREATE DATABASE {name}")
    with contextlib.ExitStack() as stack:
        stack.callback(server.sql, f"DROP DATABASE {name} WITH (FORCE)")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-recorded-", dir="/tmp")))
        data, run = folder / "data", folder / "run"
        address = f"unix:{run}/agent.sock"
        data.mkdir()
        (data / "token").write_text(TOKEN)
        url = server.url(name)
        aside(_migrated(url))
        aside(_seeded(url, data, seed))
        agent = [sys.executable, recorded_agent.__file__, data, run, str(slots)]
        stack.enter_context(_running(agent, folder / "agent.log", _environment(), "serving"))
        environment = _environment(
            ELASTICDL_DATABASE_URL=url,
            ELASTICDL_CLUSTER_SECRET=SECRET,
            ELASTICDL_DATA_DIR=str(data),
            ELASTICDL_API_PORT="0",
            ELASTICDL_AGENT=address,
            ELASTICDL_NODE_TOKEN=recorded_agent.NODE_TOKEN,
            **(settings or {}),
        )
        api = [sys.executable, "-m", "elasticdl_api"]
        process, line = stack.enter_context(_running(api, folder / "api.log", environment, '"listening"'))
        entry = json.loads(line)
        yield RecordedCluster(f"http://{entry['host']}:{entry['port']}", url, data, process, agent=address)


def _environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTICDL_", "PYTEST_"))}
    root = str(Path(__file__).resolve().parents[2])
    return {**kept, "PYTHONPATH": root, "ELASTICDL_LOG_FORMAT": "json", **changes}


@contextlib.contextmanager
def _running(
    argv: list[Any], log: Path, environment: dict[str, str], sign: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that has written a line with ``sign``; that line, too. It is ended with the block."""
    command = [str(part) for part in argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert process.stdout is not None
    watch = threading.Timer(90, process.kill)
    watch.start()
    seen: list[bytes] = []
    draining = None
    try:
        for line in process.stdout:
            seen.append(line)
            if sign.encode() in line:
                break
        else:
            raise RuntimeError(f"{command} did not come up:\n{b''.join(seen).decode(errors='replace')[-3000:]}")
        watch.cancel()
        # Read on, or the process blocks once the pipe is full.
        draining = threading.Thread(target=_drain, args=(process.stdout, log))
        draining.start()
        yield process, line.decode()
    finally:
        watch.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if draining is not None:
            draining.join(30)
        process.stdout.close()


def _drain(stream: IO[bytes], log: Path) -> None:
    with log.open("wb") as file:
        shutil.copyfileobj(stream, file)


async def _migrated(url: str) -> None:
    database = Database(url)
    try:
        await migrate(database)
    finally:
        await database.close()


async def _seeded(url: str, data: Path, seed: Seed) -> Any:
    connection = await asyncpg.connect(url, timeout=30, command_timeout=120)
    try:
        return await seed(connection, data)
    finally:
        await connection.close()
