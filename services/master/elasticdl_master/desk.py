"""The desk: where what workers ask, the queue and the state machine come together, one request at a time.

Requests for tasks and reports of them that come while the desk is busy are taken together, in one move of the queue.

The machine mirrors the queue. While this master lives the mirror is the truth: whenever the store fails to answer,
or forgot something, the queue is made anew from the mirror (``repair``). For the next master the store is the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.task import Lease, LeaseToken, Shard, Task, TaskId, TaskType
from elasticdl_master.queue.port import Outcome, TaskQueue, Turn
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.ending import Directive
from elasticdl_master.state.machine import JobMachine
from elasticdl_runtime.failpoints import failpoint

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_TOGETHER = 64
"""Turns in one move of the queue: keeps it, and the wait of whoever comes next, under a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A task in the hands of a worker."""

    task: Task
    lease: Lease


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker gets for its turn.

    Attributes:
        handed: tasks for it.
        directive: what it shall do if there are none.
        outcome: of its report; None if it made none.
    """

    handed: Sequence[Handed] = ()
    directive: Directive = Directive.WAIT
    outcome: Outcome | None = None


@dataclass(eq=False, slots=True)
class _Asked:
    """A turn that waits for its answer."""

    turn: Turn
    records: int = 0
    model_version: int = 0
    result: bytes = b""
    answer: Answer | None = None
    error: Exception | None = None
    future: asyncio.Future[None] | None = None


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
        self._waiting: list[_Asked] = []
        self._collector: asyncio.Task[None] | None = None
        self._handed: dict[str, tuple[LeaseToken, Sequence[Handed]]] = {}
        self._rebuilt = 0

    async def tell(self, event: ev.Event) -> None:
        """Lets the machine know of an event, and carries out what it decides."""
        async with self._lock:
            await self._handle(event)

    async def lease(self, owner: str, limit: int) -> tuple[Sequence[Handed], Directive]:
        """Hands out up to ``limit`` tasks, or says why there are none."""
        answer = await self._turn(_Asked(Turn(owner, limit)))
        return answer.handed, answer.directive

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
        limit: int = 0,
    ) -> Answer:
        """A task is done, and up to ``limit`` others are asked for; they are handed out if the report is accepted.

        A replay gets the tasks of the first answer again, which may have been lost on its way. (Those of an answer
        that an earlier master gave come back to the queue when their leases are over.)

        Raises:
            UnavailableError: the queue cannot be reached; the worker tries again.
        """
        turn = Turn(owner, limit, task, token, result)
        return await self._turn(_Asked(turn, records, model_version, result))

    async def give_back(
        self,
        task: TaskId,
        token: LeaseToken,
        owner: str,
        position: int,
        result: bytes = b"",
        *,
        model_version: int = 0,
    ) -> Outcome:
        """A task comes back from ``position`` on. What a worker knows of half an evaluation is lost with it.

        Raises:
            UnavailableError: the queue cannot be reached; the worker tries again.
        """
        async with self._lock:
            self._require_queue()
            if task.type not in (TaskType.TRAINING, TaskType.PREDICTION):
                position = task.start
            outcome = await self._queue(self.queue.return_(task, token, position, result))
            if outcome is Outcome.ACCEPTED:
                failpoint("master.after_return")
                await self._handle(ev.TaskReturned(task, owner, str(token), position, result, model_version))
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

    # -- turns -----------------------------------------------------------------------------------------------------

    async def _turn(self, asked: _Asked) -> Answer:
        if self._lock.locked() or self._waiting:
            await self._queue_up(asked)
        else:
            async with self._lock:
                await self._take([asked])
        if asked.error is not None:
            raise asked.error
        assert asked.answer is not None
        return asked.answer

    async def _queue_up(self, asked: _Asked) -> None:
        """Waits until others have taken the turn along; they have a task of their own, for a caller may go away."""
        loop = asyncio.get_running_loop()
        asked.future = loop.create_future()
        self._waiting.append(asked)
        if self._collector is None or self._collector.done():
            self._collector = loop.create_task(self._collect(), name="turns")
        await asked.future

    async def _collect(self) -> None:
        taken: list[_Asked] = []
        try:
            while self._waiting:
                async with self._lock:
                    taken, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
                    # Whoever is gone would not learn of its tasks.
                    taken = [asked for asked in taken if asked.future is not None and not asked.future.done()]
                    await self._take(taken)
                for asked in taken:
                    if asked.future is not None and not asked.future.done():
                        asked.future.set_result(None)
        except asyncio.CancelledError:
            # The process ends: nobody is left to take these turns.
            for asked in (*taken, *self._waiting):
                if asked.future is not None:
                    asked.future.cancel()
            raise

    async def _take(self, asked: Sequence[_Asked]) -> None:
        """Takes turns; each gets its answer or its error."""
        try:
            # What is reported now may make an evaluation due for which training waits: it brings no task with it.
            hold = self.machine.about_to_hold(max((one.model_version for one in asked), default=0))
            await self._take_turns([one for one in asked if not self._turned_away(one, hold=hold)])
        except Exception as error:
            for one in asked:
                if one.answer is None and one.error is None:
                    one.error = error

    def _turned_away(self, asked: _Asked, *, hold: bool) -> bool:
        """Answers a turn that does not get to the queue; the others ask it for tasks only if they may have some."""
        turn = asked.turn
        directive = self.machine.directive(turn.owner)
        if turn.task is not None:
            asked.error = self._unavailable() if self.broken else None
            if directive is not Directive.CONTINUE or hold:
                asked.turn = replace(turn, limit=0)
        elif directive is not Directive.CONTINUE or self.broken or hold:
            if directive is Directive.FINISHED:
                self.machine.finish_told(turn.owner)
            asked.answer = Answer((), Directive.WAIT if directive is Directive.CONTINUE else directive)
        return asked.answer is not None or asked.error is not None

    async def _take_turns(self, asked: Sequence[_Asked]) -> None:
        if not asked:
            return
        try:
            taken = await self._queue(self.queue.turns([one.turn for one in asked], self.machine.limits.lease_s))
        except UnavailableError as error:
            for one in asked:
                one.answer, one.error = (Answer(), None) if one.turn.task is None else (None, error)
            return
        handed = [[Handed(self.machine.task(lease), lease) for lease in one.leases] for one in taken]
        leases = [lease for one in taken for lease in one.leases]
        if leases:
            failpoint("master.after_lease")
        # First what was handed out: should a report lead to a new queue, these tasks must be known to be in hands.
        before = self._rebuilt
        if leases:
            await self._handle(ev.TasksLeased(leases))
        for one, came in zip(asked, taken, strict=True):
            if one.turn.task is not None:
                await self._reported(one, came.outcome)
        if self._rebuilt != before and any(one.turn.task is not None for one in asked):
            # A queue made anew after one of these does not know of reports that came with it.
            await self._carry_out(do.RebuildQueue(self.machine.contents()))
        for one, came, tasks in zip(asked, taken, handed, strict=True):
            one.answer = self._answer(one.turn, came.outcome, tasks)

    async def _reported(self, asked: _Asked, outcome: Outcome | None) -> None:
        turn, task = asked.turn, asked.turn.task
        assert task is not None
        # A replay of what the mirror has not heard of: the first call was broken off between queue and machine.
        missed = outcome is Outcome.REPLAY and self.machine.holds(turn.owner, str(turn.token))
        if outcome is Outcome.ACCEPTED or missed:
            failpoint("master.after_report")
            event = ev.TaskReported(task, turn.owner, str(turn.token), asked.result, asked.model_version)
            await self._handle(event)
        elif outcome is Outcome.LOST:
            await self._handle(ev.ReportRefused(task, turn.owner, asked.records))

    def _answer(self, turn: Turn, outcome: Outcome | None, handed: Sequence[Handed]) -> Answer:
        if turn.token is not None and turn.limit:
            last = self._handed.get(turn.owner)
            if outcome is Outcome.ACCEPTED:
                self._handed[turn.owner] = (turn.token, handed)
            elif outcome is Outcome.REPLAY and last is not None and last[0] == turn.token:
                handed = last[1]
        # What the worker said may have ended its leases, such as those of training that has reached its last step.
        kept = [one for one in handed if self.machine.holds(turn.owner, str(one.lease.token))]
        return Answer(kept, Directive.CONTINUE if kept else Directive.WAIT, outcome)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _handle(self, event: ev.Event) -> None:
        for instruction in self.machine.handle(event, self._clock()):
            await self._carry_out(instruction)

    async def _carry_out(self, instruction: do.Instruction) -> None:
        move = _QUEUE_MOVES.get(type(instruction))
        if move is None:
            self._pass_on(instruction)
        elif not self.broken:
            try:
                await move(self, instruction)
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
            raise self._unavailable()

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(f"the queue is not available: {self.broken}", fix="it is tried again")

    async def _rebuild(self, instruction: do.RebuildQueue) -> None:
        failpoint("master.before_rebuild")
        await self._queue(self.queue.rebuild(instruction.contents))
        self._rebuilt += 1

    async def _add(self, instruction: do.AddTasks) -> None:
        await self._queue(self.queue.add(instruction.tasks, front=instruction.front))

    async def _forget(self, instruction: do.ForgetTasks) -> None:
        await self._queue(self.queue.forget(instruction.tasks))

    async def _release(self, instruction: do.ReleaseOwner) -> None:
        leases = await self._queue(self.queue.release_owner(instruction.owner))
        if leases:
            failpoint("master.after_release")
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
