"""Schedulers over a real Postgres; the launcher is a fixed number of slots."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from elasticdl_api.store.migrate import migrate
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse
from elasticdl_core.scheduling import Quota, policy_by_name
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import transition
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.loop import Scheduler
from elasticdl_scheduler.store import SchedulerStore

TEMPLATE = "scheduler_template"


@pytest.fixture(scope="session")
def scheduler_template(postgres_server: Any) -> str:
    postgres_server.sql(f"CREATE DATABASE {TEMPLATE}")

    async def prepare() -> None:
        database = Database(postgres_server.url(TEMPLATE))
        try:
            await migrate(database)
        finally:
            await database.close()

    asyncio.run(prepare())
    return TEMPLATE


@pytest.fixture
def database_url(
    scheduler_template: str, lend_database: Callable[[str], AbstractContextManager[str]]
) -> Iterator[str]:
    with lend_database(scheduler_template) as url:
        yield url


@dataclass
class Slots:
    """A launcher of which only the capacity is asked."""

    slots: int
    used: dict[str, int] = field(default_factory=dict)
    down: bool = False
    devices: int = 0
    device_uses: list[DeviceUse] = field(default_factory=list)
    memory_mib: int = 0

    async def capacity(self) -> CapacityInfo:
        if self.down:
            await asyncio.Event().wait()
        devices = tuple(DeviceInfo(f"gpu{number}", declared=True) for number in range(self.devices))
        uses = tuple(sorted(self.device_uses))
        return CapacityInfo(
            self.slots, dict(self.used), devices=devices, device_uses=uses, memory_mib=self.memory_mib
        )


class World:
    """A database with jobs, and schedulers made on it."""

    def __init__(self, url: str, connection: Any) -> None:
        self.url = url
        self.sql = connection
        self.slots = Slots(4)
        self._databases: list[Database] = []

    def scheduler(
        self,
        *,
        lease_s: float = 600.0,  # what a test does in between takes long on a busy machine
        interval_s: float = 3600.0,
        policy: str = "goodput",
        quotas: dict[str, Quota] | None = None,
    ) -> tuple[Scheduler, Leadership, SchedulerStore]:
        database = Database(self.url)
        self._databases.append(database)
        leadership = Leadership(database, lease_s)
        store = SchedulerStore(database, leadership, quotas or {})
        launcher: Any = self.slots
        scheduler = Scheduler(database, leadership, store, launcher, policy_by_name(policy), interval_s)
        return scheduler, leadership, store

    async def submit(self, job_id: str, **columns: Any) -> None:
        values = {
            "id": job_id,
            "name": "job",
            "type": "training",
            "spec": json.dumps({"model_def": "m.f"}),
            "min_workers": 1,
            "max_workers": 4,
        } | columns
        names = ", ".join(values)
        marks = ", ".join(f"${i + 1}" for i in range(len(values)))
        await self.sql.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", *values.values())

    async def job(self, job_id: str) -> Any:
        return await self.sql.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)

    async def change(self, job_id: str, *states: JobState) -> None:
        """Changes a job's state, as its owner or its master would, through each of these."""
        database = Database(self.url)
        try:
            for origin, to in itertools.pairwise(states):
                async with database.transaction() as connection:
                    assert await transition(connection, job_id, origin, to, "as the test says")
        finally:
            await database.close()

    async def running(self, job_id: str) -> None:
        """The job's master came up."""
        await self.change(job_id, JobState.STARTING, JobState.RUNNING)

    async def targets(self) -> dict[str, int]:
        rows = await self.sql.fetch("SELECT id, target_workers FROM jobs ORDER BY id")
        return {row["id"]: row["target_workers"] for row in rows}

    async def close(self) -> None:
        for database in self._databases:
            await database.close()


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    connection = await asyncpg.connect(database_url)
    world = World(database_url, connection)
    try:
        yield world
    finally:
        await world.close()
        await connection.close()
