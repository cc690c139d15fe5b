"""Tries again: the loop that every call is repeated with while the other side is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

from elasticdl_core.backoff import Backoff


class Attempts:
    """Numbers of attempts, from 0, with pauses in between, until patience is at its end.

        attempts = Attempts(Backoff(0.1, 5.0), patience_s=60.0)
        async for _ in attempts:
            try:
                return await call()
            except UnavailableError as error:
                last = error
        raise UnavailableError(f"no answer for {attempts.seconds:.0f} s: {last.message}", fix=...)

    The first attempt is made at once. There is no next one when the pause before it would end after the patience has;
    a call under way is never cut short, so it needs a deadline of its own.

    Args:
        backoff: the pauses.
        patience_s: seconds from now after which no attempt begins; None to try for ever.
        sleep: how a pause is waited out.
        clock: seconds, ever rising.
    """

    def __init__(
        self,
        backoff: Backoff,
        patience_s: float | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backoff = backoff
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._started = clock()
        self._begun = 0
        self._failed = 0

    @property
    def seconds(self) -> float:
        """The seconds that it has been going on."""
        return self._clock() - self._started

    def reset(self) -> None:
        """Begins with the shortest pause again: what was tried has worked for a while."""
        self._failed = 0

    async def pause(self) -> bool:
        """Waits before the next attempt; returns False, at once, when there is to be none."""
        self._failed += 1
        pause_s = self._backoff.pause_s(self._failed)
        if self._patience_s is not None and self.seconds + pause_s > self._patience_s:
            return False
        await self._sleep(pause_s)
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if self._begun and not await self.pause():
            raise StopAsyncIteration
        self._begun += 1
        return self._begun - 1
