"""Words that reasons have in common."""

from __future__ import annotations


def workers_of(count: int) -> str:
    """A number of workers, in words: ``1 worker``, ``3 workers``."""
    return f"{count} worker" if count == 1 else f"{count} workers"
