from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from elasticdl_master.queue.port import TaskQueue
from elasticdl_master.queue.redis import RedisQueue
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.redis_server import RedisServer

ADAPTERS = ("memory", "redis")
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
    if name != "memory":
        job_id = f"job-{next(_numbers)}"
        return lambda epoch: RedisQueue(redis_url, job_id, epoch)
    clock = itertools.count()
    store = MemoryStore(lambda: float(next(clock)) * 1e-6)
    return lambda epoch: MemoryQueue(store, epoch)


@pytest.fixture(params=ADAPTERS)
def make_queue(request: pytest.FixtureRequest) -> MakeQueue:
    return makers(request.param, url_for(request, request.param))


def url_for(request: pytest.FixtureRequest, adapter: str) -> str:
    """The URL of the Redis behind an adapter; the queue in this process has none."""
    return str(request.getfixturevalue("redis_server").url) if adapter == "redis" else ""
