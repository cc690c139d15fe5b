"""A worker's session with its master: leases, heartbeats and reports, called from the training thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import structlog

from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_core.model_description import ModelDescription
from elasticdl_core.shard import Shard
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import wait_for_event
from elasticdl_worker.master.client import (
    SHARDS_PER_CALL,
    LeaseAnswer,
    LeasedTask,
    MasterClient,
    TaskReport,
    WorkerDirective,
)
from elasticdl_worker.master.loop_executor import LoopExecutor
from elasticdl_worker.reporting.accounts import TaskAccount
from elasticdl_worker.reporting.failures import classify
from elasticdl_worker.reporting.progress import WorkerProgress

_log = structlog.get_logger(__name__)
T = TypeVar("T")
SHORT_TASK_S = 0.1
"""A worker whose tasks take no longer has its reports bring the next task; with longer ones it would keep that from
workers that are free."""
ServersChanged = Callable[[Sequence[str], int], Awaitable[None]]


class Session:
    """Connects the training thread with the master.

    The coroutines run on the event loop that made the session; the other methods may be called from any thread but
    the event loop's.

    Args:
        master: the master's client.
        heartbeat_s: how often to send heartbeats.
        ps_generation: generation of the parameter servers at the start.
        patience_s: for how long the master may be away.
        start_version: the model version that the job began at.
        short_task_s: reports bring the next task while tasks are begun no longer than that after one another.

    Attributes:
        progress: what the heartbeats say.
        drain: set when the worker shall return what it has and leave.
        finished: set when the job has nothing more to do.
        start_version: the model version that the job began at.
        token: the newest job token from the master; empty while the first one holds.
    """

    def __init__(
        self,
        master: MasterClient,
        *,
        heartbeat_s: float = 1.0,
        ps_generation: int = 0,
        patience_s: float = 600.0,
        short_task_s: float = SHORT_TASK_S,
        start_version: int = 0,
    ) -> None:
        self.progress = WorkerProgress()
        self.drain = threading.Event()
        self.finished = threading.Event()
        self.token = ""
        self.start_version = start_version
        self._master = master
        self._heartbeat_s = heartbeat_s
        self._generation = ps_generation
        self._patience_s = patience_s
        self._short_task_s = short_task_s
        self._loop = asyncio.get_running_loop()
        self._executor = LoopExecutor(self._loop)
        self._wake = asyncio.Event()
        self._lost: set[str] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._ready: deque[LeasedTask] = deque()
        self._asking = asyncio.Lock()
        self._took_at = float("-inf")
        self._short = False
        self._servers_changed: ServersChanged | None = None
        self._unheard: ElasticDLError | None = None

    def call(self, coroutine: Coroutine[object, None, T]) -> T:
        """Runs a coroutine on the event loop and waits for its result."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[object, None, T]) -> Future[T]:
        """Runs a coroutine on the event loop."""
        return self._executor.submit(coroutine)

    def on_servers_changed(self, callback: ServersChanged) -> None:
        """Sets the callback for replaced parameter servers."""
        self._servers_changed = callback

    def request_drain(self) -> None:
        """Tells the worker to finish and leave; to be called on the event loop."""
        self.drain.set()
        self._wake.set()

    def lease_task(self) -> LeasedTask | None:
        """Leases a task; waits for one. None when the worker shall leave (``drain`` or ``finished`` is set)."""
        return self.call(self._lease_task())

    def take_ready_tasks(self) -> list[LeasedTask]:
        """Takes the tasks that came with reports and were not begun; called when the worker leaves."""

        async def take() -> list[LeasedTask]:
            taken = list(self._ready)
            self._ready.clear()
            return taken

        return self.call(take())

    def is_lost(self, lease: LeasedTask) -> bool:
        """Whether a lease is no longer this worker's."""
        return lease.token in self._lost

    def forget(self, lease: LeasedTask) -> None:
        """Drops a task: this worker does nothing more for it."""
        self._lost.add(lease.token)
        self.progress.remove_task(lease.token)

    def report(
        self,
        lease: LeasedTask,
        records: int,
        result: Mapping[str, object] | None,
        version: int,
        account: TaskAccount | None = None,
        trace_trouble: str = "",
    ) -> None:
        """Reports a task, without waiting for the answer."""
        done = TaskReport(records, result, version, account, trace_trouble)
        self._loop.call_soon_threadsafe(self._begin_report, lease, done)

    def return_task(
        self, lease: LeasedTask, position: int, account: TaskAccount | None = None, version: int = 0
    ) -> bool:
        """Returns the rest of a task to the queue; tells whether the lease was still this worker's."""
        try:
            return self.call(self._master.return_task(lease, position, account, version))
        finally:
            self.forget(lease)

    def fail(self, lease: LeasedTask | None, error: BaseException) -> None:
        """Reports a failure."""
        kind, shown, trace = classify(error)
        _log.error("failed", kind=kind, task=str(lease.task.id) if lease else "", error=str(shown), traceback=trace)
        try:
            self.call(self._master.fail(lease, kind, shown, trace))
        finally:
            if lease:
                self.forget(lease)

    def describe_model(self, description: ModelDescription) -> None:
        """Tells the master what the model module has."""
        self.call(self._master.describe_model(description))

    def report_shards(self, lease: LeasedTask, shards: Sequence[Shard]) -> None:
        """Reports all shards of a custom reader, while the lease is this worker's."""
        for first in range(0, max(len(shards), 1), SHARDS_PER_CALL):
            piece = shards[first : first + SHARDS_PER_CALL]
            last = first + SHARDS_PER_CALL >= len(shards)
            if not self.call(self._master.report_shards(lease, piece, first=first, last=last)):
                _log.warning("a list of shards was refused, and is asked for again", task=str(lease.task.id))
                return

    async def send_heartbeats(self) -> None:
        """Sends heartbeats until cancelled.

        Raises:
            UnavailableError: the master was away for too long.
            ElasticDLError: the master refuses this worker.
        """
        heard = time.monotonic()
        while True:
            if self._unheard is not None:
                raise self._unheard
            state = self.progress.take_snapshot()
            try:
                answer = await self._master.heartbeat(state)
                heard = time.monotonic()
            except asyncio.CancelledError:
                self.progress.restore_losses(state)  # the last words tell them; who hears them twice knows them
                raise
            except UnavailableError as error:
                self.progress.restore_losses(state)
                away = time.monotonic() - heard
                if away > self._patience_s:
                    raise UnavailableError(
                        f"the master has been away for {away:.0f} s", fix="look at the master's log"
                    ) from error
                _log.warning("heartbeat unanswered", seconds=round(away, 1))
            else:
                self._lost.update(answer.lost)
                for token in answer.lost:
                    self.progress.remove_task(token)
                self.token = answer.token or self.token
                if answer.directive is WorkerDirective.DRAIN:
                    self.request_drain()
                elif answer.directive is WorkerDirective.FINISHED:
                    self.finished.set()
                    self._wake.set()
                if answer.ps_addresses and answer.ps_generation != self._generation:
                    self._generation = answer.ps_generation
                    if self._servers_changed is not None:
                        await self._servers_changed(answer.ps_addresses, answer.ps_generation)
            await asyncio.sleep(self._heartbeat_s)

    async def complain(
        self, what: str, error: Exception, lease: LeasedTask | None = None, *, leaves: bool = False
    ) -> None:
        """Tells the master that it does not take what this worker has to say, for which the job would wait.

        Where even that is refused, this worker ends: the master counts that.

        Args:
            what: was not heard.
            error: why not.
            lease: of the task that it is about.
            leaves: this worker ends in any case.
        """
        why = error.message if isinstance(error, ElasticDLError) else f"{type(error).__name__}: {error}"
        shown = ElasticDLError(f"the master does not take {what}: {why}", fix="see the logs of both")
        _log.error("not heard", what=what, error=why)
        try:
            await self._master.fail(lease, "infrastructure", shown, "")
        except Exception as again:
            _log.error("not heard", what="that", error=str(again))
            leaves = True
        if leaves:
            self._unheard = shown

    async def flush(self) -> None:
        """Waits until every report is answered, and sends the losses since the last heartbeat.

        Raises:
            ElasticDLError: a report was refused, and the master could not be told.
        """
        while self._reports:
            await asyncio.wait(self._reports)  # who waits no longer breaks none of them off
        if self._unheard is not None:
            raise self._unheard
        try:
            await self._master.heartbeat(self.progress.take_snapshot(last=True))
        except ElasticDLError as error:
            _log.warning("the last heartbeat was not heard", error=str(error))

    async def _lease_task(self) -> LeasedTask | None:
        while not self.drain.is_set():
            # One at a time asks, so that tasks are begun in the order in which the master hands them out.
            async with self._asking:
                lease = self._take()
                answer = LeaseAnswer(WorkerDirective.CONTINUE) if lease is not None else await self._master.lease()
            if lease is None and answer.tasks:
                failpoint("worker.after_lease")
                lease = answer.tasks[0]
                self.progress.add_task(lease.token, lease.task.shard.start)
            if lease is not None:
                now = time.monotonic()
                self._short, self._took_at = now - self._took_at <= self._short_task_s, now
                return lease
            if answer.directive is WorkerDirective.DRAIN:
                self.request_drain()
            elif answer.directive is WorkerDirective.FINISHED:
                self.finished.set()
            if self.drain.is_set() or self.finished.is_set():
                return None
            self.progress.set_idle()
            if not await wait_for_event(self._wake, max(answer.wait_s, 0.05)):
                continue
            if self.finished.is_set():
                return None
            if not self.drain.is_set():
                self._wake.clear()
        return None

    def _take(self) -> LeasedTask | None:
        while self._ready:
            lease = self._ready.popleft()
            if not self.is_lost(lease):
                return lease
        return None

    def _begin_report(self, lease: LeasedTask, done: TaskReport) -> None:
        task = self._loop.create_task(self._report(lease, done), name=f"report {lease.task.id}")
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, lease: LeasedTask, done: TaskReport) -> None:
        try:
            if self._short and not self._ready and not self._asking.locked() and not self.drain.is_set():
                async with self._asking:
                    accepted, tasks = await self._master.report(lease, done, 1)
                    for task in tasks:
                        self.progress.add_task(task.token, task.task.shard.start)
                    self._ready.extend(tasks)
                    if tasks:
                        self._wake.set()
            else:
                accepted, _ = await self._master.report(lease, done)
            failpoint("worker.after_report")
            if not accepted:
                _log.warning("a lease was lost before its report", task=str(lease.task.id))
        except Exception as error:  # dropped, the task would be nobody's for ever
            await self.complain(f"the report of task {lease.task.id}", error, lease)
        finally:
            self.progress.remove_task(lease.token)
        if self.drain.is_set():
            await self._return_ready_tasks()

    async def _return_ready_tasks(self) -> None:
        """Returns tasks that came with a report after the worker was told to leave."""
        while self._ready:
            lease = self._ready.popleft()
            try:
                await self._master.return_task(lease, lease.task.shard.start)
            except Exception as error:
                await self.complain(f"task {lease.task.id} back", error, lease)
            finally:
                self.forget(lease)
