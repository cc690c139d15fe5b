"""Wakes those who wait for a change of a job, by LISTEN/NOTIFY.

A wake-up is a hint, never a fact: notifications are lost while the connection is down, so every waiter also looks
by itself from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.tables import CHANNEL
from elasticdl_runtime.lifecycle import wait_for_event
from elasticdl_runtime.retry import Attempts

_BACKOFF = Backoff(1.0, 1.0)
_log = structlog.get_logger(__name__)


class Wakeups:
    """Listens on one connection of its own, for any number of waiters.

    Args:
        database: where to listen.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: set[asyncio.Event] = set()
        self._hearers: list[Callable[[str | None], None]] = []
        self._listening = False

    @property
    def listening(self) -> bool:
        """Whether changes are told: without that, whoever waits has to look everywhere each time."""
        return self._listening

    @contextlib.contextmanager
    def hearing(self, heard: Callable[[str | None], None]) -> Iterator[None]:
        """Calls ``heard`` with each job that may have changed, and with None when any may have."""
        self._hearers.append(heard)
        try:
            yield
        finally:
            self._hearers.remove(heard)

    @contextlib.contextmanager
    def waiter(self) -> Iterator[asyncio.Event]:
        """An event that is set when a job may have changed; the waiter clears it."""
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            yield event
        finally:
            self._waiters.remove(event)

    async def run(self) -> None:
        """Listens until it is cancelled; connects again when the connection is lost."""
        async for _ in Attempts(_BACKOFF):
            try:
                async with self._database.listening(CHANNEL, self._wake) as lost:
                    self._listening = True
                    self._wake(None)
                    await lost.wait()
            except UnavailableError as error:
                _log.warning("no wake-ups", error=error.message)
            finally:
                self._listening = False

    def _wake(self, job_id: str | None) -> None:
        for event in self._waiters:
            event.set()
        for heard in self._hearers:
            heard(job_id)


async def wait(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for a wake-up, at most that long, and clears it."""
    await wait_for_event(event, timeout_s)
    event.clear()
