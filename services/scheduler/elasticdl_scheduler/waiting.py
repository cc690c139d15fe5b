"""Waiting for the database's schema, for its notifications, and for events."""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import text

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.tables import CHANNEL
from elasticdl_runtime.retry import Attempts

NEEDED_REVISION = "0018"
"""The migration of the schema that this code reads and writes; a later one is fine."""
_RECONNECTS = Backoff(1.0, 1.0)
_log = structlog.get_logger(__name__)


async def is_migrated(database: Database) -> bool:
    """Whether the schema is as new as this code needs it.

    Raises:
        UnavailableError: Postgres does not answer.
    """
    async with database.transaction() as connection:
        if (await connection.execute(text("SELECT to_regclass('alembic_version')"))).scalar() is None:
            return False
        revision = (await connection.execute(text("SELECT max(version_num) FROM alembic_version"))).scalar()
    return revision is not None and str(revision) >= NEEDED_REVISION


async def await_schema(database: Database, stop: asyncio.Event, *, every_s: float = 1.0) -> None:
    """Waits until the database is there and migrated, or until ``stop``; says so now and then."""
    async for tries in Attempts(Backoff(every_s, every_s), sleep=lambda seconds: first_of(seconds, stop)):
        if stop.is_set():
            return
        try:
            if await is_migrated(database):
                return
            cause, fix = "its schema is missing or old", "run: python -m elasticdl_api migrate, or start the api"
        except UnavailableError as error:
            cause, fix = error.message, error.fix
        if tries % 30 == 0:
            _log.warning("waiting_for_database", cause=cause, fix=fix, needed_revision=NEEDED_REVISION)


async def listen(database: Database, wake: asyncio.Event, stop: asyncio.Event) -> None:
    """Sets ``wake`` whenever a job changed, until ``stop``; connects again after an outage.

    A notification can be lost with its connection, so ``wake`` is also set on each new connection.
    """
    async for _ in Attempts(_RECONNECTS, sleep=lambda seconds: first_of(seconds, stop)):
        if stop.is_set():
            return
        try:
            async with database.listening(CHANNEL, lambda _job_id: wake.set()) as lost:
                wake.set()
                await first_of(None, stop, lost)
        except UnavailableError as error:
            _log.warning("listening_failed", error=error.message)


async def first_of(timeout_s: float | None, *events: asyncio.Event) -> None:
    """Returns when one of the events is set, or after the time."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
