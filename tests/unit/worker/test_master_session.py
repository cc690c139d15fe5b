"""What a member of a group takes of its master's answers, and what it keeps of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import DataError
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.group.rendezvous import Orders
from elasticdl_core.group.steps import StepSchedule
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.lifecycle import within
from elasticdl_worker.group.master_session import MasterSession
from elasticdl_worker.master.client import LeasedTask, MasterClient, WorkerDirective
from elasticdl_worker.master.group_client import GroupDirective
from elasticdl_worker.master.session import Session
from tests.fakes.master import FakeMaster

pytestmark = pytest.mark.unit
OWNER, RECORDS, ANSWERS = "worker-0.0", 40, 12
EPOCH = 4711


class MeetingMaster(FakeMaster):
    """Leads a group of one member; each of its answers brings one task."""

    def __init__(self, job_dir: Path) -> None:
        super().__init__(JobSpec(model_def="softmax.forward"), job_dir)
        self.meetings = 0
        self.ended: list[list[str]] = []
        self.refused: set[tuple[str, str]] = set()

    async def Meet(self, request: pb.MeetRequest, caller: str) -> pb.MeetResponse:
        self.meetings += 1
        number = self.meetings
        ended = [one.token for one in request.report.ended]
        self.ended.append(ended)
        self.refused.add((request.refused, request.refused_fix))
        await self._note()
        if number > ANSWERS:
            await asyncio.Event().wait()  # there is no more to say
        start = number * RECORDS
        task = pb.Task(
            id=f"t:{EPOCH}:{number}:{start}:{start + RECORDS}",
            type="training",
            shard=pb.Shard(name="data", start=start, end=start + RECORDS),
            token=f"1.{number}.{number:016x}",
        )
        return pb.MeetResponse(
            revision=number,
            generation=1,
            members=[OWNER],
            endpoints=[b"here"],
            directive=pb.DIRECTIVE_CONTINUE,
            tasks=[task],
            acknowledged=ended,
        )


async def test_each_task_is_taken_once_and_answers_of_before_are_let_go(tmp_path: Path) -> None:
    master = MeetingMaster(tmp_path)
    await master.start()
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    master_session = MasterSession(client, Session(client), OWNER, b"here", lambda reason: None)
    metadata, taken = ReplicaMetadata(StepSchedule(1, RECORDS)), list[str]()
    try:
        master_session.start()
        assert await asyncio.to_thread(master_session.next_orders, 0) is not None
        master_session.enter(1, holds=True)
        for answers in range(1, ANSWERS + 1):
            # Whoever meets once more has heard the answer of before.
            await within(master.until(lambda answers=answers: master.meetings > answers), 60)
            for look in range(3):
                entries = master_session.commands(metadata, 1).entries
                assert not entries or look == 0, "an answer brings each task once"
                metadata.schedule.add(entries)
                taken += [str(entry.task) for entry in entries]
            while len(metadata.schedule.entries) > 1:
                metadata.schedule.count(metadata.schedule.step_dealt([0]))
        gc.collect()
        kept = [one for one in gc.get_objects() if type(one) is LeasedTask and one.task.id.epoch == EPOCH]
    finally:
        await master_session.close()
        await client.close()
        await master.stop()
    assert taken[-1] == f"t:{EPOCH}:{ANSWERS}:{ANSWERS * RECORDS}:{(ANSWERS + 1) * RECORDS}"
    assert len(taken) == len(set(taken))
    assert len(kept) <= 2, "of a job of weeks there would be millions"


async def test_what_the_master_has_heard_is_not_told_again(tmp_path: Path) -> None:
    """A member speaks between two steps, and meets its master many times in a long one."""
    master = MeetingMaster(tmp_path)
    await master.start()
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    master_session = MasterSession(client, Session(client), OWNER, b"here", lambda reason: None)
    metadata = ReplicaMetadata(StepSchedule(1, RECORDS))
    try:
        master_session.start()
        assert await asyncio.to_thread(master_session.next_orders, 0) is not None
        master_session.enter(1, holds=True)
        metadata.schedule.add(master_session.commands(metadata, 1).entries)
        while metadata.schedule.entries:
            metadata.count(metadata.schedule.step_dealt([0]), [{"fed": RECORDS, "skips": []}], RECORDS)
        (token,) = metadata.ended
        master_session.speak(metadata, 1, 1.0, pinned=0)
        await within(master.until(lambda: master.meetings > ANSWERS), 60)
        for _ in range(2):  # it is told until the member does not name it any more
            assert master_session.commands(metadata, 1).acknowledged == [token]
        metadata.ended.clear()
        assert master_session.commands(metadata, 1).acknowledged == []
    finally:
        await master_session.close()
        await client.close()
        await master.stop()
    assert [ended for ended in master.ended if ended] == [[token]]
    assert asyncio.all_tasks() == {asyncio.current_task()}, "it leaves nothing that waits"


async def test_a_checkpoint_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    master = MeetingMaster(tmp_path)
    await master.start()
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    master_session = MasterSession(client, Session(client), OWNER, b"here", lambda reason: None)
    try:
        master_session.refuse(DataError("why", fix="how"))
        master_session.start()
        await within(master.until(lambda: master.meetings > 0), 60)
    finally:
        await master_session.close()
        await client.close()
        await master.stop()
    assert master.refused == {("why", "how")}


@pytest.fixture
async def member() -> AsyncIterator[tuple[MasterSession, Session]]:
    """A member in the first generation, which hears what the test says."""
    client = MasterClient("127.0.0.1:9", lambda: "token", patience_s=1)
    session = Session(client)
    master_session = MasterSession(client, session, OWNER, b"here", lambda reason: None)
    master_session.enter(1, holds=True)
    yield master_session, session
    await client.close()


def told(generation: int, **more: Any) -> GroupDirective:
    orders = Orders(generation, (OWNER,), generation - 1, is_over=False, regroup=False)
    return GroupDirective(generation, orders, [b"here"], b"", False, WorkerDirective.CONTINUE, **more)


async def test_an_answer_of_before_that_comes_late_is_not_heard(member: tuple[MasterSession, Session]) -> None:
    """Calls overtake each other: who has urgent news does not wait for the answer of the call before."""
    master_session, _ = member
    master_session._hear(told(2, limit=7))
    master_session._hear(told(1, limit=5))
    assert master_session.commands(ReplicaMetadata(StepSchedule(1, RECORDS)), 2).limit == 7


async def test_an_evaluation_and_a_share_are_asked_for_once_in_a_generation(
    member: tuple[MasterSession, Session],
) -> None:
    master_session, _ = member
    metadata, task = (
        ReplicaMetadata(StepSchedule(1, RECORDS)),
        Task(TaskId(TaskType.EVALUATION, 3, 0, 0, 8), Shard("data", 0, 8)),
    )
    solo = [LeasedTask(task, "1.9.x")]
    given = []
    for generation in (1, 1, 2):
        master_session.enter(generation, holds=True)
        for order in (3, 3, 4):
            master_session._hear(told(generation, solo=solo, save={"order": order}))
            for _ in range(3):  # an answer is looked at before each step until the next one comes
                commands = master_session.commands(metadata, generation)
                given.append((len(commands.solo), commands.save and commands.save["order"]))
    evaluations, orders = zip(*given, strict=True)
    assert [number for number, count in enumerate(evaluations) if count] == [0, 9, 18], "anew in each generation"
    assert [order for order in orders if order] == [3, 4], "a share is written once"


async def test_who_is_to_leave_hands_the_model_on_first(member: tuple[MasterSession, Session]) -> None:
    master_session, session = member
    session.request_drain()
    master_session._hear(told(2))
    found = master_session.next_orders(1)
    assert found is not None and found.orders.generation == 2, "another member waits for the model"
    master_session._hear(GroupDirective(3, told(2).orders, [b"here"], b"", True, WorkerDirective.CONTINUE))
    assert master_session.next_orders(2) is None
