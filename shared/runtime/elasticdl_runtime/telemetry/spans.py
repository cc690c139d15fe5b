"""Spans of this process: what it does right now, and, on request, what it did during some seconds.

A span that is open costs an entry in a table, whether or not somebody looks: so whoever asks what a process waits for
gets an answer. Only while a recording runs are spans kept when they end. What only recordings show is ``traced``, or
``mark``: at other times that costs a look whether there is a recording.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from elasticdl_runtime.telemetry import work

MOST_EVENTS = 20_000
"""Spans of one recording; what comes later is counted only."""
LONGEST_S = 60.0
_numbers = itertools.count()
_open: dict[int, span] = {}
_NOTHING: AbstractContextManager[None] = nullcontext()
Details = Mapping[str, str | int | float]


class span:  # noqa: N801 - reads as a statement
    """Names what is done inside of it.

        with span("pull from PS 1", "rpc", alone=False):
            ...

    Args:
        name: what it is, from a small set of names.
        kind: ``step``, ``task``, ``rpc``, ``group``, ``ps``.
        alone: whether its thread does nothing else meanwhile: not so on an event loop.
        details: what a recording shows beside the name, and beside what the thread works on.
    """

    __slots__ = ("_key", "alone", "began", "details", "kind", "name", "thread", "working")

    def __init__(self, name: str, kind: str, *, alone: bool = True, details: Details | None = None) -> None:
        self.name = name
        self.kind = kind
        self.alone = alone
        self.details = details

    def __enter__(self) -> span:
        self.thread = threading.get_ident()
        self.began = time.monotonic()
        self.working = work.present()  # whoever takes a recording is another thread, and cannot ask for it
        self._key = next(_numbers)
        _open[self._key] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.pop(self._key, None)
        recording = _Recording.present
        if recording is not None:
            recording.add(self, time.monotonic())


def traced(
    name: str, kind: str, tell: Callable[[], Details] = dict, **details: str | int | float
) -> AbstractContextManager[object]:
    """A span that only a recording shows; not to be held across an ``await``.

    Args:
        name: what it is.
        kind: as that of a span.
        tell: details that take some work; called only while a recording runs.
        details: further ones.
    """
    return _NOTHING if _Recording.present is None else span(name, kind, details={**tell(), **details})


def mark(name: str, kind: str, tell: Callable[[], Details] = dict, **details: str | int | float) -> None:
    """Notes in a recording, if one runs, that something has happened; its arguments are those of ``traced``."""
    if _Recording.present is not None:
        # Nothing is awaited inside: also on an event loop it is alone, and arrows can begin and end at it.
        with span(name, kind, details={**tell(), **details}):
            pass


def open_spans() -> list[span]:
    """The spans that are open, the oldest first."""
    return [one for _, one in sorted(_open.copy().items())]


class _Recording:
    present: _Recording | None = None

    def __init__(self, seconds: float) -> None:
        # Monotonic clocks of different machines have nothing in common.
        self.clock = time.time() - time.monotonic()
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.lost = 0
        self.events: list[tuple[str, str, bool, float, float, int, Details]] = []

    def add(self, one: span, now: float) -> None:
        if one.began >= self.until:
            _Recording.present = None  # nobody fetched it: it costs no more
        elif len(self.events) < MOST_EVENTS:
            begin = min(max(one.began, self.began), now)
            details = {**one.working, **(one.details or {})}
            self.events.append((one.name, one.kind, one.alone, begin, now, one.thread, details))
        else:
            self.lost += 1


_kept: list[_Recording] = []


def record(seconds: float) -> None:
    """Keeps the spans of the next seconds, at most ``LONGEST_S``; what was recorded before is dropped."""
    recording = _Recording(min(max(seconds, 0.0), LONGEST_S))
    _kept[:] = [recording]
    _Recording.present = recording


def take_recorded() -> dict[str, Any]:
    """Returns the recorded spans, once; spans that are still open end now.

    Returns:
        ``spans``: lists of name, kind, whether its thread did nothing else, begin and duration in microseconds of
        the machine's monotonic clock, thread, details; ``clock``: what is added to that for the time since 1970;
        ``threads``: names of threads; ``lost``: spans that were too many.
    """
    _Recording.present = None
    if not _kept:
        return {"spans": [], "clock": 0, "threads": {}, "lost": 0}
    recording = _kept.pop()
    now = time.monotonic()
    for one in open_spans():
        recording.add(one, now)
    return {
        "spans": [
            [name, kind, alone, _microseconds(begin), _microseconds(end) - _microseconds(begin), thread, details]
            for name, kind, alone, begin, end, thread, details in recording.events
        ],
        "clock": int(recording.clock * 1e6),
        "threads": {str(thread.ident): thread.name for thread in threading.enumerate()},
        "lost": recording.lost,
    }


def _microseconds(moment: float) -> int:
    """Begin and end are cut alike, so that what lies inside of a span still does."""
    return int(moment * 1e6)
