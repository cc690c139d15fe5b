"""Whom the master tells what: all members of another generation, and the first one alone of what comes next in it."""

from __future__ import annotations

import asyncio

import pytest

from elasticdl_master import group_service
from elasticdl_master.group_calls import EndedTask, GroupReport, MemberAnswer, MemberCall
from elasticdl_master.state import events as ev
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_runtime.lifecycle import end_all
from tests.unit.master.test_group_tasks import OWNER, OneMember

pytestmark = pytest.mark.unit
OTHER, THIRD = "worker-1.0", "worker-2.0"


class Members:
    """Members that wait for their master's news."""

    def __init__(self, job: OneMember) -> None:
        self.group_service = job.group_service
        self._seen: dict[str, int] = {}
        self._finished: dict[str, int] = {}
        self._generation = {OWNER: job.generation}
        self._holds = {OWNER}

    async def say(self, owner: str, report: GroupReport | None = None) -> MemberAnswer:
        """Meets the master; the answer comes when there is news for this member."""
        generation = self._generation.get(owner, 0)
        finished, seen = self._finished.get(owner, 0), self._seen.get(owner, 0)
        holds = owner in self._holds
        call = MemberCall(owner, b"here", finished, generation, holds, leaving=False, seen=seen, report=report)
        answer = await self.group_service.meet(call)
        self._seen[owner] = answer.revision
        return answer

    async def wait(self, owner: str) -> asyncio.Task[MemberAnswer]:
        """Has a member wait for news; what was news before is heard first."""
        while True:
            waiting = asyncio.create_task(self.say(owner))
            await self.turns()
            if not waiting.done():
                return waiting
            await waiting

    def enter(self, owner: str, generation: int) -> None:
        """A member is in a generation, and has its model."""
        self._generation[owner] = generation
        self._holds.add(owner)

    def get_out(self, owner: str) -> None:
        """A member is done with its generation."""
        self._finished[owner], self._generation[owner] = self._generation[owner], 0

    async def turns(self) -> None:
        """Lets everybody do what can be done now."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    """A group of one whose master answers when there is news, and not before."""
    monkeypatch.setattr(group_service, "HOLD_S", 600.0)
    job = OneMember()
    job.tell(ev.WorkerRegistered(1, 0))
    job.tell(ev.WorkerRegistered(2, 0))
    return Members(job)


async def grow(members: Members) -> None:
    """A second member joins."""
    first = await members.wait(OWNER)
    await members.say(OTHER)
    assert (await first).regroup
    members.get_out(OWNER)
    answer = await members.say(OWNER)
    assert answer.members == (OWNER, OTHER)
    for owner in answer.members:
        members.enter(owner, answer.generation)


async def test_that_somebody_waits_to_join_is_told_to_the_first_member_alone(members: Members) -> None:
    await grow(members)
    first, other = await members.wait(OWNER), await members.wait(OTHER)
    await members.say(THIRD)
    assert (await first).regroup
    await members.turns()
    assert not other.done()
    await end_all(other)


async def test_what_comes_next_is_told_to_the_first_member_alone(members: Members) -> None:
    await grow(members)
    first, other = await members.wait(OWNER), await members.wait(OTHER)
    members.group_service.pin = 7
    members.group_service.refresh()
    assert (await first).pin == 7
    await members.turns()
    assert not other.done()
    await end_all(other)


async def test_that_the_end_of_a_task_was_heard_is_told_along_with_the_next_news(members: Members) -> None:
    await members.group_service.look()
    task, *others = (await members.say(OWNER, GroupReport(0, 0, 1, "", 0))).tasks
    await members.wait(OWNER)
    end = EndedTask(task.lease.task, task.lease.token, task.lease.task.end, RecordAccount(), 1)
    told = asyncio.create_task(
        members.say(OWNER, GroupReport(1, 1, 1, str(others[-1].lease.token), len(others), [end]))
    )
    await members.turns()
    assert not told.done()
    members.group_service.pin = 7
    members.group_service.refresh()
    assert list((await told).acknowledged) == [str(end.token)]


async def test_all_are_told_at_once_of_another_generation(members: Members) -> None:
    await grow(members)
    third = await members.wait(THIRD)
    for owner in (OWNER, OTHER):
        members.get_out(owner)
    first = await members.wait(OWNER)
    last = await members.say(OTHER)
    assert last.members == (OWNER, OTHER, THIRD)
    assert [one.generation for one in await asyncio.gather(first, third)] == [last.generation] * 2


async def test_tasks_are_given_at_once_to_who_says_what_it_has_and_to_nobody_else(members: Members) -> None:
    await grow(members)
    await members.group_service.look()
    first = await members.wait(OWNER)
    members.group_service.pin = 7
    members.group_service.refresh()
    answer = await first
    assert answer.pin == 7
    assert answer.tasks == []
    answer = await members.say(OWNER, GroupReport(0, 0, 1, "", 0))
    assert len(answer.tasks) > 1
    last = answer.tasks[-2].lease.token
    members.group_service.pin = 8
    members.group_service.refresh()
    answer = await members.say(OWNER, GroupReport(0, 0, 1, str(last), len(answer.tasks) - 1))
    assert len(answer.tasks) == 1
