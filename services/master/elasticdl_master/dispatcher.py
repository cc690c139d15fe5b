"""The task dispatcher: brings together what workers ask, the queue and the state machine, one request at a time.

Each request is a change that is made to its end in the dispatcher's own task (``changes``): whoever asks only waits.
Requests for tasks and reports that come while it is busy are passed to the queue together, in one exchange.

The machine mirrors the queue. While this master lives the mirror is the truth: whenever the store fails to answer,
or forgot something, the queue is made anew from the mirror (``repair``). For the next master the store is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

import structlog

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.shard import Shard
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.changes import ChangeInbox
from elasticdl_master.pending_posts import KEPT, PendingPosts, Post, Told
from elasticdl_master.pending_requests import DispatchedTask, PendingRequest, WorkerReply
from elasticdl_master.queue.port import Outcome, TaskQueue, TaskRequest
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.agreement import contradiction, news_in
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.workers import GROUP
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.spans import mark

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_TOGETHER = 64
"""Requests in one exchange with the queue: keeps it, and the wait of whoever comes next, under a few milliseconds."""


class TaskDispatcher:
    """Serves workers, and carries out what the machine wants of the queue.

    Args:
        machine: decides.
        queue: holds the tasks.
        pass_on: takes the instructions that are not about the queue; must not block.
        clock: monotonic seconds.
        fenced: called when a newer master shut this one out.
        pending_posts: what the api has not been told.
        post: takes what the api is to be told, once that is kept; must not block. None leaves it to ``pass_on``.
    """

    def __init__(
        self,
        machine: JobMachine,
        queue: TaskQueue,
        pass_on: Callable[[do.Instruction], None],
        clock: Callable[[], float],
        fenced: Callable[[FencedError], None] = lambda error: None,
        pending_posts: PendingPosts | None = None,
        post: Callable[[Post], None] | None = None,
    ) -> None:
        self.machine = machine
        self.queue = queue
        self.broken = ""
        self.trouble = asyncio.Event()
        self._pass_on = pass_on
        self._clock = clock
        self._fenced = fenced
        self._unposted = pending_posts or PendingPosts({}, clock)
        self._undropped: set[int] = set()
        self._post = post
        self._changes = ChangeInbox()
        self._listed: dict[str, list[Shard]] = {}
        self._waiting: list[PendingRequest] = []
        self._last_leased: dict[str, tuple[LeaseToken, Sequence[Lease]]] = {}
        self._rebuilt = 0

    async def tell(self, event: ev.Event) -> None:
        """Passes an event to the machine, and carries out what it decides."""
        await self._changes.make(self._handle(event))

    async def keep(self, what: Told) -> Post:
        """Keeps something for the api that no decision of the machine has brought about."""
        return await self._changes.make(self._keep_one(what))

    async def _keep_one(self, what: Told) -> Post:
        post = self._unposted.add(what)
        await self._keep([post])
        return post

    async def posted(self, numbers: Sequence[int]) -> None:
        """The api was told, or will never be: it need not be kept any longer."""
        await self._changes.make(self._drop_posts(numbers))

    async def _drop_posts(self, numbers: Sequence[int]) -> None:
        self._unposted.drop(numbers)
        self._undropped.update(numbers)
        if not self.broken:
            with contextlib.suppress(UnavailableError):  # repair() makes it good
                await self._queue(self.queue.drop(sorted(self._undropped)))
                self._undropped.clear()

    async def forget(self, tasks: Sequence[TaskId]) -> None:
        """Drops done tasks whose marks are durable, and that nobody asks about any more."""
        await self._changes.make(self._forget(tasks))

    async def _forget(self, tasks: Sequence[TaskId]) -> None:
        if not self.broken:
            with contextlib.suppress(UnavailableError):
                await self._queue(self.queue.forget(tasks))

    async def close(self, seconds: float) -> None:
        """Takes no more requests; gives those that came some time to be answered."""
        await self._changes.close(seconds)
        for one in self._waiting:
            one.tell()

    async def lease(self, owner: str, limit: int) -> tuple[Sequence[DispatchedTask], Directive]:
        """Leases up to ``limit`` tasks to a worker, or says why there are none."""
        reply = await self._serve(TaskRequest(owner, limit))
        return reply.leased, reply.directive

    async def lease_to_group(self, limit: int) -> Sequence[Lease]:
        """Leases up to ``limit`` tasks to the group. Where their records lie is found out when a member is told."""
        return (await self._serve(TaskRequest(GROUP, limit))).leases

    async def heartbeat(self, beat: ev.WorkerHeartbeat, owner: str) -> tuple[Directive, list[str]]:
        """Extends the worker's leases; returns its directive and the tokens that are void."""
        return await self._changes.make(self._take_heartbeat(beat, owner))

    async def _take_heartbeat(self, beat: ev.WorkerHeartbeat, owner: str) -> tuple[Directive, list[str]]:
        await self._handle(beat)
        directive = self.machine.directive(owner)
        self.machine.note_told(owner, directive)
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
        result: bytes = b"",
        model_version: int = 0,
        limit: int = 0,
    ) -> WorkerReply:
        """A task is done, and up to ``limit`` others are asked for; they are leased if the report is accepted.

        A replay gets the tasks of the first reply again, which may have been lost on its way. (Those of a reply
        that an earlier master gave come back to the queue when their leases are over.)

        Raises:
            UnavailableError: the queue cannot be reached; the worker tries again.
        """
        if task.type is TaskType.LIST_SHARDS and self.machine.listing.lacks(task):
            # Taken for done, it would be asked of nobody again, and the job would wait for the list for ever.
            _log.warning("a list of shards is reported that never came", task=str(task), owner=owner)
            await self.give_back(task, token, owner, task.start)
            return WorkerReply(outcome=Outcome.LOST)
        request = TaskRequest(owner, limit, task, token, result)
        return await self._serve(request, model_version)

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
        if task.type not in (TaskType.TRAINING, TaskType.PREDICTION):
            position = task.start
        returned = ev.TaskReturned(task, owner, str(token), position, result, model_version)
        return await self._changes.make(self._take_back(returned, token))

    async def _take_back(self, returned: ev.TaskReturned, token: LeaseToken) -> Outcome:
        self._require_queue()
        call = self.queue.return_(returned.task, token, returned.position, returned.result)
        outcome = await self._queue(call)
        if self._is_news(outcome, returned.owner, returned.token):
            failpoint("master.after_return")
            await self._handle(returned)
        return outcome

    async def fail(
        self, owner: str, kind: str, message: str, fix: str, traceback: str, task: TaskId | None, token: str
    ) -> None:
        """Takes a failure, with a task or in general; one with a task counts only under the task's lease."""
        failed = ev.WorkerFailed(owner, kind, message, fix, traceback, task, token)
        await self._changes.make(self._take_failure(failed))

    async def _take_failure(self, failed: ev.WorkerFailed) -> None:
        task = failed.task
        if task is not None:
            self._require_queue()
            outcome = await self._queue(self.queue.return_(task, LeaseToken.parse(failed.token), task.start))
            if outcome is not Outcome.ACCEPTED:
                return
        await self._handle(failed)

    async def list_shards(
        self, task: TaskId, token: LeaseToken, owner: str, shards: Sequence[Shard], *, first: int, last: bool
    ) -> bool:
        """A worker lists the shards of the user's own reader; they count once the list is complete.

        Args:
            task: under which it lists them.
            token: of its lease, or of that of its group.
            owner: the worker.
            shards: a piece of the list.
            first: how many shards of the list came before; those at and after it are replaced.
            last: whether the list ends with them.

        Returns:
            Whether the piece was taken. If not, the task comes back to the queue, and the list is made anew.
        """
        return await self._changes.make(self._take_shards(task, token, owner, shards, first, last=last))

    async def _take_shards(
        self, task: TaskId, token: LeaseToken, owner: str, shards: Sequence[Shard], first: int, *, last: bool
    ) -> bool:
        self._require_queue()
        if not self.machine.listing.lacks(task):
            return True  # the last piece came before, and its answer was lost
        # A member lists for its group, whose lease it is.
        of_group = any(lease.token == token for lease in self.machine.workers.group_leases)
        holder = GROUP if of_group else owner
        lost = await self._queue(self.queue.extend(holder, [token], self.machine.limits.lease_s))
        listed = [] if lost else self._listed.setdefault(str(token), [])
        if lost or first > len(listed):
            self._listed.pop(str(token), None)
            why = "its lease is lost" if lost else f"shards before number {first} are missing"
            _log.warning("a list of shards is refused", task=str(task), owner=owner, token=str(token), reason=why)
            return False
        listed[first:] = shards
        if last:
            purpose = self.machine.listing.purpose(task)
            await self._handle(ev.ShardsListed(purpose, self._listed.pop(str(token)), last=True))
        return True

    async def reap(self) -> None:
        """Takes back leases whose time is over."""
        await self._changes.make(self._reap())

    async def _reap(self) -> None:
        if self.broken:
            return
        try:
            await self._keep_group_leases()
            leases = await self._queue(self.queue.reap())
        except UnavailableError:
            return
        if leases:
            await self._handle(ev.LeasesTaken(leases))

    async def watch(self) -> None:
        """Compares the queue with the machine; where they contradict each other each learns what the other knows."""
        await self._changes.make(self._watch())

    async def _watch(self) -> None:
        if self.broken:
            return
        try:
            why = contradiction(self.machine, await self._queue(self.queue.counts()))
            contents = await self._queue(self.queue.load()) if why else None
        except UnavailableError:
            return
        if contents is None:
            return
        _log.error("the queue and the machine contradict each other", why=why)
        news = news_in(self.machine, contents)
        for event in news:
            await self._handle(event)
        await self._handle(ev.Contradicted(why, sum(isinstance(event, ev.TaskReported) for event in news)))
        await self._carry_out(do.RebuildQueue())

    async def _keep_group_leases(self) -> None:
        """Extends the group's leases for as long as it lives, whether its members can be heard or not."""
        tokens = [lease.token for lease in self.machine.workers.group_leases]
        if tokens and await self._queue(self.queue.extend(GROUP, tokens, self.machine.limits.lease_s)):
            await self._carry_out(do.RebuildQueue())

    async def repair(self) -> None:
        """Makes the queue anew from the machine's mirror.

        Raises:
            UnavailableError: the store still does not answer.
        """
        await self._changes.make(self._repair())

    async def _repair(self) -> None:
        if not self.trouble.is_set():
            return
        await self._translated(self._remake(self._unposted.texts()))
        await self._translated(self.queue.drop(sorted(self._undropped)))
        self._undropped.clear()
        self.broken = ""
        self.trouble.clear()
        _log.info("queue rebuilt")
        await self._handle(ev.StoreChanged(""))

    async def discard(self) -> None:
        """Removes the queue of a job that is over. It is not asked any more, and so nobody takes it for lost.

        Raises:
            UnavailableError: the store does not answer.
        """
        await self._changes.make(self._discard())

    async def _discard(self) -> None:
        self.broken = "the job is over"
        self.trouble.clear()
        await self._translated(self.queue.discard())

    # -- requests --------------------------------------------------------------------------------------------------

    async def _serve(self, request: TaskRequest, model_version: int = 0) -> WorkerReply:
        pending = PendingRequest(request, asyncio.get_running_loop().create_future(), model_version)
        if not self._waiting:  # those that come until it is this one's turn are taken with it
            self._changes.begin(self._take_waiting())
        self._waiting.append(pending)
        reply = await pending.answer
        for lease in reply.leases:
            mark("leased", "task", partial(_told, lease, request.owner))
        return reply

    async def _take_waiting(self) -> None:
        taken, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
        try:
            if self._waiting:
                self._changes.begin(self._take_waiting())
            # Whoever is gone would not learn of its tasks.
            await self._take([one for one in taken if not one.answer.done()])
        finally:
            for one in taken:
                one.tell()

    async def _take(self, pending: Sequence[PendingRequest]) -> None:
        """Takes requests; each gets its reply or its error."""
        try:
            # What is reported now may make an evaluation due for which training waits: it brings no task with it.
            hold = self.machine.gate.will_hold(max((one.model_version for one in pending), default=0))
            await self._exchange([one for one in pending if not self._reply_at_once(one, hold=hold)])
        except Exception as error:
            for one in pending:
                if one.reply is None and one.error is None:
                    one.error = error

    def _reply_at_once(self, pending: PendingRequest, *, hold: bool) -> bool:
        """Replies to a request that the queue is not asked for; one that may have no tasks only reports.

        Returns whether it has its reply.
        """
        request = pending.request
        directive = self.machine.directive(request.owner)
        if request.task is not None:
            pending.error = self._unavailable() if self.broken else None
            if directive is not Directive.CONTINUE or hold:
                pending.request = replace(request, limit=0)
        elif directive is not Directive.CONTINUE or self.broken or hold:
            self.machine.note_told(request.owner, directive)
            told = Directive.WAIT if directive is Directive.CONTINUE else directive
            pending.reply = WorkerReply(directive=told)
        return pending.reply is not None or pending.error is not None

    async def _exchange(self, pending: Sequence[PendingRequest]) -> None:
        if not pending:
            return
        requests = [one.request for one in pending]
        try:
            replies = await self._queue(self.queue.exchange(requests, self.machine.limits.lease_s))
        except UnavailableError as error:
            for one in pending:
                one.reply, one.error = (WorkerReply(), None) if one.request.task is None else (None, error)
            return
        leases = [lease for one in replies for lease in one.leases]
        if leases:
            failpoint("master.after_lease")
        # First what was leased: should a report lead to a new queue, these tasks must be known to be in hands.
        before = self._rebuilt
        if leases:
            await self._handle(ev.TasksLeased(leases))
        for one, reply in zip(pending, replies, strict=True):
            if one.request.task is not None:
                await self._reported(one, reply.outcome)
        if self._rebuilt != before and any(one.request.task is not None for one in pending):
            # A queue made anew after one of these does not know of reports that came with it.
            await self._carry_out(do.RebuildQueue())
        for one, reply in zip(pending, replies, strict=True):
            one.reply = self._reply(one.request, reply.outcome, reply.leases)

    async def _reported(self, pending: PendingRequest, outcome: Outcome | None) -> None:
        request, task = pending.request, pending.request.task
        assert task is not None
        token = str(request.token)
        if self._is_news(outcome, request.owner, token):
            failpoint("master.after_report")
            await self._handle(ev.TaskReported(task, request.owner, token, request.result, pending.model_version))

    def _is_news(self, outcome: Outcome | None, owner: str, token: str) -> bool:
        """Whether the machine is to hear of it; of a replay, too, if it has missed what the queue knows."""
        return outcome is Outcome.ACCEPTED or (outcome is Outcome.REPLAY and self.machine.workers.holds(owner, token))

    def _reply(self, request: TaskRequest, outcome: Outcome | None, leases: Sequence[Lease]) -> WorkerReply:
        if request.token is not None and request.limit:
            last = self._last_leased.get(request.owner)
            if outcome is Outcome.ACCEPTED:
                self._last_leased[request.owner] = (request.token, leases)
            elif outcome is Outcome.REPLAY and last is not None and last[0] == request.token:
                leases = last[1]
        # What the worker said may have ended its leases, such as those of training that has reached its last step.
        kept = [lease for lease in leases if self.machine.workers.holds(request.owner, str(lease.token))]
        told = kept if request.owner != GROUP else []
        leased = [DispatchedTask(self.machine.task(lease), lease) for lease in told]
        return WorkerReply(kept, leased, Directive.CONTINUE if kept else Directive.WAIT, outcome)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _handle(self, event: ev.Event) -> None:
        """Tells the machine, and carries out all that it decides: it is taken for done from now on."""
        failed: Exception | None = None
        decided = self.machine.handle(event, self._clock())
        posts = {} if self._post is None else {id(one): self._unposted.add(one) for one in decided if _is_kept(one)}
        if posts:
            await self._keep(posts.values())
        for instruction in decided:
            try:
                if self._post is not None and id(instruction) in posts:
                    self._post(posts[id(instruction)])
                else:
                    await self._carry_out(instruction)
            except FencedError:
                raise
            except Exception as error:
                _log.exception("an instruction failed", instruction=type(instruction).__name__)
                failed = failed or error
        if failed is not None:
            raise failed

    async def _keep(self, posts: Iterable[Post]) -> None:
        """Before anything says that they are told."""
        if not self.broken:
            with contextlib.suppress(UnavailableError):  # repair() makes it good
                await self._queue(self.queue.keep({post.number: post.to_text() for post in posts}))
        if surplus := self._unposted.surplus():
            await self._drop_posts(surplus)

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
        await self._queue(self._remake())
        self._rebuilt += 1

    async def _remake(self, posts: Mapping[int, str] = MappingProxyType({})) -> None:
        await self.queue.rebuild(self.machine.contents(), self.machine.limits.lease_s, posts)

    async def _add(self, instruction: do.AddTasks) -> None:
        await self._queue(self.queue.add(instruction.tasks, front=instruction.front))

    async def _release(self, instruction: do.ReleaseOwner) -> None:
        leases = await self._queue(self.queue.release_owner(instruction.owner))
        if leases:
            failpoint("master.after_release")
            await self._handle(ev.LeasesTaken(leases))

    async def _quarantine(self, instruction: do.Quarantine) -> None:
        await self._queue(self.queue.quarantine(instruction.task))

    async def _note(self, instruction: do.Note) -> None:
        await self._queue(self.queue.note(instruction.text))


def _is_kept(instruction: do.Instruction) -> TypeGuard[Told]:
    return isinstance(instruction, KEPT)


def _told(lease: Lease, owner: str) -> dict[str, str]:
    """The attributes of a lease in a trace."""
    return {"task": str(lease.task), "lease": work.number_of(str(lease.token)), "to": owner}


_QUEUE_MOVES: Mapping[type, Callable[[TaskDispatcher, Any], Awaitable[None]]] = {
    do.RebuildQueue: TaskDispatcher._rebuild,
    do.AddTasks: TaskDispatcher._add,
    do.ReleaseOwner: TaskDispatcher._release,
    do.Quarantine: TaskDispatcher._quarantine,
    do.Note: TaskDispatcher._note,
}
