"""The loop of a worker once it is set up: lease, train, account, report, until no tasks are left or it must leave.

Every record of a task is processed exactly once between lease and report: a task is reported when the last push of it
was accepted; what a draining worker did not process goes back to the queue.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic

import structlog

from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.spans import span
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.accounts import Intake
from elasticdl_worker.reporting.traces import TraceWriter
from elasticdl_worker.trainers.engine import (
    Engine,
    NoMoreTasks,
    OtherTask,
    ReadTask,
    StepT,
    TaskItem,
    UnreadableTask,
)

_log = structlog.get_logger(__name__)
FINISH_WITHIN_S = 12.0
"""A draining worker finishes a task that it cannot cut if that takes no longer."""
_MAX_FAILURES = 3


class ExitReason(enum.Enum):
    """Why a worker ended."""

    FINISHED = "finished"
    DRAINED = "drained"


class TaskLoop(Generic[StepT]):
    """Runs tasks on an engine until the session has no more, or tells the worker to leave.

    Args:
        engine: trains.
        session: the standing with the master.
        traces: what was processed.
        on_first_step: called when the first minibatch was trained.
    """

    def __init__(
        self,
        engine: Engine[StepT],
        session: Session,
        traces: TraceWriter,
        on_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._traces = traces
        self._current: LeasedTask | None = None
        self._done = 0
        self._failures = 0
        self._on_first_step: Callable[[], None] | None = on_first_step
        self._spans: dict[str, span] = {}

    def run(self) -> ExitReason:
        """Works until there are no more tasks or the worker is told to leave.

        Raises:
            ElasticDLError: the worker cannot go on: the master or the parameter servers are away for too long, or
                the user's code fails on each task.
        """
        while True:
            if self._session.drain.is_set() and not self._may_finish():
                self._leave()
                return ExitReason.DRAINED
            item = self._engine.next_item(wait=False)
            if item is None:
                self._guarded(self._current, self._engine.wait_for_pushes)
                with span("reading data", "step"):
                    item = self._engine.next_item(wait=True)
            assert item is not None
            if isinstance(item, NoMoreTasks):
                self._guarded(None, self._engine.wait_for_pushes)
                if item.error is not None:
                    raise item.error
                if self._session.drain.is_set():
                    self._leave()
                    return ExitReason.DRAINED
                return ExitReason.FINISHED
            self._handle(item)

    def _handle(self, item: StepT | TaskItem) -> None:
        lease = item.lease
        if self._session.is_lost(lease):
            self._current = None if self._current is lease else self._current
            self._end(lease)
            return
        if isinstance(item, UnreadableTask):
            self._fail(lease, item.error)
        elif isinstance(item, OtherTask):
            self._show(lease)
            self._guarded(lease, lambda: self._run_other(lease))
            self._end(lease)
        elif isinstance(item, ReadTask):
            intake = item.intake
            self._begin(lease)
            self._current = None
            self._guarded(lease, lambda: self._engine.call_after_pushes(lambda: self._complete(lease, intake)))
        else:
            step = item
            self._guarded(lease, lambda: self._train(step))

    def _begin(self, lease: LeasedTask) -> None:
        if self._current is not lease:
            self._current, self._done = lease, 0
            self._show(lease)

    def _show(self, lease: LeasedTask) -> None:
        """Logs and recordings say from now on that this thread works on a task."""
        task = lease.task
        work.begin(str(task.id), lease.token)
        one = span(f"task: {task.id.type}", "task", alone=False, details={"records": task.shard.records})
        self._spans[lease.token] = one.__enter__()

    def _end(self, lease: LeasedTask) -> None:
        """A task is done, or no longer this worker's; the next one may have begun."""
        one = self._spans.pop(lease.token, None)
        if one is not None:
            one.details = {**(one.details or {}), "version": self._engine.version}
            one.__exit__(None, None, None)
        if work.present().get("lease") == work.number_of(lease.token):
            work.end()

    def _train(self, step: StepT) -> None:
        lease = step.lease
        self._begin(lease)
        # The first step is traced and compiled, which may take longer than any record.
        phase = "compiling" if self._on_first_step is not None else "training"
        self._session.progress.set_phase("draining" if self._session.drain.is_set() else phase)
        self._engine.train(step)
        failpoint("worker.after_step")
        if self._engine.at_limit:
            self._done += step.records
            self._end_at_limit(lease)
            return
        if self._on_first_step is not None:
            self._on_first_step()
            self._on_first_step = None
        self._done += step.records
        self._failures = 0
        if self._engine.ordered:
            shard = lease.task.shard
            self._session.progress.advance(lease.token, min(shard.start + self._done, shard.end))

    def _end_at_limit(self, lease: LeasedTask) -> None:
        """Returns the rest of a task after the job's last update; nobody will train on it."""
        self._engine.wait_for_pushes()
        self._current = None
        self._return(lease, self._done - self._engine.take_untrained(lease))

    def _return(self, lease: LeasedTask, done: int) -> None:
        """Returns a task of which so many records are done; a task that cannot be cut is returned whole."""
        shard = lease.task.shard
        position = min(shard.start + max(0, done), shard.end) if self._engine.ordered else shard.start
        if position > shard.start:
            self._traces.append(lease.task, lease.token, shard.start, position, self._engine.version)
        self._end(lease)
        self._session.return_task(lease, position, self._engine.close_account(lease), self._engine.version)

    def _complete(self, lease: LeasedTask, intake: Intake) -> None:
        shard = lease.task.shard
        left = self._engine.take_untrained(lease)
        if left:
            self._return(lease, shard.records - left)
            return
        account = self._engine.close_account(lease, intake)
        failpoint("worker.before_trace")
        self._traces.append(lease.task, lease.token, shard.start, shard.end, self._engine.version)
        failpoint("worker.after_trace")
        self._end(lease)
        self._session.report(lease, shard.records, None, self._engine.version, account, self._traces.trouble)

    def _run_other(self, lease: LeasedTask) -> None:
        self._engine.wait_for_pushes()
        failpoint("worker.before_other_task")
        outcome = self._engine.run_task(lease)
        failpoint("worker.after_other_task")
        if self._session.is_lost(lease):
            return
        if outcome.records:
            shard = lease.task.shard
            self._traces.append(lease.task, lease.token, shard.start, shard.end, self._engine.version)
        self._session.report(
            lease, outcome.records, outcome.result, self._engine.version, outcome.account, self._traces.trouble
        )
        self._failures = 0

    def _guarded(self, lease: LeasedTask | None, action: Callable[[], None]) -> None:
        """Runs part of a task; reports its failure, so that the loop goes on with the next task."""
        try:
            action()
        except Exception as error:
            if lease is None:
                raise
            self._fail(lease, error)

    def _fail(self, lease: LeasedTask, error: BaseException) -> None:
        self._failures += 1
        if self._current is lease:
            self._current = None
        self._engine.drop_account(lease)
        self._session.fail(lease, error)
        self._end(lease)
        if self._failures >= _MAX_FAILURES:
            if not isinstance(error, UserCodeError | DataError):
                raise error
            raise UserCodeError(
                f"{self._failures} tasks failed one after the other; the last one: {error.message}",
                fix=error.fix,
                traceback=getattr(error, "traceback", ""),
            ) from error

    def _may_finish(self) -> bool:
        """Whether a draining worker should finish its task, because it cannot be cut and is short."""
        if self._current is None or self._engine.ordered or self._session.is_lost(self._current):
            return False
        left = self._engine.minibatches_of(self._current.task.shard.records - self._done)
        return left * self._session.progress.mean_step_s() <= FINISH_WITHIN_S

    def _leave(self) -> None:
        """Returns all unprocessed records to the queue."""
        self._session.progress.set_phase("draining")
        current = self._current
        self._guarded(current, self._engine.wait_for_pushes)
        held = [*self._engine.stop_reading(), *self._session.take_ready_tasks()]
        if current is not None and not self._session.is_lost(current):
            failpoint("worker.before_give_back")
            self._return(current, self._done - self._engine.take_untrained(current))
        for lease in held:
            if lease is not current and not self._session.is_lost(lease):
                self._session.return_task(lease, lease.task.shard.start)
        _log.info("left", returned=len(held))
