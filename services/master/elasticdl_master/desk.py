"""The desk: where what workers ask, the queue and the state machine come together, one request at a time.

The machine mirrors the queue. While this master lives the mirror is the truth: whenever the store fails to answer,
or forgot something, the queue is made anew from the mirror (``repair``). For the next master the store is the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.task import Lease, LeaseToken, Shard, Task, TaskId, TaskType
from elasticdl_master.queue.port import Outcome, TaskQueue
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.ending import Directive
from elasticdl_master.state.machine import JobMachine

T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handed:
    """A task in the hands of a worker."""

    task: Task
    lease: Lease


class Desk:
    """Serves workers, and carries out what the machine wants of the queue.

    Args:
        machine: decides.
        queue: holds the tasks.
        pass_on: takes the instructions that are not about the queue; must not block.
        clock: monotonic seconds.
        fenced: called when a newer master shut this one out.
    """

    def __init__(
        self,
        machine: JobMachine,
        queue: TaskQueue,
        pass_on: Callable[[do.Instruction], None],
        clock: Callable[[], float],
        fenced: Callable[[FencedError], None] = lambda error: None,
    ) -> None:
        self.machine = machine
        self.queue = queue
        self.broken = ""
        self.trouble = asyncio.Event()
        self._pass_on = pass_on
        self._clock = clock
        self._fenced = fenced
        self._lock = asyncio.Lock()
        self._listed: dict[str, list[Shard]] = {}

    async def tell(self, event: ev.Event) -> None:
        """Lets the machine know of an event, and carries out what it decides."""
        async with self._lock:
            await self._handle(event)

    async def lease(self, owner: str, limit: int) -> tuple[list[Handed], Directive]:
        """Hands out up to ``limit`` tasks, or says why there are none."""
        async with self._lock:
            directive = self.machine.directive(owner)
            if directive is Directive.FINISHED:
                self.machine.finish_told(owner)
            if directive is not Directive.CONTINUE or self.broken:
                return [], Directive.WAIT if directive is Directive.CONTINUE else directive
            try:
                leases = await self._queue(self.queue.lease(owner, limit, self.machine.limits.lease_s))
            except UnavailableError:
                return [], Directive.WAIT
            if not leases:
                return [], Directive.WAIT
            handed = [Handed(self.machine.task(lease), lease) for lease in leases]
            await self._handle(ev.TasksLeased(leases))
            return handed, Directive.CONTINUE

    async def heartbeat(self, beat: ev.Heartbeat, owner: str) -> tuple[Directive, list[str]]:
        """Extends the worker's leases; returns what it shall do and which of its tokens are void."""
        async with self._lock:
            await self._handle(beat)
            directive = self.machine.directive(owner)
            if directive is Directive.FINISHED:
                self.machine.finish_told(owner)
            lost: Sequence[LeaseToken] = ()
            tokens = [LeaseToken.parse(token) for token in beat.positions]
            if tokens and not self.broken:
                try:
                    lost = await self._queue(self.queue.extend(owner, tokens, self.machine.limits.lease_s))
                except UnavailableError:
                    lost = ()
            return directive, [str(token) for token in lost]

    async def report(
        self,
        task: TaskId,
        token: LeaseToken,
        owner: str,
        *,
        records: int = 0,
        result: bytes = b"",
        model_version: int = 0,
    ) -> Outcome:
        """A task is done.

        Raises:
            UnavailableError: the queue cannot be reached; the worker tries again.
        """
        async with self._lock:
            self._require_queue()
            outcome = await self._queue(self.queue.report(task, token, self._kept(task, result)))
            if outcome is Outcome.ACCEPTED:
                await self._handle(ev.TaskReported(task, owner, str(token), result, model_version))
            elif outcome is Outcome.LOST:
                await self._handle(ev.ReportRefused(task, owner, records))
            return outcome

    async def give_back(self, task: TaskId, token: LeaseToken, owner: str, position: int) -> Outcome:
        """A task comes back from ``position`` on. What a worker knows of half an evaluation is lost with it.

        Raises:
            UnavailableError: the queue cannot be reached; the worker tries again.
        """
        async with self._lock:
            self._require_queue()
            if task.type not in (TaskType.TRAINING, TaskType.PREDICTION):
                position = task.start
            outcome = await self._queue(self.queue.return_(task, token, position))
            if outcome is Outcome.ACCEPTED:
                await self._handle(ev.TaskReturned(task, owner, str(token), position))
            return outcome

    async def fail(
        self, owner: str, kind: str, message: str, fix: str, traceback: str, task: TaskId | None, token: str
    ) -> None:
        """A worker cannot go on with a task, or at all."""
        async with self._lock:
            held = None
            if task is not None:
                self._require_queue()
                outcome = await self._queue(self.queue.return_(task, LeaseToken.parse(token), task.start))
                if outcome is not Outcome.ACCEPTED:
                    return
                held = task
            await self._handle(ev.WorkerFailed(owner, kind, message, fix, traceback, held, token))

    async def list_shards(
        self, task: TaskId, token: LeaseToken, owner: str, shards: Sequence[Shard], *, last: bool
    ) -> bool:
        """A worker lists the shards of the user's own reader; they count once the list is complete."""
        async with self._lock:
            self._require_queue()
            if await self._queue(self.queue.extend(owner, [token], self.machine.limits.lease_s)):
                self._listed.pop(str(token), None)
                return False
            self._listed.setdefault(str(token), []).extend(shards)
            if last:
                purpose = self.machine.work.main_type if task.index == 0 else TaskType.EVALUATION
                await self._handle(ev.ShardsListed(purpose, self._listed.pop(str(token)), last=True))
            return True

    async def reap(self) -> None:
        """Takes back leases whose time is over."""
        async with self._lock:
            if self.broken:
                return
            try:
                leases = await self._queue(self.queue.reap())
            except UnavailableError:
                return
            if leases:
                await self._handle(ev.LeasesTaken(leases))

    async def repair(self) -> None:
        """Makes the queue anew from the machine's mirror.

        Raises:
            UnavailableError: the store still does not answer.
        """
        async with self._lock:
            await self._translated(self.queue.rebuild(self.machine.contents()))
            self.broken = ""
            self.trouble.clear()
            _log.info("queue rebuilt")
            await self._handle(ev.StoreChanged(""))

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _handle(self, event: ev.Event) -> None:
        for instruction in self.machine.handle(event, self._clock()):
            carry_out = _QUEUE_MOVES.get(type(instruction))
            if carry_out is None:
                self._pass_on(instruction)
            elif not self.broken:
                try:
                    await carry_out(self, instruction)
                except UnavailableError:
                    pass  # marked as broken; repair() makes it good

    async def _queue(self, call: Awaitable[T]) -> T:
        try:
            return await self._translated(call)
        except UnavailableError as error:
            if not self.broken:
                _log.warning("queue trouble", error=error.message)
                self.broken = error.message
                self.trouble.set()
                await self._handle(ev.StoreChanged(error.message))
            raise

    async def _translated(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except FencedError as error:
            self._fenced(error)
            raise

    def _require_queue(self) -> None:
        if self.broken:
            raise UnavailableError(f"the queue is not available: {self.broken}", fix="it is tried again")

    def _kept(self, task: TaskId, result: bytes) -> bytes:
        """Results that the next master would need; metrics and files of finished tasks are published at once."""
        return result if task.type is not TaskType.TRAINING else b""

    async def _rebuild(self, instruction: do.RebuildQueue) -> None:
        await self._queue(self.queue.rebuild(instruction.contents))

    async def _add(self, instruction: do.AddTasks) -> None:
        await self._queue(self.queue.add(instruction.tasks, front=instruction.front))

    async def _forget(self, instruction: do.ForgetTasks) -> None:
        await self._queue(self.queue.forget(instruction.tasks))

    async def _release(self, instruction: do.ReleaseOwner) -> None:
        leases = await self._queue(self.queue.release_owner(instruction.owner))
        if leases:
            await self._handle(ev.LeasesTaken(leases))

    async def _quarantine(self, instruction: do.Quarantine) -> None:
        await self._queue(self.queue.quarantine(instruction.task))

    async def _note(self, instruction: do.Note) -> None:
        await self._queue(self.queue.note(instruction.text))


_QUEUE_MOVES: Mapping[type, Callable[[Desk, Any], Awaitable[None]]] = {
    do.RebuildQueue: Desk._rebuild,
    do.AddTasks: Desk._add,
    do.ForgetTasks: Desk._forget,
    do.ReleaseOwner: Desk._release,
    do.Quarantine: Desk._quarantine,
    do.Note: Desk._note,
}
