"""The scheduler as a process, with a real agent, killed and replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import policy_by_name
from elasticdl_runtime.launcher.client import ProcessLauncher

pytestmark = pytest.mark.integration

TOKEN = "node-token-of-this-test"


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="edl-", dir="/tmp") as run:
        directories = AgentDirectories(tmp_path, Path(run))
        endpoints = Endpoints("cluster-secret-of-this-test", "http://127.0.0.1:1", "redis://127.0.0.1:1")
        async with Agent(directories, endpoints, TOKEN, 3) as agent:
            yield agent


async def start(url: str, agent: Agent) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "ELASTICDL_DATABASE_URL": url,
        "ELASTICDL_AGENT": agent.address,
        "ELASTICDL_NODE_TOKEN": TOKEN,
        "ELASTICDL_SCHEDULER_INTERVAL_S": "0.5",
        "ELASTICDL_SCHEDULER_LEASE_S": "1",
        "ELASTICDL_LOG_FORMAT": "json",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "elasticdl_scheduler", env=environment, stderr=asyncio.subprocess.PIPE
    )


async def until_targets(connection: Any, changed: asyncio.Event, expected: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while True:
            changed.clear()
            rows = await connection.fetch("SELECT id, target_workers FROM jobs ORDER BY id")
            if {row["id"]: row["target_workers"] for row in rows} == expected:
                return
            await changed.wait()


async def end(process: asyncio.subprocess.Process, number: int) -> tuple[int, str]:
    process.send_signal(number)
    async with asyncio.timeout(60):
        _, log = await process.communicate()
    assert process.returncode is not None
    return process.returncode, log.decode()


async def test_killed_and_replaced_it_goes_on_and_stops_cleanly(world: Any, agent: Agent) -> None:
    listener = await asyncpg.connect(world.url)
    changed = asyncio.Event()
    await listener.add_listener("elasticdl_jobs", lambda *_: changed.set())
    first = await start(world.url, agent)
    try:
        await world.submit("a", max_workers=2)
        await until_targets(world.sql, changed, {"a": 2})
        epoch = await world.sql.fetchval("SELECT epoch FROM leadership")
    finally:
        await end(first, signal.SIGKILL)
    await world.submit("b", max_workers=2)
    second = await start(world.url, agent)
    try:
        await until_targets(world.sql, changed, {"a": 2, "b": 1})
        assert await world.sql.fetchval("SELECT epoch FROM leadership") > epoch
        assert await world.sql.fetchval("SELECT count(*) FROM launch_intents") == 2
    finally:
        code, log = await end(second, signal.SIGTERM)
        await listener.close()
    assert code == 0, log
    assert '"stopped"' in log
    assert await world.sql.fetchval("SELECT expires_at < now() FROM leadership")


async def _is_writing(connection: Any) -> None:
    """Waits until a scheduler stands before the locked decision log, its other writes of the pass done."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO plans%'"
    async with asyncio.timeout(60):
        while not await connection.fetchval(query):  # noqa: ASYNC110 - Postgres notifies nobody of its locks
            await asyncio.sleep(0.02)


async def test_killed_in_the_middle_of_a_decision_the_next_one_makes_the_same(world: Any, agent: Agent) -> None:
    """The decision log is locked, so that the pass cannot be committed when the process is killed."""
    for i in range(5):
        await world.submit(f"job-{i}", min_workers=1 + i % 2, max_workers=3, priority=i % 3)
    _, _, store = world.scheduler()
    snapshot = (await store.read(await agent_capacity(agent))).snapshot
    wanted = policy_by_name("goodput").plan(snapshot).targets()
    listener, locker = await asyncpg.connect(world.url), await asyncpg.connect(world.url)
    changed = asyncio.Event()
    await listener.add_listener("elasticdl_jobs", lambda *_: changed.set())
    try:
        for _ in range(2):
            async with locker.transaction():
                await locker.execute("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE")
                victim = await start(world.url, agent)
                try:
                    await _is_writing(world.sql)
                finally:
                    await end(victim, signal.SIGKILL)
            assert await world.targets() == dict.fromkeys(wanted, 0), "half a decision is in force"
        last = await start(world.url, agent)
        try:
            await until_targets(world.sql, changed, dict(sorted(wanted.items())))
            assert await world.sql.fetchval("SELECT count(*) FROM plans") == 1
            assert await world.sql.fetchval("SELECT count(*) FROM launch_intents") == sum(
                n > 0 for n in wanted.values()
            )
        finally:
            await end(last, signal.SIGTERM)
    finally:
        await listener.close()
        await locker.close()


async def agent_capacity(agent: Agent) -> CapacityInfo:
    async with ProcessLauncher(agent.address, TOKEN) as launcher:
        return await launcher.capacity()


async def test_without_settings_it_says_which_is_missing() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elasticdl_scheduler",
        env={key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, log = await process.communicate()
    assert process.returncode == 64
    assert "ELASTICDL_DATABASE_URL is not set" in log.decode()
