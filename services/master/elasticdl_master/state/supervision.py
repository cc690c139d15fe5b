"""Supervision of workers: how many there shall be, what their ends mean, and which of them are replaced."""

from __future__ import annotations

from elasticdl_core.ports.launcher import ProcessStatus, Role
from elasticdl_core.process_life import OVER_LIMITS, describe_exit
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state.conditions import DegradedConditions
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.instructions import Instruction, Quarantine, ReleaseOwner, tell
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.workers import Death, Worker


class WorkerSupervisor:
    """Launches, drains and replaces workers, and fails the job when that does not help.

    Args:
        job: what all parts share.
        throughput: measures how fast the workers are.
        conditions: while the queue is away no progress is expected.

    Attributes:
        target: how many workers there shall be.
    """

    def __init__(self, job: JobContext, throughput: Throughput, conditions: DegradedConditions) -> None:
        self._job = job
        self._throughput = throughput
        self._conditions = conditions
        self.target = job.setup.target_workers

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in what workers say, what became of their leases, and how their processes stand."""
        match event:
            case ev.WorkerHeartbeat():
                worker = self._job.workers.heartbeat(event, now)
                if worker is not None:
                    self._throughput.heartbeat(worker)
            case ev.TaskReported(task, owner, token):
                self._job.workers.settled(owner, token, now)
                self._done(task)
            case ev.TaskReturned(task, owner, token, position):
                self._job.workers.released(owner, token)
                if position > task.start:
                    self._done(task)
            case ev.LeasesTaken(leases):
                for lease in leases:
                    training = lease.task.type is TaskType.TRAINING
                    self._job.workers.dropped(lease.owner, str(lease.token), training=training)
            case ev.Tick():
                return self._look(now)
            case ev.WorkerFailed():
                return self._failed(event)
            case ev.ProcessChanged(status) if status.id.role is Role.WORKER:
                found = self._job.workers.process(status, now)
                return self._gone(*found, status, now) if found is not None else []
            case ev.WorkerRegistered(index, incarnation):
                self._job.workers.register(index, incarnation, now)
            case ev.Directed(target_workers=target):
                self._directed(target, now)
        return []

    def reconcile(self, now: float) -> list[Instruction]:
        """Makes the number of workers what it shall be."""
        return self._job.workers.reconcile(self.target, now)

    def _done(self, task: TaskId) -> None:
        if task.type is self._job.plans.main_type and self._job.plans.with_epochs:
            self._job.failures.done(task)

    def _directed(self, target: int, now: float) -> None:
        """Takes another target; the scheduler, who decided it, has told the user why (``scaled``)."""
        before, self.target = self.target, target
        if target != before:
            self._throughput.target_changed(before, target, now)

    # -- failures --------------------------------------------------------------------------------------------------

    def _failed(self, event: ev.WorkerFailed) -> list[Instruction]:
        """A worker says that it cannot go on with a task, or at all."""
        worker = self._job.workers.by_owner(event.owner)
        if event.token:
            self._job.workers.released(event.owner, event.token)
        if self._job.lifecycle.ending:
            return []
        if event.kind == "infrastructure":
            if self._job.failures.unexplained(event.owner, event.message, event.fix, event.task):
                self._job.lifecycle.fail(event.message, fix=event.fix, kind=event.kind, where=f"task {event.task}")
            return [tell("worker_trouble", f"{event.owner}: {event.message}")]
        where = f"{event.owner}, task {event.task}" if event.task is not None else event.owner
        final = event.task is None or event.kind != "user_code"
        if event.task is not None and not final:
            index = worker.index if worker is not None else -1
            final = self._job.failures.count_user_failure(event.task, index, alone=len(self._job.workers.living) <= 1)
        if not final:
            return [tell("task_failed", f"{where}: {event.message}", traceback=event.traceback)]
        self._job.lifecycle.fail(
            event.message, fix=event.fix, traceback=event.traceback, kind=event.kind, where=where
        )
        return self._quarantine(event.task) if event.task is not None else []

    def _gone(self, worker: Worker, death: Death, status: ProcessStatus, now: float) -> list[Instruction]:
        """A worker's process has ended."""
        release = ReleaseOwner(worker.owner)
        if self._job.lifecycle.ending or death is Death.EXPECTED:
            return [release]
        words = f"{worker.owner} {describe_exit(status)}"
        lost = tell("worker_lost", words, exit_code=status.exit_code, reason=status.reason)
        if status.reason in OVER_LIMITS:
            # The next worker would find what this one has left, and end as it did.
            self._job.lifecycle.fail(words, fix=OVER_LIMITS[status.reason][1], crashed=worker.owner)
            return [release, lost]
        culprit = next(iter(worker.leases.values()), None)
        if culprit is not None and self._is_guilty(worker, death) and self._job.failures.killed_worker(culprit):
            self._job.lifecycle.fail(
                f"task {culprit} ended {self._job.limits.user_failures} workers; the last one, {words}",
                fix=self._memory_fix()
                if death is Death.OUT_OF_MEMORY
                else "look at the worker's log; run the model module with --local on this part of the data",
                crashed=worker.owner,
            )
            return [release, lost, *self._quarantine(culprit)]
        why = self._job.workers.charge(worker, death, now)
        if why:
            said, fix = self._job.failures.last_words.get(worker.owner, ("", "look at the worker's log"))
            if death is Death.OUT_OF_MEMORY:
                fix = self._memory_fix()
            message = f"{why}; the last one, {words}" + (f": {said}" if said else "")
            self._job.lifecycle.fail(message, fix=fix, crashed=worker.owner)
        return [release, lost]

    def _memory_fix(self) -> str:
        whole = "give the machine or container more memory, or the job fewer workers"
        more = "raise worker_memory_mib" if self._job.workers.memory_mib else whole
        return f"{more}, or lower minibatch_size"

    def _is_guilty(self, worker: Worker, death: Death) -> bool:
        """Whether a death counts against the task that the worker had; a kill from outside never does."""
        if death is Death.OUT_OF_MEMORY:
            return not self._job.workers.may_grow(worker)  # else there is more memory to be had
        return death is Death.CRASHED

    # -- progress --------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> list[Instruction]:
        """Stops the workers that must go."""
        self._throughput.tick(self._job.workers, now)
        if self._job.lifecycle.ending:
            return []
        out: list[Instruction] = []
        hears = not self._conditions.queue
        watch = hears and self._job.servers.ready and not self._job.servers.silent
        for worker, reason in self._job.workers.overdue(now, watch=watch, hears=hears):
            if reason:
                out += self._held_up(worker, reason)
            out += self._job.workers.stop(worker, self._job.limits.leave_s)
        return out

    def _held_up(self, worker: Worker, reason: str) -> list[Instruction]:
        """A worker makes no progress: it is replaced, and the task that it had is to blame if that happens again."""
        worker.stuck = True
        if worker.in_hand is None:
            return [tell("worker_stuck", f"{worker.owner} {reason}; it is replaced")]
        task, position = worker.in_hand
        where = self._job.plans.describe_place(task, position)
        words = f"{worker.owner} {reason}, at {where}; it is replaced"
        stuck = tell("worker_stuck", words, task=str(task), position=position)
        if not self._job.failures.held_up(task, position):
            return [stuck]
        self._job.lifecycle.fail(
            f"{self._job.limits.stuck_workers} workers made no progress at {where}",
            fix="look at these records, and at the code that reads them and trains on them; "
            "raise progress_timeout_s if they only take long",
            where=f"task {task}",
        )
        return [stuck, *self._quarantine(task)]

    def _quarantine(self, task: TaskId) -> list[Instruction]:
        self._job.failures.quarantined.add(task)
        return [Quarantine(task)]
