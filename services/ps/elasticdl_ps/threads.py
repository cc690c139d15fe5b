"""The threads of a parameter server: one makes all updates, others serve pulls, one more has the checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_READERS = 4


class Threads:
    """Runs work beside the event loop that asks for it.

    What is begun is finished, also if the caller goes away: an update must not be left half counted.

    Attributes:
        written: called on the event loop after each change, whoever has asked for it and may be gone.
    """

    def __init__(self) -> None:
        self.written: Callable[[], None] = lambda: None
        self._running = 0
        self._writer = ThreadPoolExecutor(1, "update")
        self._readers = ThreadPoolExecutor(_READERS, "pull")
        self._files = ThreadPoolExecutor(1, "checkpoint")

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits to run, so that the event loop may do short work itself.

        Such work waits for no lock then, and comes after all that came before it.
        """
        return not self._running

    def write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs what changes parameters, one after the other."""
        return self._in(self._writer, work)

    def read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs what reads parameters."""
        return self._in(self._readers, work)

    def save(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs what writes or reads files."""
        return self._in(self._files, work)

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        for pool in (self._readers, self._writer, self._files):
            pool.shutdown(wait=True, cancel_futures=True)

    def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        self._running += 1
        done = asyncio.get_running_loop().run_in_executor(pool, work)
        done.add_done_callback(self._has_written if pool is self._writer else self._has_run)
        return asyncio.shield(done)

    def _has_written(self, done: asyncio.Future[Any]) -> None:
        self._has_run(done)
        self.written()

    def _has_run(self, _: asyncio.Future[Any]) -> None:
        self._running -= 1
