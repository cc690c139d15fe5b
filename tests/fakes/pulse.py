"""Waiting for a condition without sleeping: whoever changes something beats, whoever waits looks again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Pulse:
    """Wakes everybody who waits for a condition."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Something has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def until(self, condition: Callable[[], Any], timeout: float = 30.0) -> None:
        """Waits until a condition holds; it is looked at after each beat."""
        async with asyncio.timeout(timeout):
            while not condition():
                await self._event.wait()


class Gate:
    """Open or closed.

    Args:
        pulse: beats when that changes.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._open = True

    def is_set(self) -> bool:
        return self._open

    def set(self) -> None:
        self._open = True
        self._pulse.beat()

    def clear(self) -> None:
        self._open = False
        self._pulse.beat()
