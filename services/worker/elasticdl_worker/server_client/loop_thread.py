"""An event loop in a thread of its own, for calls that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

from elasticdl_worker.master.loop_executor import LoopExecutor

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them. The thread ends with ``close``, or with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor = LoopExecutor(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="parameter-servers", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[object, None, T]) -> T:
        """Runs a coroutine and returns what it does, or raises what it raises. What it awaits has deadlines."""
        return self._executor.submit(coroutine).result()

    def close(self) -> None:
        """Ends the thread; nothing may run any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
