"""The queue in memory: the reference that the Redis adapter is held against, and the store of tests."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from elasticdl_core.errors import FencedError
from elasticdl_core.task import Lease, LeaseToken, TaskId
from elasticdl_master.queue.port import Contents, Counts, Outcome, StoreLostError, TaskReply, TaskRequest, split

_COLLECTIONS = ("todo", "doing", "deadlines", "done", "results", "quarantined", "posts")


class MemoryStore:
    """The state of a server: outlives the queues (masters) that use it.

    Args:
        clock: seconds; stands for the store's clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.epoch = 0
        self.counter = 0
        self.sequence = 0
        self.wipe()

    def wipe(self) -> None:
        """Forgets everything but the epoch, as a flush would."""
        self.ready = False
        self.todo: OrderedDict[TaskId, None] = OrderedDict()
        self.doing: dict[TaskId, Lease] = {}
        self.deadlines: dict[TaskId, float] = {}
        self.done: dict[TaskId, str] = {}
        self.results: dict[TaskId, bytes] = {}
        self.quarantined: set[TaskId] = set()
        self.notes = ""
        self.posts: dict[int, str] = {}

    def saved(self) -> dict[str, Any]:
        """The present content, for ``lose_tail``."""
        now = {name: getattr(self, name) for name in ("ready", "notes", "counter", "sequence")}
        return now | {name: getattr(self, name).copy() for name in _COLLECTIONS}

    def lose_tail(self, saved: Mapping[str, Any]) -> None:
        """Comes back as it was when ``saved`` was made, as a store does that lost the end of its log."""
        for name, value in saved.items():
            setattr(self, name, value.copy() if name in _COLLECTIONS else value)


class MemoryQueue:
    """One master's view of a ``MemoryStore``.

    Args:
        store: the shared state.
        epoch: this master's epoch.
    """

    def __init__(self, store: MemoryStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._seen = 0
        store.epoch = max(store.epoch, epoch)

    async def load(self) -> Contents | None:
        """See the port."""
        store = self._enter(ready=False)
        if not store.ready:
            return None
        return Contents(
            tuple(store.todo),
            tuple(store.doing.values()),
            dict(store.done),
            frozenset(store.quarantined),
            dict(store.results),
            store.notes,
        )

    async def rebuild(
        self, contents: Contents, lease_s: float, posts: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """See the port."""
        store = self._enter(ready=False)
        kept = {**store.posts, **posts}
        store.wipe()
        store.posts = kept
        store.todo.update(dict.fromkeys(contents.todo))
        store.doing = {lease.task: lease for lease in contents.doing}
        store.deadlines = dict.fromkeys(store.doing, store.clock() + lease_s)
        store.done, store.results = dict(contents.done), dict(contents.results)
        store.quarantined, store.notes, store.ready = set(contents.quarantined), contents.notes, True

    async def add(self, tasks: Sequence[TaskId], *, front: bool = False) -> int:
        """See the port."""
        store = self._enter()
        new = [task for task in dict.fromkeys(tasks) if not self._knows(task)]
        store.todo.update(dict.fromkeys(new))
        if front:
            for task in reversed(new):
                store.todo.move_to_end(task, last=False)
        return len(new)

    async def lease(self, owner: str, limit: int, lease_s: float) -> list[Lease]:
        """See the port."""
        self._enter()
        return self._lease(owner, limit, lease_s)

    async def exchange(self, requests: Sequence[TaskRequest], lease_s: float) -> list[TaskReply]:
        """See the port."""
        self._enter()
        replies = []
        for request in requests:
            outcome = None
            if request.task is not None:
                assert request.token is not None
                outcome = self._report(request.task, request.token, request.result)
            leases = self._lease(request.owner, request.limit, lease_s) if outcome in (None, Outcome.ACCEPTED) else []
            replies.append(TaskReply(outcome, leases))
        return replies

    async def extend(self, owner: str, tokens: Sequence[LeaseToken], lease_s: float) -> list[LeaseToken]:
        """See the port."""
        store = self._enter()
        held = {lease.token: task for task, lease in store.doing.items() if lease.owner == owner}
        for token in tokens:
            if token in held:
                task = held[token]
                store.deadlines[task] = store.clock() + lease_s
        return [token for token in tokens if token not in held]

    async def report(self, task: TaskId, token: LeaseToken, result: bytes = b"") -> Outcome:
        """See the port."""
        self._enter()
        return self._report(task, token, result)

    async def return_(self, task: TaskId, token: LeaseToken, position: int, result: bytes = b"") -> Outcome:
        """See the port."""
        store = self._enter()
        front, rest = split(task, position)
        lease = store.doing.get(task)
        if lease is None or lease.token != token:
            return Outcome.REPLAY if front is not None and store.done.get(front) == str(token) else Outcome.LOST
        del store.doing[task], store.deadlines[task]
        if front is not None:
            store.done[front] = str(token)
            if result:
                store.results[front] = result
        if rest is not None:
            self._to_head(rest)
        return Outcome.ACCEPTED

    async def reap(self) -> list[Lease]:
        """See the port."""
        store = self._enter()
        now = store.clock()
        return self._take_back([lease for task, lease in store.doing.items() if store.deadlines[task] <= now])

    async def release_owner(self, owner: str) -> list[Lease]:
        """See the port."""
        store = self._enter()
        return self._take_back([lease for lease in store.doing.values() if lease.owner == owner])

    async def quarantine(self, task: TaskId) -> bool:
        """See the port."""
        store = self._enter()
        found = task in store.todo or task in store.doing
        store.todo.pop(task, None)
        store.doing.pop(task, None)
        store.deadlines.pop(task, None)
        if found:
            store.quarantined.add(task)
        return found

    async def forget(self, tasks: Iterable[TaskId]) -> int:
        """See the port."""
        store = self._enter()
        dropped = 0
        for task in tasks:
            dropped += store.done.pop(task, None) is not None
            store.results.pop(task, None)
        return dropped

    async def note(self, text: str) -> None:
        """See the port."""
        self._enter().notes = text

    async def keep(self, posts: Mapping[int, str]) -> None:
        """See the port."""
        self._enter(made=False).posts.update(posts)

    async def drop(self, posts: Iterable[int]) -> None:
        """See the port."""
        kept = self._enter(made=False).posts
        for number in posts:
            kept.pop(number, None)

    async def kept(self) -> Mapping[int, str]:
        """See the port."""
        return dict(self._enter(ready=False).posts)

    async def counts(self) -> Counts:
        """See the port."""
        store = self._enter()
        return Counts(len(store.todo), len(store.doing), len(store.done), len(store.quarantined))

    async def discard(self) -> None:
        """See the port."""
        self._enter(ready=False).wipe()

    async def close(self) -> None:
        """Nothing to close."""

    def _enter(self, *, ready: bool = True, made: bool = True) -> MemoryStore:
        if self._store.epoch > self._epoch:
            raise FencedError(f"epoch {self._store.epoch} took over from {self._epoch}")
        if ready and ((made and not self._store.ready) or self._store.sequence < self._seen):
            raise StoreLostError("the store does not hold the queue")
        # A store that is behind what was seen has lost the end of its log.
        self._seen = self._store.sequence = max(self._store.sequence, self._seen) + 1
        return self._store

    def _lease(self, owner: str, limit: int, lease_s: float) -> list[Lease]:
        store = self._store
        leases: list[Lease] = []
        while len(leases) < limit and store.todo:
            task, _ = store.todo.popitem(last=False)
            store.counter += 1
            token = LeaseToken(self._epoch, store.counter, secrets.token_hex(8))
            leases.append(Lease(task, owner, token))
            store.doing[task] = leases[-1]
            store.deadlines[task] = store.clock() + lease_s
        return leases

    def _report(self, task: TaskId, token: LeaseToken, result: bytes) -> Outcome:
        store = self._store
        lease = store.doing.get(task)
        if lease is None or lease.token != token:
            return Outcome.REPLAY if store.done.get(task) in {str(token), ""} else Outcome.LOST
        del store.doing[task], store.deadlines[task]
        store.done[task] = str(token)
        if result:
            store.results[task] = result
        return Outcome.ACCEPTED

    def _knows(self, task: TaskId) -> bool:
        store = self._store
        return task in store.todo or task in store.doing or task in store.done or task in store.quarantined

    def _to_head(self, task: TaskId) -> None:
        self._store.todo[task] = None
        self._store.todo.move_to_end(task, last=False)

    def _take_back(self, leases: list[Lease]) -> list[Lease]:
        for lease in sorted(leases, key=lambda lease: str(lease.task), reverse=True):
            del self._store.doing[lease.task], self._store.deadlines[lease.task]
            self._to_head(lease.task)
        return sorted(leases, key=lambda lease: str(lease.task))
