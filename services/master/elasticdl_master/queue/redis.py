"""The queue in Redis (6.2 and later): one Lua script for each move, all keys of a job under one hash tag.

What makes it safe:

- The epoch is asserted (monotonic maximum) on every new connection before any other command, and each script
  checks it again: a deposed master cannot move anything.
- A token is (epoch, counter, nonce), so a store that lost its counter cannot hand out a token twice.
- Every move raises a sequence number, and each call tells the highest that it has seen. A store that came back
  without its log's tail is behind it, answers ``LOST`` and changes nothing until it is rebuilt.
- Deadlines are on the store's clock (``TIME``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.task import Lease, LeaseToken, TaskId
from elasticdl_master.queue.port import Contents, Counts, Outcome, StoreLostError, TaskReply, TaskRequest, split
from elasticdl_runtime.failpoints import failpoint

_CHUNK = 2_000
"""Values sent with one script call; keeps each under a few milliseconds."""
_KEYS = (
    "epoch",
    "seq",
    "ready",
    "todo",
    "doing",
    "tokens",
    "deadlines",
    "done",
    "results",
    "quarantined",
    "notes",
    "posts",
)
_SCRIPTS = Path(__file__).parent / "scripts"


class RedisQueue:
    """The queue of one job in Redis, as seen by the master of one epoch.

    Args:
        url: ``redis://`` or ``unix://`` URL, with the password if there is one.
        job_id: the job.
        epoch: this master's epoch.
        timeout_s: seconds until a command fails with UnavailableError.
    """

    def __init__(self, url: str, job_id: str, epoch: int, *, timeout_s: float = 5.0) -> None:
        self._epoch = epoch
        self._seen = 0
        self._timeout_s = timeout_s
        self._keys = [f"{{{job_id}}}:{key}" for key in _KEYS]
        self._assert = (_SCRIPTS / "assert_epoch.lua").read_text()
        self._redis: Any = aioredis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=self._on_connect,
            decode_responses=False,
        )

    async def load(self) -> Contents | None:
        """See the port."""
        # In portions, each with its deadline: a large queue takes longer than one call may. Nobody else moves
        # anything meanwhile, unless the store loses something, which its sequence shows.
        while True:
            _, ready, waiting, notes = await self._run("load")
            if not ready:
                return None
            todo: list[TaskId] = []
            while len(todo) < waiting:
                names = await self._read("ZRANGE", "todo", len(todo), len(todo) + _CHUNK - 1)
                if not names:
                    break
                todo += [_task(name) for name in names]
            leases = []
            async for name, entry in self._scan("HSCAN", "doing"):
                token, _, owner = entry.decode().partition(" ")
                leases.append(Lease(_task(name), owner, LeaseToken.parse(token)))
            done = {_task(name): token.decode() async for name, token in self._scan("HSCAN", "done")}
            results = {_task(name): result async for name, result in self._scan("HSCAN", "results")}
            quarantined = [_task(name) async for (name,) in self._scan("SSCAN", "quarantined")]
            # Posts may be kept meanwhile: what this master has moved itself it has seen.
            seen = self._seen
            end = (await self._run("load"))[:3]
            if end[0] < seen:
                self._seen = end[0]  # it lost its end: what it has now is read, and made anew by who asked
            if end == [seen, ready, waiting]:
                unique = {lease.task: lease for lease in leases}
                return Contents(
                    tuple(todo), tuple(unique.values()), done, frozenset(quarantined), results, notes.decode()
                )

    async def rebuild(
        self, contents: Contents, lease_s: float, posts: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """See the port."""
        await self._run("clear")
        await self.keep(posts)
        failpoint("master.queue_cleared")
        await self._fill("todo", (str(task) for task in contents.todo))
        await self._fill(
            "doing",
            (
                value
                for lease in contents.doing
                for value in (str(lease.task), str(lease.token), lease.owner, repr(lease_s))
            ),
        )
        await self._fill("done", (value for task, token in contents.done.items() for value in (str(task), token)))
        await self._fill(
            "results", (value for task, result in contents.results.items() for value in (str(task), result))
        )
        await self._fill("quarantined", (str(task) for task in contents.quarantined))
        if contents.notes:
            await self._fill("notes", [contents.notes])
        await self._run("fill", "ready")

    async def add(self, tasks: Sequence[TaskId], *, front: bool = False) -> int:
        """See the port."""
        chunks = list(_chunks([str(task) for task in dict.fromkeys(tasks)]))
        added = 0
        for chunk in reversed(chunks) if front else chunks:
            added += (await self._run("add", "front" if front else "back", *chunk))[1]
        return added

    async def lease(self, owner: str, limit: int, lease_s: float) -> list[Lease]:
        """See the port."""
        (reply,) = await self.exchange([TaskRequest(owner, limit)], lease_s)
        return list(reply.leases)

    async def exchange(self, requests: Sequence[TaskRequest], lease_s: float) -> list[TaskReply]:
        """See the port."""
        arguments: list[str | bytes] = [repr(lease_s)]
        for request in requests:
            reported = (str(request.task or ""), str(request.token or ""), request.result)
            nonces = (secrets.token_hex(8) for _ in range(request.limit))
            arguments += (request.owner, *reported, str(request.limit), *nonces)
        answer = iter((await self._run("exchange", *arguments))[1:])
        replies = []
        for request in requests:
            outcome, count = next(answer), next(answer)
            leases = [
                Lease(_task(next(answer)), request.owner, LeaseToken.parse(next(answer).decode()))
                for _ in range(count)
            ]
            replies.append(TaskReply(Outcome(outcome.decode()) if outcome else None, leases))
        return replies

    async def extend(self, owner: str, tokens: Sequence[LeaseToken], lease_s: float) -> list[LeaseToken]:
        """See the port."""
        answer = await self._run("extend", owner, repr(lease_s), *(str(token) for token in tokens))
        return [LeaseToken.parse(token.decode()) for token in answer[1:]]

    async def report(self, task: TaskId, token: LeaseToken, result: bytes = b"") -> Outcome:
        """See the port."""
        (reply,) = await self.exchange([TaskRequest("", 0, task, token, result)], 0.0)
        assert reply.outcome is not None
        return reply.outcome

    async def return_(self, task: TaskId, token: LeaseToken, position: int, result: bytes = b"") -> Outcome:
        """See the port."""
        front, rest = (str(part) if part else "" for part in split(task, position))
        return Outcome((await self._run("return", str(task), str(token), front, rest, result))[1].decode())

    async def reap(self) -> list[Lease]:
        """See the port."""
        return _leases(await self._run("reap"))

    async def release_owner(self, owner: str) -> list[Lease]:
        """See the port."""
        return _leases(await self._run("release", owner))

    async def quarantine(self, task: TaskId) -> bool:
        """See the port."""
        return bool((await self._run("quarantine", str(task)))[1])

    async def forget(self, tasks: Iterable[TaskId]) -> int:
        """See the port."""
        dropped = 0
        for chunk in _chunks([str(task) for task in tasks]):
            dropped += (await self._run("forget", *chunk))[1]
        return dropped

    async def note(self, text: str) -> None:
        """See the port."""
        await self._run("note", text)

    async def keep(self, posts: Mapping[int, str]) -> None:
        """See the port."""
        for chunk in _chunks([value for number, text in posts.items() for value in (str(number), text)]):
            await self._run("keep", *chunk)

    async def drop(self, posts: Iterable[int]) -> None:
        """See the port."""
        for chunk in _chunks([str(number) for number in posts]):
            await self._run("drop", *chunk)

    async def kept(self) -> Mapping[int, str]:
        """See the port."""
        (seq,) = await self._run("kept")
        self._seen = max(self._seen, seq)
        return {int(number): text.decode() async for number, text in self._scan("HSCAN", "posts")}

    async def counts(self) -> Counts:
        """See the port."""
        return Counts(*(await self._run("counts"))[1:])

    async def discard(self) -> None:
        """See the port."""
        await self._run("clear", "posts")

    async def close(self) -> None:
        """See the port."""
        await self._redis.aclose()

    async def _read(self, command: str, key: str, *arguments: str | int) -> Any:
        with _translated():
            async with asyncio.timeout(self._timeout_s):
                return await self._redis.execute_command(command, self._keys[_KEYS.index(key)], *arguments)

    async def _scan(self, command: str, key: str) -> AsyncIterator[tuple[Any, ...]]:
        """The entries of a hash or set, in portions; some may come twice."""
        width, cursor = (2 if command == "HSCAN" else 1), 0
        while True:
            found = await self._read(command, key, cursor, "COUNT", _CHUNK)
            cursor, values = (int(found[0]), found[1])
            entries = values.items() if isinstance(values, dict) else zip(*[iter(values)] * width, strict=True)
            for entry in entries:
                yield entry
            if not cursor:
                return

    async def _fill(self, place: str, values: Iterable[str | bytes]) -> None:
        for chunk in _chunks(list(values)):
            await self._run("fill", place, *chunk)

    async def _run(self, name: str, *arguments: str | bytes) -> list[Any]:
        text, digest = _script(name)
        values = (len(self._keys), *self._keys, self._epoch, self._seen, *arguments)
        with _translated():
            async with asyncio.timeout(self._timeout_s):
                try:
                    answer: list[Any] = await self._redis.execute_command("EVALSHA", digest, *values)
                except NoScriptError:
                    answer = await self._redis.execute_command("EVAL", text, *values)
        self._seen = max(self._seen, int(answer[0]))
        return answer

    async def _on_connect(self, connection: AbstractConnection) -> None:
        await connection.on_connect()
        await connection.send_command("EVAL", self._assert, 1, self._keys[0], self._epoch)
        await connection.read_response()


@functools.cache
def _script(name: str) -> tuple[str, str]:
    text = (_SCRIPTS / "prelude.lua").read_text() + (_SCRIPTS / f"{name}.lua").read_text()
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns the errors of the store into ours."""
    try:
        yield
    except ResponseError as error:
        text = str(error)
        if text.startswith("FENCED"):
            raise FencedError(f"a master of epoch {text.split()[-1]} took over the queue") from None
        if text.startswith("LOST"):
            raise StoreLostError("Redis lost the job's queue", fix="it is rebuilt from the plan") from None
        raise UnavailableError(f"Redis refused a command: {text}", fix="see the log of Redis") from None
    except (RedisError, OSError, TimeoutError) as error:
        raise UnavailableError(f"Redis does not answer: {error}", fix="it is tried again") from None


def _leases(answer: list[Any]) -> list[Lease]:
    """Leases that a script took back, sorted by the text of the task."""
    leases = [
        Lease(_task(answer[i]), answer[i + 2].decode(), LeaseToken.parse(answer[i + 1].decode()))
        for i in range(1, len(answer), 3)
    ]
    return leases[::-1]


def _task(text: bytes) -> TaskId:
    return TaskId.parse(text.decode())


def _chunks(values: list[Any]) -> Iterator[list[Any]]:
    return (values[i : i + _CHUNK] for i in range(0, len(values), _CHUNK))
