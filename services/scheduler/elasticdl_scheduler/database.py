"""The scheduler's connections to Postgres: a small pool, and a listener that wakes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import structlog

from elasticdl_core.errors import InvalidInputError, UnavailableError

CHANNEL = "elasticdl_jobs"
NEEDED_REVISION = "0002"
"""The migration of the schema that this code reads and writes; a later one is fine."""
CONNECT_S = 4.0
QUERY_S = 8.0
_log = structlog.get_logger(__name__)

OUTAGES = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError, TimeoutError)
_TRY_AGAIN = (
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)


class Database:
    """A pool of few connections, opened when first needed.

    Args:
        url: ``postgresql://...`` or ``postgresql+asyncpg://...``.

    Raises:
        InvalidInputError: it is not a URL of Postgres.
    """

    def __init__(self, url: str) -> None:
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in ("postgresql", "postgres", "postgresql+asyncpg"):
            raise InvalidInputError(
                "the database URL is not one of Postgres",
                fix="set ELASTICDL_DATABASE_URL to postgresql://user:password@host:port/database",
            )
        self._dsn = f"postgresql://{rest}"
        self._pool: Any = None
        self._opening = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection in a transaction: committed at the end of the block, rolled back if it raises.

        Raises:
            UnavailableError: Postgres is down, full or slow.
        """
        try:
            pool = await self._open()
            async with pool.acquire(timeout=CONNECT_S) as connection, connection.transaction():
                yield connection
        except (*OUTAGES, *_TRY_AGAIN) as error:
            raise UnavailableError(
                f"the database does not answer ({type(error).__name__})",
                fix="check Postgres and ELASTICDL_DATABASE_URL; the scheduler tries again by itself",
            ) from error

    async def _open(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=0,
                    max_size=4,
                    timeout=CONNECT_S,
                    command_timeout=QUERY_S,
                    server_settings={"application_name": "elasticdl-scheduler", "lock_timeout": "5s"},
                )
            return self._pool

    async def close(self) -> None:
        """Closes all connections."""
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), CONNECT_S)
            except TimeoutError:
                self._pool.terminate()
            self._pool = None

    async def migrated(self) -> bool:
        """Whether the schema is as new as this code needs it.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        async with self.transaction() as connection:
            if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
                return False
            revision = await connection.fetchval("SELECT max(version_num) FROM alembic_version")
        return revision is not None and str(revision) >= NEEDED_REVISION

    async def await_schema(self, stop: asyncio.Event, *, every_s: float = 1.0) -> None:
        """Waits until the database is there and migrated, or until ``stop``; says so now and then."""
        tries = 0
        while not stop.is_set():
            try:
                if await self.migrated():
                    return
                cause, fix = "its schema is missing or old", "run: python -m elasticdl_api migrate, or start the api"
            except UnavailableError as error:
                cause, fix = error.message, error.fix
            if tries % 30 == 0:
                _log.warning("waiting_for_database", cause=cause, fix=fix, needed_revision=NEEDED_REVISION)
            tries += 1
            await first_of(every_s, stop)

    async def listen(self, wake: asyncio.Event, stop: asyncio.Event) -> None:
        """Sets ``wake`` whenever a job changed, until ``stop``; connects again after an outage.

        A notification can be lost with its connection, so ``wake`` is also set on each new connection.
        """
        while not stop.is_set():
            lost = asyncio.Event()
            try:
                connection = await asyncpg.connect(self._dsn, timeout=CONNECT_S, command_timeout=QUERY_S)
            except (*OUTAGES, asyncpg.PostgresError) as error:
                _log.warning("listening_failed", error=type(error).__name__)
                await first_of(1.0, stop)
                continue
            try:
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                await connection.add_listener(CHANNEL, lambda *_: wake.set())
                wake.set()
                await first_of(None, stop, lost)
            except (*OUTAGES, asyncpg.PostgresError) as error:
                _log.warning("listening_failed", error=type(error).__name__)
                await first_of(1.0, stop)
            finally:
                with contextlib.suppress(*OUTAGES):
                    await connection.close(timeout=CONNECT_S)


async def first_of(timeout_s: float | None, *events: asyncio.Event) -> None:
    """Returns when one of the events is set, or after the time."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
