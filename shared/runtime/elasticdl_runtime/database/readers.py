"""Connections for single reads.

The pools of the driver and of SQLAlchemy start a task, or switch stacks, for each use of a connection. For reads of a
tenth of a millisecond, which every request asks, that is half of what they cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg


class ReadConnections:
    """Some connections, each of which does one read after the other, outside of transactions.

    They are opened when they are needed, and stay. One whose read did not come to its end is closed: nobody knows
    what it would say next.

    Args:
        connect: opens one.
        most: how many there may be.
        patience_s: seconds to wait for one when all are busy.
    """

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], most: int, patience_s: float) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._turns = asyncio.Semaphore(most)
        self._idle: list[asyncpg.Connection] = []
        self._closed = False

    async def fetch(self, text: str, arguments: Sequence[Any]) -> list[Any]:
        """The rows of a query.

        Raises:
            TimeoutError: no connection was free in time, or Postgres took too long.
            OSError: there is no way to Postgres.
            asyncpg.PostgresError: Postgres refuses the query, or the connection.
            asyncpg.InterfaceError: the connection was lost.
        """
        connection = await self._take()
        whole = False
        try:
            rows: list[Any] = await connection.fetch(text, *arguments)
            whole = True
        except asyncpg.PostgresError:
            whole = True  # refused: it goes on, unless it was closed with that
            raise
        finally:
            self._give_back(connection, whole)
        return rows

    def close(self) -> None:
        """Closes all connections, those that are at work when they are done."""
        self._closed = True
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()

    async def _take(self) -> asyncpg.Connection:
        if self._turns.locked():
            async with asyncio.timeout(self._patience_s):
                await self._turns.acquire()
        else:
            await self._turns.acquire()  # without waiting
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._connect()
        except BaseException:
            self._turns.release()
            raise

    def _give_back(self, connection: asyncpg.Connection, whole: bool) -> None:
        self._turns.release()
        if whole and not self._closed and not connection.is_closed():
            self._idle.append(connection)
        else:
            connection.terminate()
