"""A worker's calls of its master, broken off at each await: nothing that it says is lost, and nothing is held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.master.client import HeartbeatAnswer, LeaseAnswer, LeasedTask, TaskReport, WorkerDirective
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.progress import ProgressSnapshot
from tests.fakes.cuts import Cut, Moment, places

pytestmark = pytest.mark.unit


def task(number: int) -> LeasedTask:
    return LeasedTask(Task(TaskId(TaskType.TRAINING, 0, number, 0, 9), Shard("a", 0, 9)), f"1.{number}.x")


class FarMaster:
    """A master so far away that there is a step before each of its moves, and one after."""

    def __init__(self) -> None:
        self.given = 0
        self.told: list[int] = []
        self.done: list[str] = []

    async def heartbeat(self, state: ProgressSnapshot) -> HeartbeatAnswer:
        await asyncio.sleep(0)
        self.told += [version for version, _ in state.losses]
        await asyncio.sleep(0)
        return HeartbeatAnswer(WorkerDirective.CONTINUE)

    async def lease(self) -> LeaseAnswer:
        await asyncio.sleep(0)
        self.given += 1
        await asyncio.sleep(0)
        return LeaseAnswer(WorkerDirective.CONTINUE, (task(self.given),))

    async def report(
        self, lease: LeasedTask, done: TaskReport, limit: int = 0
    ) -> tuple[bool, tuple[LeasedTask, ...]]:
        await asyncio.sleep(0)
        self.done.append(lease.token)
        await asyncio.sleep(0)
        return True, ()


def session_of(master: Any) -> Session:
    return Session(master, heartbeat_s=3600.0)


async def tried(method: str, at: int, moment: Moment) -> tuple[FarMaster, Session, Cut, Any]:
    master, cut = FarMaster(), Cut()
    session = session_of(master)
    session.progress.set_loss_interval(1)
    for version in range(1, 4):
        session.progress.record_loss(version, 1.0)
    work = {"heartbeat": session.send_heartbeats, "lease": session._lease_task, "flush": session.flush}[method]
    answer = await cut.run(work(), at, moment)
    return master, session, cut, answer


@pytest.mark.parametrize(("at", "moment"), places(3))
async def test_losses_of_a_heartbeat_that_is_broken_off_are_told_by_the_next(at: int, moment: Moment) -> None:
    master, session, cut, _ = await tried("heartbeat", at, Moment.WAITING if at == 3 else moment)
    assert cut.broken  # the third await is the pause
    await session.flush()
    assert set(master.told) == {1, 2, 3}


@pytest.mark.parametrize(("at", "moment"), places(2))
async def test_a_lease_that_is_broken_off_is_not_held_and_keeps_nobody_from_the_next(at: int, moment: Moment) -> None:
    master, session, cut, _ = await tried("lease", at, moment)
    assert cut.broken
    assert session.progress.take_snapshot().positions == {}  # so the master gives it to another when it runs out
    lease = await session._lease_task()
    assert lease is not None and lease.token == f"1.{master.given}.x"
    assert list(session.progress.take_snapshot().positions) == [lease.token]
    session._begin_report(lease, TaskReport(9, None, 1))
    await session.flush()
    assert master.done == [lease.token]
    assert session.progress.take_snapshot().positions == {}
