"""Calls that are broken off at one of their awaits."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Moment(StrEnum):
    """When a call is broken off, of one of its awaits."""

    WAITING = "waiting"
    """What was asked for is under way."""
    ANSWERED = "answered"
    """It is done, and whoever asked does not hear of it."""


class Cut:
    """Runs calls, and breaks each off at one await.

    Attributes:
        awaits: awaits that the last call came to.
        broken: whether it was broken off.
    """

    def __init__(self) -> None:
        self.awaits = 0
        self.broken = False

    async def run(self, call: Awaitable[T], at: int = 0, moment: Moment = Moment.WAITING) -> T | None:
        """Runs a call; returns its answer, or None if it was broken off.

        Args:
            call: the call.
            at: the await, counted from 1; 0 for none.
            moment: when.
        """
        self.awaits, self.broken = 0, False
        task = asyncio.ensure_future(self.steps(call, at, moment))
        try:
            return await task
        except asyncio.CancelledError:
            if not self.broken:
                raise
            return None

    async def steps(self, call: Awaitable[T], at: int, moment: Moment) -> T:
        """The call, which breaks the task off in which it is made."""
        return await self._steps(call, at, moment)

    @types.coroutine
    def _steps(self, call: Awaitable[T], at: int, moment: Moment) -> Generator[Any, Any, T]:
        steps = call.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.awaits += 1
            here, error = self.awaits == at, None
            if here and moment is Moment.WAITING:
                self._break()
            try:
                yield waited
            except BaseException as raised:
                error = raised
            if here and moment is Moment.ANSWERED:
                self._break()
                error = asyncio.CancelledError()

    def _break(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.broken = True
        task.cancel()


async def settled(read: Callable[[], object], wanted: object, what: str) -> None:
    """Waits until something reads as it should, which it comes to by itself."""
    for _ in range(10_000):
        if read() == wanted:
            return
        await asyncio.sleep(0.005)
    assert read() == wanted, what


def places(awaits: int) -> list[tuple[int, Moment]]:
    """All moments at which a call of so many awaits can be broken off."""
    return [(at, moment) for at in range(1, awaits + 1) for moment in Moment]
