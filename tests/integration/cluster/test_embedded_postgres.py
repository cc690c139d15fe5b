"""The embedded Postgres: made once, durable, started again after any end, not run as root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest

from elasticdl_agent.cluster import postgres as module
from elasticdl_agent.cluster.component import Component
from elasticdl_agent.cluster.postgres import EmbeddedPostgres
from elasticdl_core.errors import InvalidInputError
from tests.integration.cluster.conftest import processes_of

pytestmark = pytest.mark.integration

PASSWORD = "password-of-the-tests"


@asynccontextmanager
async def running(
    folder: Path, sockets: Path | None = None
) -> AsyncIterator[tuple[EmbeddedPostgres, Component, int]]:
    """A running server; yields it, its component and its pid."""
    sockets = sockets or folder / "sockets"
    server = EmbeddedPostgres(folder / "postgres", sockets, PASSWORD, folder / "postgres.log")
    pids: list[int] = []
    component = Component(server.prepare(), lambda _state, pid, _detail: pids.append(pid))
    try:
        await component.start()
        yield server, component, pids[-1]
    finally:
        await component.stop()


async def run_sql(server: EmbeddedPostgres, *statements: str) -> object:
    connection = await asyncpg.connect(server.url, timeout=60)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement, timeout=60)
        return await connection.fetchval(statements[-1], timeout=60)
    finally:
        await connection.close()


async def test_data_survive_a_stop_and_a_start(folder: Path) -> None:
    async with running(folder) as (server, _, _):
        await run_sql(server, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7) RETURNING n")
    assert processes_of(folder) == []
    async with running(folder) as (server, _, _):
        assert await run_sql(server, "SELECT n FROM kept") == 7


async def test_data_survive_a_kill_of_every_process_and_a_pid_that_was_used_again(folder: Path) -> None:
    async with running(folder) as (server, component, pid):
        await run_sql(server, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7) RETURNING n")
        data = Path(psutil.Process(pid).cwd())
        pid_file = (data / "postmaster.pid").read_text()
        shim = psutil.Process(pid).parent()
        assert shim is not None
        victims = [shim, *shim.children(recursive=True)]
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(victims, timeout=20)
        await component.stop()
    # As after a power failure: a pid file, and its pid belongs to another program now (this one).
    (data / "postmaster.pid").write_text(pid_file.replace(str(pid), str(os.getpid()), 1))
    async with running(folder) as (server, _, _):
        assert await run_sql(server, "SELECT n FROM kept") == 7


async def test_a_server_that_outlived_its_supervisor_is_taken_down(folder: Path) -> None:
    async with running(folder) as (server, _, pid):
        await run_sql(server, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7) RETURNING n")
        data, home = Path(psutil.Process(pid).cwd()), folder / "sockets"
    program = module.find_installation(None).bin / "postgres"
    identity = {} if os.geteuid() else {"user": "nobody", "extra_groups": []}
    with (folder / "stray.log").open("wb") as log:
        stray = subprocess.Popen([program, "-D", data, "-k", home], stderr=log, cwd="/", **identity)
        try:
            _await_pid_file(data, stray)
            async with running(folder) as (server, _, pid):
                assert pid != stray.pid
                assert stray.wait(timeout=20) is not None
                assert await run_sql(server, "SELECT n FROM kept") == 7
        finally:
            if stray.poll() is None:
                stray.kill()
                stray.wait()


def _await_pid_file(data: Path, server: subprocess.Popen[bytes]) -> None:
    ready = [sys.executable, "-c", "import sys,time\nwhile 'ready' not in open(sys.argv[1]).read(): time.sleep(0.01)"]
    subprocess.run([*ready, data / "postmaster.pid"], check=True, timeout=30)
    assert server.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="data lie apart only where root runs Postgres as another user")
async def test_data_of_a_cluster_that_was_moved_survive_another_that_comes_up(folder: Path) -> None:
    closed = folder / "closed"
    first, moved, other = (closed / name for name in ("first", "moved", "other"))
    for made in (closed, first, other):
        made.mkdir(mode=0o700)
    folder.chmod(0o711)  # for its sockets
    async with running(first, folder / "sockets") as (server, _, _):
        await run_sql(server, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7) RETURNING n")
    assert (first / "postgres").is_symlink()
    first.rename(moved)
    prepared(other)  # before it is up again: nobody knows yet where it is now
    async with running(moved, folder / "sockets") as (server, _, _):
        (other / "postgres").unlink()
        prepared(other)
        assert await run_sql(server, "SELECT n FROM kept") == 7
    home = (moved / "postgres").resolve()
    assert home.with_name(f"{home.name}.owner").read_text() == f"{moved}/postgres\n"


def prepared(folder: Path) -> None:
    """Prepares a database as a cluster that comes up does."""
    EmbeddedPostgres(folder / "postgres", folder / "sockets", PASSWORD, folder / "postgres.log").prepare()


async def test_a_half_made_database_is_made_anew(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", folder / "sockets", PASSWORD, folder / "postgres.log")
    server.prepare()
    home = (folder / "postgres").resolve()
    (home / "data").rename(home / "data.new")
    (home / "data.new" / "PG_VERSION").unlink()
    (home / "password.new").write_text("left over")
    async with running(folder) as (server, _, _):
        assert await run_sql(server, "SELECT 1") == 1
    assert sorted(path.name for path in home.iterdir()) == ["data"]


async def test_it_wants_the_password_listens_on_no_port_and_is_not_root(folder: Path) -> None:
    async with running(folder) as (server, _, pid):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.url.replace(PASSWORD, "wrong"), timeout=60)
        assert psutil.Process(pid).net_connections(kind="tcp") == []
        assert psutil.Process(pid).uids().effective != 0
        assert PASSWORD not in " ".join(psutil.Process(pid).cmdline())


async def test_a_server_that_dies_comes_back(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", folder / "sockets", PASSWORD, folder / "postgres.log")
    changes: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    component = Component(server.prepare(), lambda state, pid, _detail: changes.put_nowait((state, pid)))
    try:
        await component.start()
        assert [(await changes.get())[0], (await changes.get())[0]] == ["starting", "running"]
        os.kill(psutil.Process(_server_pid(folder)).pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            assert [(await changes.get())[0] for _ in range(3)] == ["restarting", "starting", "running"]
        assert component.restarts == 1
        assert await run_sql(server, "SELECT 1") == 1
    finally:
        await component.stop()


def _server_pid(folder: Path) -> int:
    pid_file = (folder / "postgres").resolve() / "data" / "postmaster.pid"
    return int(pid_file.read_text().split("\n", 1)[0])


def test_data_of_a_version_that_is_not_here_are_left_alone(folder: Path) -> None:
    data = folder / "postgres" / "data"
    data.mkdir(parents=True)
    (folder / "postgres").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder / "postgres", *module._unprivileged_user())
        folder.chmod(0o711)
    (data / "PG_VERSION").write_text("9\n")
    server = EmbeddedPostgres(folder / "postgres", folder / "sockets", PASSWORD, folder / "postgres.log")
    with pytest.raises(InvalidInputError, match="Postgres 9"):
        server.prepare()
    assert (data / "PG_VERSION").read_text() == "9\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")
async def test_root_may_keep_its_data_directory_and_its_programs_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    inner = closed / "data"
    inner.mkdir(mode=0o700)
    installed = module.find_installation(None)
    monkeypatch.setattr(module, "_SHARED", folder / "shared")
    folder.chmod(0o755)
    monkeypatch.setattr(module, "can_reach", _closed_to_nobody(installed.bin / "postgres"))
    async with running(inner, folder / "sockets") as (server, _, pid):
        assert (inner / "postgres").is_symlink()
        assert Path(psutil.Process(pid).exe()).is_relative_to(folder / "shared")
        assert await run_sql(server, "SELECT 1") == 1
    async with running(inner, folder / "sockets") as (second, _, _):
        server.release()
        assert await run_sql(second, "SELECT 1") == 1, "the copy stays while somebody uses it"
    (folder / "shared" / "clusters").rename(folder / "clusters")  # as if the data were elsewhere
    second.release()
    assert not (folder / "shared").exists(), "temporary data leave nothing"
    assert closed.stat().st_mode & 0o777 == 0o700
    assert inner.stat().st_mode & 0o777 == 0o700


def _closed_to_nobody(program: Path):
    real = module.can_reach

    def can_reach(path: Path, uid: int, gid: int, *, opening: bool = False) -> bool:
        return path != program and real(path, uid, gid, opening=opening)

    return can_reach
