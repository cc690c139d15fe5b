"""An event loop without timers, sockets or threads: for what waits for nothing but other tasks of the same loop.

It goes step by step, the same steps each time, so that a test can break a call off at any of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class PlainLoop(asyncio.AbstractEventLoop):
    """Runs what is ready, first come first served.

    Attributes:
        errors: what went wrong that nobody awaited.
    """

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self.errors: list[dict[str, Any]] = []

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task for a call, whose first step is to come."""
        return asyncio.Task(call, loop=self)

    def go(self, steps: int = -1) -> int:
        """Goes so many steps, or on until nothing is ready. Returns how many it went."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            went = 0
            while self._ready and went != steps:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                went += 1
            return went
        finally:
            asyncio._set_running_loop(outer)

    def finish(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end, and whatever it has begun."""
        task = self.begin(call)
        self.go()
        assert task.done(), "the simulation waited for something"
        return task.result()

    # -- what tasks and futures need of a loop -----------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception", Exception()), Exception):  # else a process was made to end there
            self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
