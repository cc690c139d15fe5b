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


def amount_of(resource: str, amount: float) -> str:
    """An amount of a resource, in words: ``2 slots``, ``4096 MiB of memory``, ``1 core``."""
    if resource == "memory":
        return f"{amount:.0f} MiB of memory"
    if resource == "cpu":
        return f"{amount:g} core" if amount == 1 else f"{amount:g} cores"
    return slots_of(amount)


def jobs_of(count: int) -> str:
    """A number of jobs, in words: ``1 job``, ``3 jobs``."""
    return f"{count} job" if count == 1 else f"{count} jobs"


def moment(at: float) -> str:
    """A time for people that stays true however late it is read: reasons are written down and shown for days."""
    return f"{datetime.fromtimestamp(round(at), UTC):%Y-%m-%d %H:%M:%S} UTC" if 0 <= at < _LAST else "an unknown time"
