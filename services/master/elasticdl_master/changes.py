"""Applies changes to a job's machine and queue, one after the other, in a task of its own.

A change is more than one step: the store moves, then the machine hears of it, then what it decides is carried out.
Whoever asks for one waits for its answer alone, and may go away at any moment (a call's deadline passes, a worker
dies): the change goes on to its end. Its deadlines are those of what it awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class ChangeInbox:
    """The changes of one job that were asked for and are not made yet, and the task that makes them in turn."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[Coroutine[Any, Any, Any], asyncio.Future[Any]]] = deque()
        self._actor: asyncio.Task[None] | None = None
        self._is_closed = False

    def begin(self, change: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Has a change made after those that were asked for before; returns its answer to come.

        Raises:
            CancelledError: the process ends.
        """
        if self._is_closed:
            change.close()
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._inbox.append((change, answer))
        if self._actor is None:
            self._actor = loop.create_task(self._make_all(), name="changes of the job")
        return answer

    async def make(self, change: Coroutine[Any, Any, T]) -> T:
        """Has a change made, and waits for its answer; the change is made to its end even if the caller goes away."""
        return await self.begin(change)

    async def close(self, seconds: float) -> None:
        """Takes no more changes; gives those that were asked for some time to come to their end."""
        self._is_closed = True
        if self._actor is not None:
            _, late = await asyncio.wait([self._actor], timeout=seconds)
            for task in late:
                task.cancel()
                await asyncio.wait(late)

    async def _make_all(self) -> None:
        try:
            while self._inbox:
                await self._make(*self._inbox.popleft())
        finally:
            self._actor = None
            while self._inbox:  # the process ends: nobody is left to make these
                change, answer = self._inbox.popleft()
                change.close()
                answer.cancel()

    @staticmethod
    async def _make(change: Coroutine[Any, Any, Any], answer: asyncio.Future[Any]) -> None:
        try:
            made = await change
        except Exception as error:
            if answer.done():
                _log.warning("a change failed that nobody waits for any more", error=repr(error))
            else:
                answer.set_exception(error)
        except BaseException:
            answer.cancel()
            raise
        else:
            if not answer.done():
                answer.set_result(made)
