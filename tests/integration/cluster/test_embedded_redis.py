"""The embedded Redis: durable, and behind a password on a unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import redis.asyncio
import redis.exceptions

from elasticdl_agent.cluster.component import Component
from elasticdl_agent.cluster.redis import EmbeddedRedis
from tests.integration.cluster.conftest import processes_of

pytestmark = pytest.mark.integration
DATA = 'redis "q" \\n ë #1 \' [a]*?'
"""A name that a user may give to a folder."""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[EmbeddedRedis, int]]:
    """A running server and its pid."""
    data = folder / DATA
    data.mkdir(exist_ok=True)
    embedded = EmbeddedRedis(data, folder / "redis.sock", "queue-password", "admin-password", folder / "redis.log")
    pids: list[int] = []
    component = Component(embedded.prepare(), lambda _state, pid, _detail: pids.append(pid))
    try:
        await component.start()
        yield embedded, pids[-1]
    finally:
        await component.stop()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=60)
    try:
        yield client
    finally:
        await client.aclose()


async def test_data_survive_a_stop_and_a_start(folder: Path) -> None:
    async with running(folder) as (server, _), connected(server.url) as client:
        await client.set("kept", "7")
    assert processes_of(folder) == []
    async with running(folder) as (server, _), connected(server.url) as client:
        assert await client.get("kept") == "7"


async def test_a_torn_file_is_cut_and_a_corrupt_one_put_aside(folder: Path) -> None:
    async with running(folder) as (server, _), connected(server.url) as client:
        await client.set("kept", "7")
    (file,) = (folder / DATA).rglob("appendonly.aof*[r.]aof")
    whole = file.read_bytes()
    file.write_bytes(whole + b"*3\r\n$3\r\nSET\r\n$4\r\nto")
    async with running(folder) as (server, _), connected(server.url) as client:
        assert await client.get("kept") == "7"
    file.write_bytes(b"this is no append only file\r\n" + whole)
    async with running(folder) as (server, _), connected(server.url) as client:
        assert await client.get("kept") is None
    assert file.name in [path.name for path in (folder / DATA).rglob("corrupt-*/**/*.aof")]


async def test_only_the_password_opens_it_and_only_on_its_socket(folder: Path) -> None:
    async with running(folder) as (server, pid):
        for url in (f"unix://{folder}/redis.sock", server.url.replace("queue-password", "wrong")):
            async with connected(url) as client:
                with pytest.raises(
                    redis.exceptions.ConnectionError, match=r"authenticated|invalid username-password"
                ):
                    await client.get("kept")
        assert psutil.Process(pid).net_connections(kind="tcp") == []
        assert "password" not in " ".join(psutil.Process(pid).cmdline())
        assert (folder / "redis.conf").stat().st_mode & 0o777 == 0o600


async def test_a_master_may_run_scripts_but_not_harm_the_server(folder: Path) -> None:
    async with running(folder) as (server, _), connected(server.url) as client:
        assert await client.eval("return redis.call('INCR', KEYS[1])", 1, "{job}:n") == 1
        for command in ("FLUSHALL", "FLUSHDB", "SHUTDOWN", "CONFIG GET dir", "ACL LIST", "KEYS *", "DEBUG SLEEP 1"):
            with pytest.raises(redis.exceptions.ResponseError, match=r"no permissions|command not allowed"):
                await client.execute_command(*command.split())
        async with connected(server.admin_url) as admin:
            assert (await admin.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
            assert (await admin.config_get("appendfsync"))["appendfsync"] == "everysec"


async def test_it_starts_over_a_stale_socket(folder: Path) -> None:
    async with running(folder) as (_, pid):
        process = psutil.Process(pid)
        process.kill()
        process.wait(timeout=20)
        assert (folder / "redis.sock").exists()
    async with running(folder) as (server, _), connected(server.url) as client:
        assert await client.ping()
