"""Runs coroutines of other threads on the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Generic, TypeVar

from elasticdl_core.errors import ConflictError

T = TypeVar("T")
OF_ANOTHER_PROCESS = "connections were opened in another process, before a fork, and belong to that one"


class LoopExecutor:
    """Runs coroutines on an event loop.

    A lighter ``asyncio.run_coroutine_threadsafe`` for what is done at every step: the task that runs the coroutine
    sets the result itself, which saves a second future and a turn of the loop. What has begun cannot be cancelled
    through its future.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = os.getpid()
        # The loop itself does not keep tasks alive.
        self._running: dict[object, asyncio.Task[None]] = {}

    def submit(self, coroutine: Coroutine[object, None, T]) -> Future[T]:
        """Runs a coroutine on the event loop; to be called from other threads.

        Raises:
            ConflictError: this process was forked from the one that has the event loop.
            RuntimeError: the event loop is closed.
        """
        if os.getpid() != self._process:  # the thread of the loop is not in it: nobody would ever answer
            coroutine.close()
            raise ConflictError(OF_ANOTHER_PROCESS, fix="make one in each process, after the fork")
        future: Future[T] = Future()
        self._loop.call_soon_threadsafe(_Submitted(coroutine, future, self._begin))
        return future

    def _begin(self, coroutine: Coroutine[object, None, T], future: Future[T]) -> None:
        task = self._running[future] = self._loop.create_task(self._run(coroutine, future))
        task.add_done_callback(functools.partial(self._end, coroutine, future))

    async def _run(self, coroutine: Coroutine[object, None, T], future: Future[T]) -> None:
        try:
            future.set_result(await coroutine)
        except asyncio.CancelledError:
            future.set_exception(concurrent.futures.CancelledError())
            raise
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _end(self, coroutine: Coroutine[object, None, T], future: Future[T], _: asyncio.Task[None]) -> None:
        del self._running[future]
        if not future.done():  # the task was cancelled before its first step, as those of a loop that ends are
            coroutine.close()
            future.set_exception(concurrent.futures.CancelledError())


class _Submitted(Generic[T]):
    """A coroutine that waits for its turn; a loop that is closed before it came drops it, and who waits is told."""

    __slots__ = ("_begin", "_coroutine", "_future")

    def __init__(
        self,
        coroutine: Coroutine[object, None, T],
        future: Future[T],
        begin: Callable[[Coroutine[object, None, T], Future[T]], None],
    ) -> None:
        self._coroutine: Coroutine[object, None, T] | None = coroutine
        self._future = future
        self._begin = begin

    def __call__(self) -> None:
        coroutine = self._coroutine
        if coroutine is not None and self._future.set_running_or_notify_cancel():
            self._coroutine = None
            self._begin(coroutine, self._future)

    def __del__(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()
            self._future.cancel()
