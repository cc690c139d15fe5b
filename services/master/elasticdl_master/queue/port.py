"""The task queue of one job: what is to do, in whose hands, done, or quarantined.

When a lease ends is known to the store alone, on its own clock: neither workers nor masters compare times.

The queue stores the texts of task ids and nothing else of a task. Every task that was added is in exactly one of
the four places, except that a partial return splits it: the front is done, the rest goes to the head of what is to
do. Each method is atomic.

A queue belongs to a master epoch. A newer epoch shuts older ones out for good: their calls raise ``FencedError``.
A store that lost what it had acknowledged (a restart without its log's tail, a flush) raises ``StoreLostError``
from every method but ``rebuild``, which makes the queue whole again from what the master knows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from elasticdl_core.errors import UnavailableError
from elasticdl_core.task import Lease, LeaseToken, TaskId


class StoreLostError(UnavailableError):
    """The store forgot acknowledged moves; the queue must be rebuilt before it can be used."""

    code = "store_lost"


class Outcome(enum.StrEnum):
    """Outcomes of a report or a return."""

    ACCEPTED = "accepted"
    REPLAY = "replay"
    """The same lease said so before; nothing changed."""
    LOST = "lost"
    """The lease is not, or no longer, the task's."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of tasks in each place."""

    todo: int = 0
    doing: int = 0
    done: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything in a queue at one instant.

    Attributes:
        todo: in the order in which they will be leased.
        doing: the live leases.
        done: finished tasks and fronts; the value is the token text of the lease that did it, or empty if unknown.
        quarantined: tasks that are never leased again.
        results: what was reported with some of the done tasks.
        notes: what the master wrote with ``note``.
    """

    todo: tuple[TaskId, ...] = ()
    doing: tuple[Lease, ...] = ()
    done: Mapping[TaskId, str] = field(default_factory=dict)
    quarantined: frozenset[TaskId] = frozenset()
    results: Mapping[TaskId, bytes] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A request of one owner: to report a task, to lease others, or both, in this order.

    Attributes:
        owner: who asks.
        limit: number of tasks to lease, at most.
        task: what to report, if anything; a request with a report that is not accepted leases nothing.
        token: the reported task's.
        result: what to keep with the reported task, if anything.
    """

    owner: str
    limit: int = 0
    task: TaskId | None = None
    token: LeaseToken | None = None
    result: bytes = b""


@dataclass(frozen=True, slots=True)
class TaskReply:
    """The answer to a request.

    Attributes:
        outcome: of the report; None if there was none.
        leases: what was leased.
    """

    outcome: Outcome | None
    leases: Sequence[Lease]


def split(task: TaskId, position: int) -> tuple[TaskId | None, TaskId | None]:
    """The front of a returned task that is done, and the rest that is to do; a task without records is one piece."""
    if position <= task.start or task.start == task.end:
        return None, task
    if position >= task.end:
        return task, None
    return task.front_until(position), task.rest_from(position)


_NOTHING: Mapping[int, str] = MappingProxyType({})


class TaskQueue(Protocol):
    """The queue. Times are the store's; every method may raise UnavailableError, FencedError or StoreLostError."""

    async def load(self) -> Contents | None:
        """Everything in the queue, or None if no master has completed a ``rebuild`` in this store."""
        ...

    async def rebuild(self, contents: Contents, lease_s: float, posts: Mapping[int, str] = _NOTHING) -> None:
        """Replaces all but what is kept; leases keep owner and token, and each lasts ``lease_s`` seconds from now.

        ``posts`` are kept before the notes say that they were told.
        """
        ...

    async def add(self, tasks: Sequence[TaskId], *, front: bool = False) -> int:
        """Adds tasks in order at the tail, or at the head; skips ids that are anywhere already. Returns how many."""
        ...

    async def lease(self, owner: str, limit: int, lease_s: float) -> list[Lease]:
        """Leases up to ``limit`` tasks from the head, each under a fresh token."""
        ...

    async def exchange(self, requests: Sequence[TaskRequest], lease_s: float) -> list[TaskReply]:
        """Takes requests of any owners, one after the other in one move; each lease lasts ``lease_s`` seconds."""
        ...

    async def extend(self, owner: str, tokens: Sequence[LeaseToken], lease_s: float) -> list[LeaseToken]:
        """Lets the owner's leases end ``lease_s`` from now; returns those that are lost."""
        ...

    async def report(self, task: TaskId, token: LeaseToken, result: bytes = b"") -> Outcome:
        """Marks a leased task done, and keeps ``result`` with it if there is one."""
        ...

    async def return_(self, task: TaskId, token: LeaseToken, position: int, result: bytes = b"") -> Outcome:
        """Gives a leased task back from ``position`` on: what is before is done, the rest goes to the head.

        ``result`` is kept with what is done, if there is one.
        """
        ...

    async def reap(self) -> list[Lease]:
        """Takes back all leases whose deadline has come, tasks to the head. Returns them."""
        ...

    async def release_owner(self, owner: str) -> list[Lease]:
        """Takes back all leases of an owner, tasks to the head. Returns them."""
        ...

    async def quarantine(self, task: TaskId) -> bool:
        """Takes a task out of todo or doing for good. False if it is in neither."""
        ...

    async def forget(self, tasks: Iterable[TaskId]) -> int:
        """Drops done tasks and their results once nobody will ask about them. Returns how many."""
        ...

    async def note(self, text: str) -> None:
        """Keeps a text for the master that comes after."""
        ...

    async def keep(self, posts: Mapping[int, str]) -> None:
        """Keeps what is to be told to the api, by number, for the master that comes after; ``rebuild`` leaves it.

        This, ``drop`` and ``kept`` work also in a store in which nobody has completed a ``rebuild``.
        """
        ...

    async def drop(self, posts: Iterable[int]) -> None:
        """Drops what the api was told."""
        ...

    async def kept(self) -> Mapping[int, str]:
        """The messages that are to be told to the api."""
        ...

    async def counts(self) -> Counts:
        """Number of tasks in each place."""
        ...

    async def discard(self) -> None:
        """Removes everything of the job from the store but the epoch, when the job has ended."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
