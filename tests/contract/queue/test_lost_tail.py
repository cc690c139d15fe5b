"""A Redis that was killed and came back without the end of its log: older than what its master has seen."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import pytest

from elasticdl_core.errors import UnavailableError
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.queue.port import Contents, StoreLostError
from elasticdl_master.queue.redis import RedisQueue
from tests.fakes.redis_server import RedisServer

pytestmark = pytest.mark.contract
TASKS = [TaskId(TaskType.TRAINING, 0, index, 10 * index, 10 * index + 10) for index in range(4)]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


def test_a_store_that_lost_its_tail_is_noticed_and_hands_out_nothing(server: RedisServer) -> None:
    log = server.log

    async def scenario() -> None:
        queue = RedisQueue(server.url, "job", 1)
        try:
            await queue.rebuild(Contents(tuple(TASKS), (), {}, frozenset(), {}, ""), 1000.0)
            (first,) = await queue.lease("worker-0.0", 1, 60.0)
            kept = log.stat().st_size
            (second,) = await queue.lease("worker-1.0", 1, 60.0)
            await queue.report(first.task, first.token)
            server.kill()
            os.truncate(log, kept)
            server.start()
            # The store knows nothing of the second lease: it would hand that task out again, under the same number.
            with contextlib.suppress(UnavailableError):
                await queue.counts()  # on the connection that is gone
            with pytest.raises(StoreLostError):
                await queue.counts()
            for _ in range(5):  # nor do these bring it up to what was seen
                with pytest.raises(StoreLostError):
                    await queue.keep({1: "a post"})
                with pytest.raises(StoreLostError):
                    await queue.drop([1])
            with pytest.raises(StoreLostError):
                await queue.lease("worker-2.0", 1, 60.0)
            with pytest.raises(StoreLostError):
                await queue.report(second.task, second.token)
            await queue.rebuild(Contents(tuple(TASKS[2:]), (), {TASKS[0]: ""}, frozenset(), {}, ""), 1000.0)
            (third,) = await queue.lease("worker-2.0", 1, 60.0)
            assert third.task == TASKS[2]
            assert str(third.token) not in (str(first.token), str(second.token))
        finally:
            await queue.close()

    asyncio.run(scenario())
