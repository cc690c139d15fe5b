"""Connections for single reads: few of them, and none that nobody knows the state of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from elasticdl_runtime.database.readers import ReadConnections

pytestmark = pytest.mark.integration
MOST = 2


class Counted:
    """Opens connections, and knows them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.opened: list[asyncpg.Connection] = []

    async def __call__(self) -> asyncpg.Connection:
        found = await asyncpg.connect(self._url, timeout=30, command_timeout=30)
        self.opened.append(found)
        return found

    @property
    def living(self) -> int:
        return sum(not one.is_closed() for one in self.opened)


@pytest.fixture
async def counted(database_url: str) -> Counted:
    return Counted(database_url)


@pytest.fixture
async def readers(counted: Counted) -> AsyncIterator[ReadConnections]:
    found = ReadConnections(counted, MOST, patience_s=30.0)
    yield found
    found.close()
    assert counted.living == 0


async def one(readers: ReadConnections, query: str = "SELECT 1", *values: Any) -> Any:
    (row,) = await readers.fetch(query, values)
    return row[0]


async def test_many_reads_share_few_connections(readers: ReadConnections, counted: Counted) -> None:
    found = await asyncio.gather(*(one(readers, "SELECT $1::int", number) for number in range(50)))
    assert found == list(range(50))
    assert len(counted.opened) == MOST


async def test_one_that_is_enough_is_the_only_one(readers: ReadConnections, counted: Counted) -> None:
    for number in range(5):
        assert await one(readers, "SELECT $1::int", number) == number
    assert len(counted.opened) == 1


async def test_a_query_that_is_refused_costs_no_connection(readers: ReadConnections, counted: Counted) -> None:
    for _ in range(3):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await one(readers, "SELECT 1 / 0")
    assert (await one(readers), len(counted.opened)) == (1, 1)


async def test_a_read_that_is_given_up_takes_its_connection_along_and_its_turn_comes_back(
    readers: ReadConnections, counted: Counted
) -> None:
    asleep = [asyncio.create_task(one(readers, "SELECT pg_sleep(60)")) for _ in range(MOST)]
    waiting = asyncio.create_task(one(readers))
    async with asyncio.timeout(30):
        while len(counted.opened) < MOST:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    asleep[0].cancel()
    assert await waiting == 1
    asleep[1].cancel()
    await asyncio.wait(asleep)
    assert await asyncio.gather(*(one(readers) for _ in range(10))) == [1] * 10
    assert counted.living <= MOST


async def test_nobody_waits_for_ever(counted: Counted) -> None:
    readers = ReadConnections(counted, 1, patience_s=0.01)
    asleep = asyncio.create_task(one(readers, "SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await one(readers)
    asleep.cancel()
    await asyncio.wait({asleep})
    assert await one(readers) == 1
    readers.close()


async def test_a_connection_that_was_ended_beyond_is_replaced(readers: ReadConnections, counted: Counted) -> None:
    assert await one(readers) == 1
    other = await counted()
    await other.execute("SELECT pg_terminate_backend($1)", counted.opened[0].get_server_pid())
    await other.close()
    async with asyncio.timeout(30):
        while not counted.opened[0].is_closed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await one(readers) == 1
    assert len(counted.opened) == 3


async def test_a_connection_that_cannot_be_opened_takes_no_turn() -> None:
    async def fail() -> asyncpg.Connection:
        raise ConnectionRefusedError

    readers = ReadConnections(fail, 1, patience_s=0.01)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await one(readers)


async def test_who_reads_when_it_is_closed_leaves_nothing_open(counted: Counted) -> None:
    readers = ReadConnections(counted, 1, patience_s=30.0)
    reading = asyncio.create_task(one(readers, "SELECT 1 FROM pg_sleep(0.05)"))
    await asyncio.sleep(0)
    readers.close()
    assert await reading == 1
    assert counted.living == 0
