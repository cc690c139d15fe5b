"""Synchronous mode: workers whose gradients count wait at the first PS for the end of the round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from elasticdl_ps.arrivals import ArrivalEstimator
from elasticdl_ps.rounds import Rounds

LONGEST_WAIT_S = 2.0
"""Who waits is answered after this long, well within a call's deadline, and asks again."""


class RoundHold:
    """Lets no round end for a while, or none begin: whoever would push waits. For one event loop."""

    def __init__(self) -> None:
        self._between_rounds = False
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Event = asyncio.Event()

    @property
    def active(self) -> bool:
        """Whether pushes may have to wait."""
        return self._timer is not None

    def may_begin(self) -> bool:
        """Whether a round may begin; may be asked in any thread."""
        return self._timer is None

    def begin(self, seconds: float, *, between_rounds: bool = False) -> None:
        """Holds rounds from now on, at most for some seconds.

        Args:
            seconds: after so many it ends by itself.
            between_rounds: the present round may end, but no other one begin.
        """
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._over = asyncio.Event()
        self._between_rounds = between_rounds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """Lets pushes go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._over.set()

    async def wait(self) -> None:
        """Waits for the end."""
        while self.active:
            await self._over.wait()

    async def wait_to_push(self) -> None:
        """Waits until a push may be tried: it may yet be one that would begin a round."""
        if not self._between_rounds:
            await self.wait()


class RoundWaiter:
    """Lets workers wait. For one event loop.

    Args:
        rounds: whose ends are waited for.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._arrivals = ArrivalEstimator()
        self._waiting: list[asyncio.Future[None]] = []
        self._over = False

    def note_pull(self, worker: str) -> None:
        """A worker has parameters to compute on."""
        self._arrivals.note_pull(worker, time.monotonic())

    def note_push(self, worker: str) -> None:
        """A worker's gradient was counted or refused; it may have closed a round."""
        self._arrivals.note_push(worker, time.monotonic())
        self.wake()

    def wake(self) -> None:
        """Has all who wait look whether the round has ended."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _wake(future)

    def stop(self) -> None:
        """Lets nobody wait any more."""
        self._over = True
        self.wake()

    async def wait(self, worker: str, version: int) -> bool:
        """Waits for the end of the round that makes a version, while gradients enough for it are to be expected.

        Args:
            worker: who waits; nothing is expected of it meanwhile.
            version: what it waits for; there is nothing to wait for unless the present round makes it.

        Returns:
            Whether it is worth waiting on: the time for one call is over.
        """
        if self._rounds.version != version - 1:
            return False
        self._arrivals.note_wait(worker)
        return await self._wait_while(lambda: self._rounds.version == version - 1) or self._over

    async def wait_for_gradients(self) -> bool:
        """Waits until the present round has ended, while the gradients that it misses are to be expected.

        Returns:
            Whether they still are: the time for one call is over.
        """
        return await self._wait_while(lambda: self._rounds.is_open)

    async def _wait_while(self, open_: Callable[[], bool]) -> bool:
        """Waits while a round is open and its gradients are to be expected; whether they are after a call's time."""
        give_up = time.monotonic() + LONGEST_WAIT_S
        while open_() and not self._over:
            now = time.monotonic()
            until = self._arrivals.estimate_until(self._rounds.missing, now)
            if until is None:
                return False
            if now >= give_up:
                return True
            await self._next_look(min(until, give_up) - now)
        return False

    async def _next_look(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
