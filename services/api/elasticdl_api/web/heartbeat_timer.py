"""One timer for many who want to be called from time to time, about then.

A timer each is an object in a heap and a turn of the event loop for each call: of ten thousand streams that each say
every few seconds that they live, half of what that costs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Protocol

import structlog

TICK_S = 0.1
"""Seconds between two beats: so much later than asked for somebody may be called."""
_log = structlog.get_logger(__name__)


class TimerTarget(Protocol):
    """An object that is called at each beat."""

    def beat(self) -> float:
        """Does something; returns the seconds after which it is called again."""


class HeartbeatTimer:
    """Calls many again and again; those that are due with one beat, in one go. All of it on one event loop."""

    def __init__(self) -> None:
        self._due: defaultdict[int, set[TimerTarget]] = defaultdict(set)
        self._beat_of: dict[TimerTarget, int] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """The number of objects that are called."""
        return len(self._beat_of)

    def add(self, called: TimerTarget, after_s: float) -> None:
        """Calls somebody for the first time after so many seconds."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._next = int(loop.time() / TICK_S) + 1
            self._timer = loop.call_at(self._next * TICK_S, self._beat)
        self._put(called, loop.time() + after_s)

    def remove(self, called: TimerTarget) -> None:
        """Calls somebody no more."""
        beat = self._beat_of.pop(called, None)
        if beat is not None and beat in self._due:
            self._due[beat].discard(called)

    def _put(self, called: TimerTarget, at: float) -> None:
        # Never into the beat that is under way.
        beat = max(int(at / TICK_S) + 1, self._next)
        self._beat_of[called] = beat
        self._due[beat].add(called)

    def _beat(self) -> None:
        """One beat. Where the loop is late, those that it missed come one by one: others have their turns between."""
        loop = asyncio.get_running_loop()
        due, now = self._due.pop(self._next, set()), loop.time()
        self._next += 1
        for called in due:
            if self._beat_of.pop(called, None) is None:
                continue  # removed by one that was called before it
            try:
                after_s = called.beat()
            except Exception:
                _log.exception("one of many calls failed")
                continue
            self._put(called, now + after_s)
        self._timer = loop.call_at(self._next * TICK_S, self._beat) if self._beat_of else None
