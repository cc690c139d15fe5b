"""Calls of a master that are broken off half way, and a store so far away that there is a half way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from elasticdl_master.queue.port import TaskQueue
from tests.fakes.sim_processes import LOOP


class FarQueue:
    """A queue whose store is far away: there is a step before each of its moves, and one after.

    Args:
        queue: the queue.
        at_each: called before each move, and after it.
    """

    def __init__(self, queue: TaskQueue, at_each: Callable[[], None] = lambda: None) -> None:
        self._queue = queue
        self._at_each = at_each

    def __getattr__(self, name: str) -> Any:
        move = getattr(self._queue, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            self._at_each()
            answer = await move(*arguments, **options)
            self._at_each()
            await asyncio.sleep(0)
            return answer

        return call


def break_off(call: Coroutine[Any, Any, object], steps: int) -> bool:
    """Breaks a call off after so many steps, as a server does with one whose caller is gone.

    Returns whether it was still under way then.
    """
    task = LOOP.begin(call)
    LOOP.go(steps)
    is_broken = not task.done()
    task.cancel()
    LOOP.go()
    assert task.cancelled() == is_broken
    return is_broken
