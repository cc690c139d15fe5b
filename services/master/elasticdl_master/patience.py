"""Trying until it works, and telling the job's owner what is waited for meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_master.outbox import Outbox
from elasticdl_runtime.retry import Attempts

T = TypeVar("T")
_BACKOFF = Backoff(0.2, 1.0)
_log = structlog.get_logger(__name__)


class PatientCalls:
    """Waits for what a master needs before it can begin.

    Attributes:
        waiting_for: what is waited for, in words; empty if nothing is.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.waiting_for = ""

    async def until_works(self, what: str, call: Callable[[], Awaitable[T]], kind: str = "") -> T:
        """Tries until it works.

        Args:
            what: what the job waits for meanwhile, for people.
            call: what is tried.
            kind: under this name the job's owner is told, by events and by the status.
        """
        async for _ in Attempts(_BACKOFF):
            try:
                answer = await call()
                break
            except UnavailableError as error:
                _log.warning(f"waiting for {what}", error=error.message)
                if kind and not self.waiting_for:
                    self._outbox.add_event(f"{kind}_away", f"waiting for {what}: {error.message}", {})
                    self.waiting_for = f"waiting for {what}: {error.message}"
        if kind and self.waiting_for:
            self._outbox.add_event(f"{kind}_back", f"{what} answers", {})
            self.waiting_for = ""
        return answer
