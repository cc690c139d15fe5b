"""A worker's calls of its master, broken off at each await: nothing that it says is lost, and nothing is held."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
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
        self.back: list[str] = []
        self.brings = 0

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
        return True, tuple(task(100 + number) for number in range(self.brings))

    async def return_task(self, lease: LeasedTask, position: int, *_: object) -> bool:
        await asyncio.sleep(0)
        self.back.append(lease.token)
        await asyncio.sleep(0)
        return True

    async def fail(self, lease: LeasedTask | None, *_: object) -> None:
        assert lease is not None
        await self.return_task(lease, 0)


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


def held_by(session: Session) -> list[str]:
    """The leases that heartbeats keep."""
    return list(session.progress.take_snapshot().positions)


@pytest.mark.parametrize(("at", "moment"), places(4))
async def test_who_waits_for_reports_may_go_away_and_they_arrive(at: int, moment: Moment) -> None:
    master = FarMaster()
    session, cut = session_of(master), Cut()
    lease = await session._lease_task()
    assert lease is not None
    session._begin_report(lease, TaskReport(9, None, 1))
    await cut.run(session.flush(), at, moment)
    assert cut.broken == (at <= cut.awaits)
    await session.flush()
    assert master.done == [lease.token]
    assert held_by(session) == []


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize(("at", "moment"), places(6))
async def test_a_report_that_is_broken_off_leaves_no_lease_that_heartbeats_keep(
    at: int, moment: Moment, drained: bool
) -> None:
    master = FarMaster()
    master.brings = 2
    session, cut = session_of(master), Cut()
    for _ in range(2):  # tasks this short are reported together with the wish for the next
        lease = await session._lease_task()
    assert lease is not None

    async def report() -> None:
        reporting = session._report(lease, TaskReport(9, None, 1))
        if drained:
            asyncio.get_running_loop().call_soon(session.request_drain)
        await reporting

    await cut.run(report(), at, moment)
    assert cut.broken == (at <= cut.awaits)
    ready = [one.token for one in session._ready]
    assert sorted(held_by(session)) == sorted(["1.1.x", *ready])
    if not cut.broken:
        assert (ready, master.back) == (([], ["1.100.x", "1.101.x"]) if drained else (["1.100.x", "1.101.x"], []))


@pytest.mark.parametrize("what", ["return_task", "fail"])
@pytest.mark.parametrize(("at", "moment"), places(2))
async def test_a_return_that_is_broken_off_leaves_no_lease_that_heartbeats_keep(
    at: int, moment: Moment, what: str
) -> None:
    master = FarMaster()
    session, cut = session_of(master), Cut()
    lease = await session._lease_task()
    assert lease is not None
    call: Callable[..., Any] = getattr(master, what)
    setattr(master, what, lambda *arguments: cut.steps(call(*arguments), at, moment))

    def give_back() -> None:
        with contextlib.suppress(concurrent.futures.CancelledError):
            if what == "fail":
                session.fail(lease, ValueError("no"))
            else:
                session.return_task(lease, 3)

    await asyncio.to_thread(give_back)
    assert cut.broken
    assert held_by(session) == []
    assert session.is_lost(lease)
