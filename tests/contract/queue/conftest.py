from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from elasticdl_master.queue.memory import MemoryQueue, MemoryStore
from elasticdl_master.queue.port import TaskQueue
from elasticdl_master.queue.redis import RedisQueue
from tests.fakes.redis_server import RedisServer

MakeQueue = Callable[[int], TaskQueue]
"""Takes a master epoch; queues made by one function share their store."""


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


_numbers = itertools.count()


def makers(name: str, redis_url: str) -> MakeQueue:
    if name == "redis":
        job_id = f"job-{next(_numbers)}"
        return lambda epoch: RedisQueue(redis_url, job_id, epoch)
    clock = itertools.count()
    store = MemoryStore(lambda: float(next(clock)) * 1e-6)
    return lambda epoch: MemoryQueue(store, epoch)


@pytest.fixture(params=["memory", "redis"])
def make_queue(request: pytest.FixtureRequest, redis_server: RedisServer) -> MakeQueue:
    return makers(request.param, redis_server.url)
