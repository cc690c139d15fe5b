from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from elasticdl_core.errors import FencedError
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.queue import redis as redis_queue
from elasticdl_master.queue.port import Contents, Counts, Outcome, StoreLostError, TaskQueue, TaskRequest
from elasticdl_master.queue.redis import RedisQueue
from tests.contract.queue.conftest import MakeQueue

pytestmark = pytest.mark.contract

LONG = 1000.0
OVER = 0.0


def task(index: int, start: int = 0, end: int = 10) -> TaskId:
    return TaskId(TaskType.TRAINING, 0, index, start, end)


@pytest.fixture
async def queue(make_queue: MakeQueue) -> AsyncIterator[TaskQueue]:
    queue = make_queue(1)
    await queue.rebuild(Contents(), LONG)
    yield queue
    await queue.close()


async def contents(queue: TaskQueue) -> Contents:
    loaded = await queue.load()
    assert loaded is not None
    return loaded


async def test_tasks_are_leased_in_the_order_in_which_they_were_added(queue: TaskQueue) -> None:
    assert await queue.add([task(2), task(0), task(1)]) == 3
    first = await queue.lease("worker-0.0", 2, LONG)
    second = await queue.lease("worker-1.0", 5, LONG)
    assert [lease.task for lease in (*first, *second)] == [task(2), task(0), task(1)]
    assert [lease.owner for lease in second] == ["worker-1.0"]
    assert len({str(lease.token) for lease in (*first, *second)}) == 3
    assert await queue.lease("worker-1.0", 1, LONG) == []


async def test_tasks_added_in_front_come_first_and_in_order(queue: TaskQueue) -> None:
    await queue.add([task(0)])
    await queue.add([task(1), task(2)], front=True)
    assert (await contents(queue)).todo == (task(1), task(2), task(0))


async def test_a_task_is_added_once_wherever_it_is(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1), task(2), task(3)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    (done,) = await queue.lease("worker-0.0", 1, LONG)
    await queue.report(done.task, done.token)
    await queue.quarantine(task(2))
    assert lease.task == task(0)
    assert await queue.add([task(0), task(1), task(2), task(3), task(3)]) == 0
    assert await queue.counts() == Counts(todo=1, doing=1, done=1, quarantined=1)


async def test_more_tasks_than_one_call_takes(queue: TaskQueue) -> None:
    many = [task(index) for index in range(4500)]
    assert await queue.add(many[1000:]) == 3500
    assert await queue.add(many[:1000], front=True) == 1000
    assert (await contents(queue)).todo == tuple(many)
    more = [task(index, 10, 20) for index in range(4500)]
    assert await queue.add(more, front=True) == 4500
    assert (await contents(queue)).todo == (*more, *many)


async def test_a_report_is_accepted_once_and_its_replay_changes_nothing(queue: TaskQueue) -> None:
    await queue.add([task(0)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    assert await queue.report(lease.task, lease.token, b'{"a": 1}') is Outcome.ACCEPTED
    assert await queue.report(lease.task, lease.token, b"other") is Outcome.REPLAY
    loaded = await contents(queue)
    assert loaded.done == {task(0): str(lease.token)}
    assert loaded.results == {task(0): b'{"a": 1}'}


async def test_turns_report_first_and_are_taken_in_order(queue: TaskQueue) -> None:
    await queue.add([task(index) for index in range(5)])
    (mine,) = await queue.lease("worker-0.0", 1, LONG)
    first, second, third = await queue.exchange(
        [
            TaskRequest("worker-0.0", 1, mine.task, mine.token, b"{}"),
            TaskRequest("worker-1.0", 2),
            TaskRequest("worker-2.0", 7),
        ],
        LONG,
    )
    assert (first.outcome, [lease.task for lease in first.leases]) == (Outcome.ACCEPTED, [task(1)])
    assert (second.outcome, [lease.task for lease in second.leases]) == (None, [task(2), task(3)])
    assert (third.outcome, [lease.task for lease in third.leases]) == (None, [task(4)])
    leases = [*first.leases, *second.leases, *third.leases]
    loaded = await contents(queue)
    assert (loaded.todo, loaded.done, loaded.results) == ((), {task(0): str(mine.token)}, {task(0): b"{}"})
    assert {lease.task: (lease.owner, lease.token) for lease in loaded.doing} == {
        lease.task: (lease.owner, lease.token) for lease in leases
    }
    assert len({str(lease.token) for lease in (mine, *leases)}) == 5
    for lease in leases:
        assert await queue.extend(lease.owner, [lease.token], LONG) == []


async def test_only_an_accepted_report_takes_tasks_along(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1), task(2), task(3)])
    done, lost = await queue.lease("worker-0.0", 2, OVER)
    await queue.report(done.task, done.token)
    await queue.reap()
    turns = [TaskRequest("worker-0.0", 2, done.task, done.token), TaskRequest("worker-0.0", 2, lost.task, lost.token)]
    replayed, refused = await queue.exchange(turns, LONG)
    assert (replayed.outcome, refused.outcome) == (Outcome.REPLAY, Outcome.LOST)
    assert not replayed.leases
    assert not refused.leases
    assert await queue.counts() == Counts(todo=3, done=1)


async def test_one_of_two_turns_that_report_the_same_lease_is_a_replay(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1), task(2)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    first, second = await queue.exchange([TaskRequest("worker-0.0", 1, lease.task, lease.token)] * 2, LONG)
    assert (first.outcome, len(first.leases)) == (Outcome.ACCEPTED, 1)
    assert (second.outcome, len(second.leases)) == (Outcome.REPLAY, 0)


async def test_a_replay_gets_the_same_answer_from_the_next_master(make_queue: MakeQueue) -> None:
    old = make_queue(1)
    await old.rebuild(Contents(todo=(task(0),)), LONG)
    (lease,) = await old.lease("worker-0.0", 1, LONG)
    await old.report(lease.task, lease.token)
    new = make_queue(2)
    assert await new.report(lease.task, lease.token) is Outcome.REPLAY
    await old.close()
    await new.close()


async def test_leases_stay_good_under_the_next_master(make_queue: MakeQueue) -> None:
    old = make_queue(1)
    await old.rebuild(Contents(todo=(task(0),)), LONG)
    (lease,) = await old.lease("worker-0.0", 1, LONG)
    new = make_queue(2)
    assert (await contents(new)).doing[0].token == lease.token
    assert await new.report(lease.task, lease.token) is Outcome.ACCEPTED
    await old.close()
    await new.close()


async def test_a_token_of_another_lease_is_never_accepted(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1)])
    (first, second) = await queue.lease("worker-0.0", 2, LONG)
    forged = dataclasses.replace(first.token, nonce="0" * 16)
    for token in (second.token, forged):
        assert await queue.report(first.task, token) is Outcome.LOST
        assert await queue.return_(first.task, token, 5) is Outcome.LOST
    assert await queue.counts() == Counts(doing=2)


async def test_an_expired_lease_goes_to_the_head_and_its_token_is_dead(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1), task(2)])
    expired = await queue.lease("worker-0.0", 2, OVER)
    assert [lease.task for lease in await queue.reap()] == [task(0), task(1)]
    assert (await contents(queue)).todo == (task(0), task(1), task(2))
    assert await queue.report(task(0), expired[0].token) is Outcome.LOST
    (again,) = await queue.lease("worker-1.0", 1, LONG)
    assert again.task == task(0)
    assert again.token != expired[0].token
    assert await queue.report(task(0), expired[0].token) is Outcome.LOST
    assert await queue.report(task(0), again.token) is Outcome.ACCEPTED


async def test_a_late_report_counts_while_nobody_took_the_lease_back(queue: TaskQueue) -> None:
    await queue.add([task(0)])
    (lease,) = await queue.lease("worker-0.0", 1, OVER)
    assert await queue.report(lease.task, lease.token) is Outcome.ACCEPTED
    assert await queue.reap() == []


async def test_extending_keeps_a_lease_and_tells_which_are_lost(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1)])
    (mine,) = await queue.lease("worker-0.0", 1, OVER)
    (other,) = await queue.lease("worker-1.0", 1, OVER)
    lost = await queue.extend("worker-0.0", [mine.token, other.token], LONG)
    assert lost == [other.token]
    assert [lease.task for lease in await queue.reap()] == [task(1)]
    assert await queue.extend("worker-1.0", [other.token], LONG) == [other.token]


async def test_a_partial_return_splits_the_task(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    assert await queue.return_(lease.task, lease.token, 4, b"said of it") is Outcome.ACCEPTED
    assert await queue.return_(lease.task, lease.token, 4) is Outcome.REPLAY
    loaded = await queue.load()
    assert loaded is not None
    assert loaded.results == {lease.task.front_until(4): b"said of it"}
    assert await queue.report(lease.task, lease.token) is Outcome.LOST
    loaded = await contents(queue)
    assert loaded.done == {task(0, 0, 4): str(lease.token)}
    assert loaded.todo == (task(0, 4, 10), task(1))


@pytest.mark.parametrize(("position", "todo", "done"), [(-3, 1, 0), (0, 1, 0), (10, 0, 1), (99, 0, 1)])
async def test_returning_nothing_or_everything(queue: TaskQueue, position: int, todo: int, done: int) -> None:
    await queue.add([task(0)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    assert await queue.return_(lease.task, lease.token, position) is Outcome.ACCEPTED
    assert await queue.counts() == Counts(todo=todo, done=done)
    assert set((await contents(queue)).todo) | set((await contents(queue)).done) == {task(0)}


async def test_a_task_without_records_is_returned_whole(queue: TaskQueue) -> None:
    export = TaskId(TaskType.EXPORT, 0, 0, 0, 0)
    await queue.add([export])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    assert await queue.return_(export, lease.token, 0) is Outcome.ACCEPTED
    assert (await contents(queue)).todo == (export,)


async def test_an_owner_that_is_gone_gives_back_its_leases_only(queue: TaskQueue) -> None:
    await queue.add([task(index) for index in range(4)])
    await queue.lease("worker-1.0", 2, LONG)
    await queue.lease("worker-1.1", 1, LONG)
    assert [lease.task for lease in await queue.release_owner("worker-1.0")] == [task(0), task(1)]
    assert await queue.release_owner("worker-1.0") == []
    assert (await contents(queue)).todo == (task(0), task(1), task(3))


async def test_a_quarantined_task_is_never_leased(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    assert await queue.quarantine(task(0))
    assert await queue.quarantine(task(1))
    assert not await queue.quarantine(task(7))
    assert await queue.report(task(0), lease.token) is Outcome.LOST
    assert await queue.lease("worker-0.0", 5, LONG) == []
    assert (await contents(queue)).quarantined == {task(0), task(1)}


async def test_forgetting_drops_done_tasks_only(queue: TaskQueue) -> None:
    await queue.add([task(0), task(1)])
    (lease,) = await queue.lease("worker-0.0", 1, LONG)
    await queue.report(lease.task, lease.token, b"result")
    assert await queue.forget([task(0), task(1)]) == 1
    loaded = await contents(queue)
    assert (loaded.todo, loaded.done, loaded.results) == ((task(1),), {}, {})


async def test_notes_are_kept_for_the_next_master(make_queue: MakeQueue) -> None:
    old = make_queue(1)
    await old.rebuild(Contents(notes="first"), LONG)
    await old.note("second")
    new = make_queue(2)
    assert (await contents(new)).notes == "second"
    await old.close()
    await new.close()


async def test_a_newer_master_shuts_the_old_one_out_of_every_move(make_queue: MakeQueue) -> None:
    old = make_queue(1)
    await old.rebuild(Contents(todo=(task(0), task(1))), LONG)
    (lease,) = await old.lease("worker-0.0", 1, LONG)
    new = make_queue(2)
    before = await contents(new)
    for move in (
        lambda: old.load(),
        lambda: old.rebuild(Contents(), LONG),
        lambda: old.add([task(9)]),
        lambda: old.lease("worker-0.0", 1, LONG),
        lambda: old.extend("worker-0.0", [lease.token], LONG),
        lambda: old.report(lease.task, lease.token),
        lambda: old.exchange([TaskRequest("worker-0.0", 1, lease.task, lease.token)], LONG),
        lambda: old.return_(lease.task, lease.token, 3),
        lambda: old.reap(),
        lambda: old.release_owner("worker-0.0"),
        lambda: old.quarantine(task(1)),
        lambda: old.forget([task(0)]),
        lambda: old.note("x"),
        lambda: old.counts(),
        lambda: old.discard(),
    ):
        with pytest.raises(FencedError):
            await move()
    assert await contents(new) == before
    late = make_queue(1)
    with pytest.raises(FencedError):
        if await late.load() is not None:
            await late.counts()
    for queue in (old, new, late):
        await queue.close()


async def test_a_queue_that_nobody_rebuilt_is_lost(make_queue: MakeQueue) -> None:
    queue = make_queue(1)
    assert await queue.load() is None
    with pytest.raises(StoreLostError):
        await queue.add([task(0)])
    with pytest.raises(StoreLostError):
        await queue.lease("worker-0.0", 1, LONG)
    await queue.close()


async def test_what_is_to_be_told_is_kept_until_it_was(make_queue: MakeQueue) -> None:
    old = make_queue(1)
    await old.rebuild(Contents(), LONG)
    await old.keep({number: f"post {number}" for number in range(1, 2_500)})
    await old.drop(range(3, 2_500))
    await old.keep({2: "another word"})
    expected = {1: "post 1", 2: "another word"}
    assert await old.kept() == expected
    await old.rebuild(Contents(), LONG)
    new = make_queue(2)
    assert await new.kept() == expected, "before the next master has made the queue anew"
    await new.rebuild(Contents(), LONG)
    with pytest.raises(FencedError):
        await old.drop([1])
    assert await new.kept() == expected
    await new.discard()
    assert await new.kept() == {}
    await old.close()
    await new.close()


async def test_rebuilding_restores_everything_and_leases_live_on(queue: TaskQueue) -> None:
    token = LeaseToken(1, 7, "0123456789abcdef")
    wanted = Contents(
        todo=(task(3), task(2)),
        doing=(Lease(task(1), "worker-2.0", token),),
        done={task(0, 0, 4): "1.3.fedcba9876543210", task(5): ""},
        quarantined=frozenset({task(9)}),
        results={task(5): b"{}"},
        notes="notes",
    )
    await queue.add([task(77)])
    await queue.rebuild(wanted, LONG)
    loaded = await contents(queue)
    assert dataclasses.replace(loaded, doing=()) == dataclasses.replace(wanted, doing=())
    assert [(lease.task, lease.owner, lease.token) for lease in loaded.doing] == [(task(1), "worker-2.0", token)]
    assert await queue.reap() == []
    assert await queue.extend("worker-2.0", [token], LONG) == []
    assert await queue.report(task(1), token) is Outcome.ACCEPTED
    assert await queue.report(task(5), token) is Outcome.REPLAY


async def test_discarding_leaves_nothing(queue: TaskQueue) -> None:
    await queue.add([task(0)])
    await queue.discard()
    assert await queue.load() is None


async def test_a_large_queue_is_loaded_in_portions(make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_queue, "_CHUNK", 48)
    queue, sizes = make_queue(1), []
    tasks = [task(index, index * 10, index * 10 + 10) for index in range(2700)]
    token = str(LeaseToken(1, 1, "n"))
    whole = Contents(
        tuple(tasks[:150]),
        tuple(Lease(one, f"worker-{one.index}.0", LeaseToken(1, one.index, "n")) for one in tasks[150:850]),
        dict.fromkeys(tasks[850:1700], token),
        frozenset(tasks[1700:]),
        dict.fromkeys(tasks[850:1600], b"result"),
        "notes",
    )
    await queue.rebuild(whole, LONG)
    if isinstance(queue, RedisQueue):
        execute = queue._redis.execute_command

        async def measured(*arguments: object) -> object:
            answer = await execute(*arguments)
            sizes.append(len(answer[1]) if str(arguments[0]).endswith("SCAN") else len(answer))
            return answer

        monkeypatch.setattr(queue._redis, "execute_command", measured)
    found = await contents(queue)
    assert dataclasses.replace(found, doing=frozenset(found.doing)) == dataclasses.replace(
        whole,
        doing=frozenset(whole.doing),  # type: ignore[arg-type]
    )
    assert max(sizes, default=0) <= 120
    await queue.close()
