"""What a member says to its master, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.group.steps import HeldTask, StepSchedule
from elasticdl_core.task import TaskId, TaskType
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_worker.group.master_session import MasterSession
from elasticdl_worker.master.session import Session

pytestmark = pytest.mark.unit
OWNER, GENERATION = "worker-0.0", 3


class SilentMaster:
    """A master that has no news: it answers the first word alone."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[pb.MeetRequest] = asyncio.Queue()
        self._answers = 1

    async def call_once(self, method: str, request: pb.MeetRequest, deadline_s: float) -> pb.MeetResponse:
        """Takes a word in."""
        self.heard.put_nowait(request)
        if self._answers == 0:
            await asyncio.get_running_loop().create_future()
        self._answers -= 1
        return pb.MeetResponse(revision=1, generation=GENERATION, members=[OWNER], endpoints=[b"here"])


class Attending:
    """A member that meets such a master, and has entered a generation."""

    def __init__(self, master: Any) -> None:
        self.master = master
        self.master_session = MasterSession(master, Session(master), OWNER, b"here", lambda why: None)

    async def enter(self) -> None:
        """Enters the generation that it is told of; a word about that waits for news."""
        self.master_session.start()
        await self.master.heard.get()
        told = await asyncio.to_thread(self.master_session.next_orders, 0)
        assert told is not None and told.orders.generation == GENERATION
        self.master_session.enter(GENERATION, holds=True)
        await self.master.heard.get()

    def speak(self, entries: int) -> None:
        """Says what the group has: some tasks."""
        metadata = ReplicaMetadata(StepSchedule(2, 2))
        tasks = [TaskId(TaskType.TRAINING, 0, number, 4 * number, 4 * number + 4) for number in range(entries)]
        metadata.schedule.add([HeldTask(f"1.{number}.a", task) for number, task in enumerate(tasks)])
        self.master_session.speak(metadata, 1, 1.0, pinned=0)


@pytest.fixture
async def attending() -> AsyncIterator[Attending]:
    member = Attending(SilentMaster())
    yield member
    await member.master_session.close()


async def test_a_group_without_tasks_says_so_while_another_word_waits_for_news(attending: Attending) -> None:
    await attending.enter()
    attending.speak(entries=0)
    said = await attending.master.heard.get()
    assert said.HasField("report")
    assert said.report.left == 0


async def test_a_word_that_all_wait_for_is_said_while_another_one_waits_for_news(attending: Attending) -> None:
    await attending.enter()
    attending.speak(entries=2)
    attending.master_session.get_out(GENERATION, holds=True, suspects=[])
    said = await attending.master.heard.get()
    assert (said.finished, said.generation, said.HasField("report")) == (GENERATION, 0, False)
