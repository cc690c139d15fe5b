"""Random moves against a queue, checked after each against plain sets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from elasticdl_core.task import Lease, TaskId, TaskType
from elasticdl_master.queue.port import Contents, Outcome, TaskQueue, TaskRequest
from tests.contract.queue.conftest import makers, url_for

pytestmark = pytest.mark.contract

T = TypeVar("T")
RECORDS = 12
OWNERS = ("worker-0.0", "worker-1.0", "worker-1.1")


class QueueMachine(RuleBasedStateMachine):
    """Keeps every lease ever given, the epoch it came from, and what each range of records has been through."""

    adapter = "memory"
    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.make = makers(self.adapter, self.redis_url)
        self.epoch = 1
        self.queue: TaskQueue = self.make(1)
        self.do(self.queue.rebuild(Contents(), 1000.0))
        self.indexes = itertools.count()
        self.planned: set[tuple[int, int]] = set()
        self.leases: list[Lease] = []
        self.live: dict[TaskId, Lease] = {}
        self.accepted: dict[str, TaskId] = {}
        self.tokens: set[str] = set()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.do(self.queue.discard())
        self.do(self.queue.close())
        self.runner.close()

    @rule(number=st.integers(1, 4), front=st.booleans())
    def add(self, number: int, front: bool) -> None:
        tasks = [TaskId(TaskType.TRAINING, 0, next(self.indexes), 0, RECORDS) for _ in range(number)]
        assert self.do(self.queue.add(tasks, front=front)) == number
        self.planned |= {(task.index, record) for task in tasks for record in range(RECORDS)}

    @rule(owner=st.sampled_from(OWNERS), limit=st.integers(1, 3), seconds=st.sampled_from([0.0, 1000.0]))
    def lease(self, owner: str, limit: int, seconds: float) -> None:
        for lease in self.do(self.queue.lease(owner, limit, seconds)):
            assert lease.task not in self.live, "two live leases of one task"
            assert str(lease.token) not in self.tokens, "a token came back"
            assert lease.token.epoch == self.epoch
            self.tokens.add(str(lease.token))
            self.leases.append(lease)
            self.live[lease.task] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        outcome = self.do(self.queue.report(lease.task, lease.token))
        if self.live.get(lease.task) == lease:
            assert outcome is Outcome.ACCEPTED
            del self.live[lease.task]
            self.accepted[str(lease.token)] = lease.task
        elif self.accepted.get(str(lease.token)) == lease.task:
            assert outcome is Outcome.REPLAY
        else:
            assert outcome is Outcome.LOST

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), limit=st.integers(0, 2))
    def turns(self, data: st.DataObject, limit: int) -> None:
        reported = data.draw(st.lists(st.sampled_from(self.leases), max_size=3))
        turns = [TaskRequest(lease.owner, limit, lease.task, lease.token) for lease in reported]
        for lease, taken in zip(reported, self.do(self.queue.exchange(turns, 1000.0)), strict=True):
            assert (taken.outcome is Outcome.ACCEPTED) == (self.live.get(lease.task) == lease)
            if taken.outcome is Outcome.ACCEPTED:
                del self.live[lease.task]
                self.accepted[str(lease.token)] = lease.task
            else:
                assert not taken.leases
            assert len(taken.leases) <= limit
            for new in taken.leases:
                assert (new.owner, new.token.epoch) == (lease.owner, self.epoch)
                assert new.task not in self.live
                assert str(new.token) not in self.tokens
                self.tokens.add(str(new.token))
                self.leases.append(new)
                self.live[new.task] = new

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), position=st.integers(-1, RECORDS + 1))
    def give_back(self, data: st.DataObject, position: int) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        outcome = self.do(self.queue.return_(lease.task, lease.token, position))
        if self.live.get(lease.task) == lease:
            assert outcome is Outcome.ACCEPTED
            del self.live[lease.task]
            if position > lease.task.start:
                self.accepted[str(lease.token)] = lease.task.front_until(min(position, lease.task.end))
        else:
            assert outcome is not Outcome.ACCEPTED

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def extend(self, data: st.DataObject, owner: str) -> None:
        asked = data.draw(st.lists(st.sampled_from(self.leases), max_size=3))
        lost = self.do(self.queue.extend(owner, [lease.token for lease in asked], 1000.0))
        wanted = [lease.token for lease in asked if self.live.get(lease.task) != lease or lease.owner != owner]
        assert lost == wanted

    @rule()
    def reap(self) -> None:
        self.taken(self.do(self.queue.reap()))

    @rule(owner=st.sampled_from(OWNERS))
    def release(self, owner: str) -> None:
        taken = self.do(self.queue.release_owner(owner))
        assert {lease.task for lease in taken} == {task for task, lease in self.live.items() if lease.owner == owner}
        self.taken(taken)

    def taken(self, leases: list[Lease]) -> None:
        for lease in leases:
            assert self.live.pop(lease.task).token == lease.token

    @rule()
    def take_over(self) -> None:
        self.epoch += 1
        self.do(self.queue.close())
        self.queue = self.make(self.epoch)
        assert self.do(self.queue.load()) is not None

    @rule()
    def lose_and_rebuild(self) -> None:
        contents = self.do(self.queue.load())
        assert contents is not None
        kept = tuple(Lease(lease.task, lease.owner, lease.token) for lease in contents.doing)
        self.do(self.queue.rebuild(Contents(contents.todo, kept, contents.done, contents.quarantined), 1000.0))

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        contents = self.do(self.queue.load())
        assert contents is not None
        places = [*contents.todo, *(lease.task for lease in contents.doing), *contents.done, *contents.quarantined]
        records = [(task.index, record) for task in places for record in range(task.start, task.end)]
        assert len(records) == len(set(records))
        assert set(records) == self.planned
        assert {lease.task: lease.token for lease in contents.doing} == {
            task: lease.token for task, lease in self.live.items()
        }
        assert contents.done == {task: token for token, task in self.accepted.items()}


@pytest.mark.parametrize(("adapter", "examples"), [("memory", 60), ("redis", 30)])
def test_no_record_is_lost_or_doubled_by_any_moves(
    adapter: str, examples: int, request: pytest.FixtureRequest
) -> None:
    machine = type("Machine", (QueueMachine,), {"adapter": adapter, "redis_url": url_for(request, adapter)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
