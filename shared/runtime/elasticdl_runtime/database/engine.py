"""The connection pool: deadlines for everything, and errors that tell an outage from a bug."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_runtime.database.queries import Query
from elasticdl_runtime.database.readers import ReadConnections

CONNECT_S = 4.0
QUERY_S = 8.0
POOL_S = 3.0
ACQUIRE_S = 5.0
"""Seconds to get a connection that lives, from the pool or anew."""
READERS = 8
"""Connections for single reads, besides those of the pool; opened when they are needed."""
IDLE_S = 1.0
"""Seconds after which a connection of the pool is looked at before it is used again."""
_USED_AT = "elasticdl_used_at"
_READ_ONLY = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
_OUTAGE_CLASSES = ("08", "53", "57", "58", "40")
"""SQLSTATE classes: connection, resources, operator intervention, system error, rollback (try again)."""
_LOCK_TIMEOUT = "55P03"
LOCK_S = 5.0
"""Seconds for which a statement waits for a row that somebody else holds."""


class Database:
    """A pool of connections to Postgres.

    Args:
        url: ``postgresql://user:password@host:port/database`` or, for a unix socket, ``...@/database?host=/dir``.
        application: the name that Postgres shows for the connections.
        size: connections kept.
        overflow: connections opened beyond them when all are busy.

    Raises:
        InvalidInputError: the URL is not one of Postgres.
    """

    def __init__(self, url: str, *, application: str = "elasticdl", size: int = 10, overflow: int = 10) -> None:
        self._url = _parse(url)
        self._engine = create_async_engine(
            self._url,
            pool_size=size,
            max_overflow=overflow,
            pool_timeout=POOL_S,
            pool_recycle=1800,
            connect_args={
                "timeout": CONNECT_S,
                "command_timeout": QUERY_S,
                "server_settings": {"application_name": application, "lock_timeout": f"{LOCK_S}s"},
            },
        )
        _ping_the_idle(self._engine.sync_engine)
        self._readers = ReadConnections(self._open_reader, READERS, ACQUIRE_S)
        self._application = application
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def fetch(self, query: Query, **values: Any) -> list[Any]:
        """The rows of a query that only reads, as the driver gives them: no transaction, no statement to build.

        It is asked once more when its connection turns out to be lost.

        Args:
            query: the query.
            **values: what its parameters are.

        Raises:
            UnavailableError: Postgres is down, full or too slow.
        """
        arguments = query.arguments(values)
        for again in (True, False):
            try:
                return await self._readers.fetch(query.text, arguments)
            except (asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, ConnectionError) as error:
                if not again:
                    raise _unavailable(error) from error
            except asyncpg.PostgresError as error:
                if _is_outage_state(error.sqlstate):
                    raise _unavailable(error) from error
                raise
            except OSError as error:  # of a connection, of a query, and a TimeoutError is one
                raise _unavailable(error) from error
        raise AssertionError("unreachable")

    async def _open_reader(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            **self._options(),
            timeout=CONNECT_S,
            command_timeout=QUERY_S,
            server_settings={"application_name": f"{self._application} reads"},
        )

    def _options(self) -> dict[str, Any]:
        return self._url.translate_connect_args(username="user") | dict(self._url.query)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Statements that only read, each by itself: without the two trips to Postgres that a transaction takes.

        Raises:
            UnavailableError: Postgres is down, full or too slow.
        """
        async with self._connected(self._reading.connect) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed at the end of the block, rolled back if it raises.

        Raises:
            UnavailableError: Postgres is down, full or too slow.
        """
        async with self._connected(self._engine.begin) as connection:
            yield connection

    @asynccontextmanager
    async def _connected(
        self, connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    ) -> AsyncIterator[AsyncConnection]:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(ACQUIRE_S):
                    connection = await stack.enter_async_context(connect())
                yield connection
        except DBAPIError as error:
            if _is_outage(error):
                raise _unavailable(error) from error
            raise
        except (PoolTimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError) as error:
            # A TimeoutError is an OSError: of the pool, of a connection, of a query.
            raise _unavailable(error) from error

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A read-only transaction of which every statement sees the same instant.

        Raises:
            UnavailableError: Postgres is down, full or too slow.
        """
        async with self.transaction() as connection:
            await connection.execute(_READ_ONLY)
            yield connection

    @asynccontextmanager
    async def listening(self, channel: str, heard: Callable[[str], None]) -> AsyncIterator[asyncio.Event]:
        """Hears the notifications of a channel, on a connection of its own, until the block ends.

        Notifications are lost with the connection: who relies on them looks for itself after each new connection.

        Args:
            channel: the channel.
            heard: is given the payload of each notification, on the event loop.

        Yields:
            An event that is set when the connection is lost.

        Raises:
            UnavailableError: Postgres is down.
        """
        lost = asyncio.Event()
        try:
            connection = await asyncpg.connect(timeout=CONNECT_S, command_timeout=QUERY_S, **self._options())
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(channel, lambda _c, _p, _ch, payload: heard(payload))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _unavailable(error) from error
        try:
            yield lost
        finally:
            connection.terminate()

    async def close(self) -> None:
        """Closes all connections."""
        self._readers.close()
        await self._engine.dispose()


def _ping_the_idle(engine: Engine) -> None:
    """Looks whether a connection of the pool still lives, before it is used, if it has not been for a while.

    Busy connections need no look: one that breaks while it is used fails that use anyhow, and the pool with it.
    """

    @event.listens_for(engine, "checkin")
    def note(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def look(connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection) -> None:
        if time.monotonic() - record.info.get(_USED_AT, time.monotonic()) < IDLE_S:
            return
        try:
            alive = engine.dialect.do_ping(connection)
        except Exception as error:
            raise DisconnectionError from error
        if not alive:
            raise DisconnectionError


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or not parsed.drivername.startswith("postgres"):
        raise InvalidInputError(
            "the database URL is not one of Postgres",
            fix="set ELASTICDL_DATABASE_URL to postgresql://user:password@host:port/database",
        )
    query = dict(parsed.query)
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement, or its transaction, failed because somebody else held a row for too long."""
    cause = error.__cause__ if isinstance(error, UnavailableError) else error
    return isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) == _LOCK_TIMEOUT


def _is_outage(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return _is_outage_state(state)
    cause = error.orig.__cause__ if error.orig is not None else None
    return isinstance(cause, asyncpg.InterfaceError | asyncpg.PostgresConnectionError | OSError)


def _is_outage_state(state: str | None) -> bool:
    return bool(state and (state[:2] in _OUTAGE_CLASSES or state == _LOCK_TIMEOUT))


def _unavailable(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"the database does not answer ({type(error).__name__})",
        fix="try again in a moment; if it lasts, check Postgres and ELASTICDL_DATABASE_URL",
    )
