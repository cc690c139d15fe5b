"""Sees when something holds the event loop, and what it was: everybody else waits meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType

import structlog

from elasticdl_api.web.telemetry import LOOP_LAG, LOOP_LAG_MOST, RequestMeter

EVERY_S = 0.1
WARN_S = 1.0
_log = structlog.get_logger(__name__)


class LoopWatch:
    """Measures how late the event loop is.

    A thread looks where the loop's own thread stands while it is late: afterwards nobody could say. What runs without
    giving other threads a turn, such as a long regular expression, is measured all the same, without a place.

    Args:
        warn_s: seconds from which it is worth a line of the log.
    """

    def __init__(self, warn_s: float = WARN_S) -> None:
        self._warn_s = warn_s
        self._due = 0.0
        self._place = ""
        self._route = ""
        self._ended = threading.Event()
        self.most = 0.0

    async def run(self) -> None:
        """Watches until it is cancelled."""
        self._due = time.monotonic() + EVERY_S
        watched = threading.get_ident()
        thread = threading.Thread(target=self._look, args=(watched,), name="loop watch", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                self._note(max(time.monotonic() - self._due, 0.0))
                self._due = time.monotonic() + EVERY_S
        finally:
            self._ended.set()

    def _note(self, late_s: float) -> None:
        LOOP_LAG.observe(late_s)
        if late_s > self.most:
            self.most = late_s
            LOOP_LAG_MOST.set(late_s)
        if late_s > self._warn_s:
            _log.warning(
                "the event loop was held", seconds=round(late_s, 2), place=self._place, route=self._route or "none"
            )
        self._place = self._route = ""

    def _look(self, watched: int) -> None:
        while not self._ended.wait(self._warn_s / 4):
            if time.monotonic() - self._due > self._warn_s / 2 and not self._place:
                frame = sys._current_frames().get(watched)
                self._place, self._route = _place_of(frame), _route_of(frame)


def _place_of(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


def _route_of(frame: FrameType | None) -> str:
    """The route that is handled at this moment: the meter of requests is below everything that it does."""
    while frame is not None:
        if frame.f_code is RequestMeter.__call__.__code__:
            scope = frame.f_locals["scope"]
            return f"{scope['method']} {getattr(scope.get('route'), 'path', scope['path'])}"
        frame = frame.f_back
    return ""
