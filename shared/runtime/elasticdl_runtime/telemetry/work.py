"""Work of a thread, or a task of an event loop: logs and recordings say it with each line and each span."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

_NOTHING: Mapping[str, str] = {}
_present: ContextVar[Mapping[str, str]] = ContextVar("work", default=_NOTHING)


def begin(task: str, lease: str) -> None:
    """The calling thread or task works on this from now on.

    Args:
        task: the task's id.
        lease: the token of its lease, of which the number is told, but not what proves it.
    """
    _present.set({"task": task, "lease": number_of(lease)})


def end() -> None:
    """The calling thread or task works on nothing any more."""
    _present.set(_NOTHING)


def present() -> Mapping[str, str]:
    """The work of the calling thread or task: ``task`` and ``lease``, or nothing."""
    return _present.get()


def number_of(lease: str) -> str:
    """The number of a lease, without the random part of its token."""
    return lease.rpartition(".")[0] or lease
