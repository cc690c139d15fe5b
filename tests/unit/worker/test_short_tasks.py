"""Reports that bring the next task, for workers whose tasks are short."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_worker.master.client import LeasedTask, MasterClient
from elasticdl_worker.master.session import Session
from tests.fakes.master import FakeMaster

pytestmark = pytest.mark.unit


@contextlib.asynccontextmanager
async def opened(spec: Any, folder: Path, short_task_s: float) -> AsyncIterator[tuple[FakeMaster, Session]]:
    master = FakeMaster(spec, folder)
    await master.start()
    for index in range(6):
        master.add(TaskType.TRAINING, Shard("a", 10 * index, 10 * index + 10), epoch=0, index=index)
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    yield master, Session(client, short_task_s=short_task_s)
    await client.close()
    await master.stop()


async def begin(session: Session) -> LeasedTask:
    lease = await asyncio.to_thread(session.lease_task)
    assert lease is not None
    return lease


async def report(session: Session, lease: LeasedTask) -> None:
    await asyncio.to_thread(session.report, lease, 10, None, 1)
    await asyncio.sleep(0)
    await session.flush()


async def test_short_tasks_come_with_reports_and_in_order(make_spec: Any, tmp_path: Path) -> None:
    async with opened(make_spec(), tmp_path, math.inf) as (master, session):
        done = []
        for _ in range(3):
            lease = await begin(session)
            done.append(lease.task.id.index)
            await report(session, lease)
            (held,) = master.doing
            assert list(session.progress.take_snapshot().positions) == [held], "it is not kept alive by heartbeats"
        assert done == [0, 1, 2]
        assert len(master.todo) == 2
        assert [one.max_tasks for one in master.reports] == [1, 1, 1]


async def test_a_worker_keeps_no_long_task_from_others(make_spec: Any, tmp_path: Path) -> None:
    async with opened(make_spec(), tmp_path, -1.0) as (master, session):
        for _ in range(2):
            await report(session, await begin(session))
            assert not master.doing


async def test_not_more_than_one_task_waits(make_spec: Any, tmp_path: Path) -> None:
    async with opened(make_spec(), tmp_path, math.inf) as (master, session):
        first, second = await begin(session), await begin(session)
        await report(session, first)
        await report(session, second)
        assert len(master.doing) == 1
        assert (await begin(session)).task.id.index == 2


async def test_a_worker_that_leaves_hands_out_what_it_did_not_begin(make_spec: Any, tmp_path: Path) -> None:
    async with opened(make_spec(), tmp_path, math.inf) as (master, session):
        first, second = await begin(session), await begin(session)
        await report(session, first)
        left = await asyncio.to_thread(session.take_ready_tasks)
        assert [lease.task.id.index for lease in left] == [2]
        session.request_drain()
        await report(session, second)
        assert list(master.doing) == [left[0].token], "a worker that leaves asked for more"
        assert await asyncio.to_thread(session.lease_task) is None


async def test_what_came_too_late_goes_back(make_spec: Any, tmp_path: Path) -> None:
    async with opened(make_spec(), tmp_path, math.inf) as (master, session):
        first, second = await begin(session), await begin(session)
        await report(session, first)
        session.request_drain()
        await report(session, second)
        assert not master.doing
        assert [one.position for one in master.returns] == [20]
        assert await asyncio.to_thread(session.take_ready_tasks) == []
