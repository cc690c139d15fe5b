"""A fair lock: a thread that takes it again and again lets waiting threads in between."""

from __future__ import annotations

import threading
from types import TracebackType


class FairLock:
    """A mutual exclusion for threads, used as a context manager.

    Python's lock goes to whoever comes first after its release, which is nearly always the thread that has just
    released it: a large update in blocks would keep readers out until its end. Here everyone waits for the lock
    inside a gate, and so does the updating thread before its next block, behind the reader who holds the gate.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._lock = threading.Lock()

    @property
    def wanted(self) -> bool:
        """Whether a thread waits for the lock, or is just getting it."""
        return self._gate.locked()

    def __enter__(self) -> None:
        with self._gate:
            self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
