"""Words that reasons have in common."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST = 2e11
"""Seconds beyond the calendar."""


def workers_of(count: int) -> str:
    """A number of workers, in words: ``1 worker``, ``3 workers``."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def slots_of(count: float) -> str:
    """A number of slots, in words: ``1 slot``, ``0.5 slots``."""
    return f"{count:g} slot" if count == 1 else f"{count:g} slots"


def moment(at: float, now: float) -> str:
    """A time for people that stays true however late it is read: reasons are written down and shown for long."""
    if not 0 <= at < _LAST:
        return "an unknown time"
    then, day = datetime.fromtimestamp(round(at), UTC), datetime.fromtimestamp(now, UTC).date()
    return f"{then:%H:%M:%S} UTC" if then.date() == day else f"{then:%Y-%m-%d %H:%M} UTC"
