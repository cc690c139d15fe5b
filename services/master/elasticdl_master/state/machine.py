"""The state machine of a job: every decision of the master, and no input or output.

``handle(event, now)`` takes what happened and returns what to do. ``now`` is any monotonic clock in seconds.

A job works through *rounds* (epochs). Rounds do not overlap: the tasks of one are added when the one before is
complete. When all is done, or training was stopped for a reason, the job *closes*: last evaluation, last checkpoint,
export. Then, or when it is told to stop, or when it cannot go on, it *ends* (``state.ending``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from elasticdl_core.json_numbers import to_json
from elasticdl_core.ports.launcher import ProcessStatus, Role
from elasticdl_core.skips import doublings
from elasticdl_core.task import Lease, Task, TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.accounts import Account
from elasticdl_master.state.ending import Directive
from elasticdl_master.state.evaluations import Evaluation
from elasticdl_master.state.servers import Phase
from elasticdl_master.state.taking_over import TakingOver
from elasticdl_master.state.workers import Death, Worker, describe_exit


class JobMachine(TakingOver):
    """All decisions about one job.

    Args:
        setup: what was found.
        limits: times and budgets.
    """

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes an event in; returns what to do about it, in order."""
        _HANDLERS[type(event)](self, event, now)
        if self._started and not self.finished:
            self._advance(now, staffed=type(event) in _STAFFED)
            if type(event) not in _ROUTINE or not all(isinstance(one, _ROUTINE_ANSWERS) for one in self._out):
                self._note()
        out, self._out = self._out, []
        return out

    def directive(self, owner: str) -> Directive:
        """What a worker shall do that asks for work or sends a heartbeat."""
        worker = self.workers.by_owner(owner)
        if self.ending is not None:
            return self.ending.directive
        if worker is None or not worker.staying:
            return Directive.DRAIN
        if not self._started or (not self.servers.ready and not self.listing_by_worker):
            return Directive.WAIT
        return Directive.CONTINUE

    def finish_told(self, owner: str) -> None:
        """A worker was told that all is done: its exit is as it should be."""
        worker = self.workers.by_owner(owner)
        if worker is not None:
            worker.finished = True

    def holds(self, owner: str, token: str) -> bool:
        """Whether a worker has a lease."""
        worker = self.workers.by_owner(owner)
        return worker is not None and token in worker.leases

    def task(self, lease: Lease) -> Task:
        """What a leased id stands for."""
        shard = self.work.shard_of(lease.task)
        evaluation = self.work.evaluation_of(lease.task)
        version = evaluation.model_version if evaluation is not None else -1
        return Task(lease.task, shard, version, self._payload(lease.task, evaluation), self.work.reading(lease.task))

    def _on_shards_listed(self, event: ev.ShardsListed, now: float) -> None:
        plan = self.work.plan_of(event.type)
        if plan is None or plan.listed:
            return
        ready = plan.extend(event.shards, last=event.last)
        plan.damaged.update(event.damaged)
        for path, reason in event.damaged.items():
            self._tell("skipped", f"the rest of {path} is left out, with an unknown number of records: {reason}")
        if plan.listed and not plan.parts:
            self._fail(f"the {event.type} data holds no records", fix="check the path and the reader's parameters")
        elif plan is self.work.main and self.work.uses_rounds and ready and not self.work.held:
            self._emit(do.AddTasks(self.work.round.remaining(ready)))
        if self.work.listed and not self._plan_put and self.ending is None:
            self._plan_put = True
            mapping = self.work.main.to_mapping()
            if self.work.validation not in (None, self.work.main):
                assert self.work.validation is not None
                mapping["validation"] = self.work.validation.to_mapping()["shards"]
                if self.work.validation.damaged:
                    mapping["validation_damaged"] = dict(self.work.validation.damaged)
            self._emit(do.PutPlan(mapping))

    def _on_job_failed(self, event: ev.JobFailed, now: float) -> None:
        self._fail(event.message, fix=event.fix, traceback=event.traceback, kind=event.kind)

    def _on_registered(self, event: ev.WorkerRegistered, now: float) -> None:
        self.workers.hello(event.index, event.incarnation, now)

    def _on_described(self, event: ev.ModelDescribed, now: float) -> None:
        first = not self.description
        self.description = dict(event.description)
        if first:
            self._take_callbacks()

    def _on_heartbeat(self, event: ev.Heartbeat, now: float) -> None:
        worker = self.workers.heartbeat(event, now)
        if worker is None:
            return
        self.throughput.heartbeat(worker)
        if event.last_loss is not None:
            known = [one.loss for one in self.workers.living if one.loss is not None]
            self.loss = sum(known) / len(known) if known else event.loss
            self.last_loss, self.learning_rate = event.last_loss, event.learning_rate
        if event.training_metrics:
            self.training_metrics = dict(event.training_metrics)
        if event.losses:
            self._emit(do.PostLosses(tuple(event.losses)))
        self._saw_version(event.model_version, now)

    def _on_leased(self, event: ev.TasksLeased, now: float) -> None:
        early = False
        for lease in event.leases:
            if self._too_early(lease.task):
                early = self.work.held = True
                continue
            self.workers.leased([lease])
            worker = self.workers.by_owner(lease.owner)
            if worker is not None and len(worker.leases) == 1:
                worker.last_progress = now
        if early:
            self._keep_back()

    def _on_worker_failed(self, event: ev.WorkerFailed, now: float) -> None:
        worker = self.workers.by_owner(event.owner)
        if worker is not None and event.token:
            worker.leases.pop(event.token, None)
        if self.ending is not None:
            return
        if event.task is not None and event.task.type is TaskType.TRAINING:
            self._keep_back()
        if event.kind == "infrastructure":
            self._tell("worker_trouble", f"{event.owner}: {event.message}")
            if self.failures.unexplained(event.owner, event.message, event.fix, event.task):
                self._fail(event.message, fix=event.fix, kind=event.kind, where=f"task {event.task}")
            return
        where = f"{event.owner}, task {event.task}" if event.task is not None else event.owner
        final = event.task is None or event.kind != "user_code"
        if event.task is not None and not final:
            index = worker.index if worker is not None else -1
            final = self.failures.user_failed(event.task, index, alone=len(self.workers.living) <= 1)
        if final:
            if event.task is not None:
                self.failures.quarantined.add(event.task)
                self._emit(do.Quarantine(event.task))
            self._fail(event.message, fix=event.fix, traceback=event.traceback, kind=event.kind, where=where)
        else:
            self._tell("task_failed", f"{where}: {event.message}", traceback=event.traceback)

    def _on_process(self, event: ev.ProcessChanged, now: float) -> None:
        status = event.status
        if status.id.role is Role.PS:
            server = self.servers.process(status, now)
            if server is not None and self.ending is None and self.servers.phase is not Phase.STOPPED:
                self._server_lost(status, now)
        elif status.id.role is Role.WORKER:
            found = self.workers.process(status, now)
            if found is not None:
                self._worker_gone(*found, status, now)

    def _worker_gone(self, worker: Any, death: Death, status: ProcessStatus, now: float) -> None:
        self._emit(do.ReleaseOwner(worker.owner))
        if self.ending is not None or death is Death.EXPECTED:
            return
        words = f"{worker.owner} {describe_exit(status)}"
        self._tell("worker_lost", words, exit_code=status.exit_code, reason=status.reason)
        culprit = next(iter(worker.leases.values()), None)
        # Of a death for lack of memory the task is guilty only if there is no more memory to be had.
        grows = death is Death.OUT_OF_MEMORY and self.workers.may_grow(worker)
        counts = culprit is not None and death in (Death.CRASHED, Death.OUT_OF_MEMORY) and not grows
        if culprit is not None and counts and self.failures.killed_worker(culprit):
            self.failures.quarantined.add(culprit)
            self._emit(do.Quarantine(culprit))
            self._fail(
                f"task {culprit} ended {self.limits.user_failures} workers; the last one, {words}",
                fix="look at the worker's log; run the model module with --local on this part of the data",
                crashed=worker.owner,
            )
            return
        why = self.workers.charge(worker, death, now)
        if why:
            said, fix = self.failures.last_words.get(worker.owner, ("", "look at the worker's log"))
            if death is Death.OUT_OF_MEMORY:
                fix = "raise worker_memory_mib, or lower minibatch_size"
            message = f"{why}; the last one, {words}" + (f": {said}" if said else "")
            self._fail(message, fix=fix, crashed=worker.owner)

    def _on_reported(self, event: ev.TaskReported, now: float) -> None:
        self.workers.settled(event.owner, event.token, now)
        self._saw_version(event.model_version, now)
        task = event.task
        if task.type is self.work.main_type and self.work.uses_rounds:
            self._main_done(task, event.result)
            self._post_artifacts(event.result)
            self._forgive_servers()
        elif task.type is TaskType.EVALUATION:
            self._evaluation_task_done(task, event.result)
        elif task in self.work.singles:
            self._single_done(task, event.result, now)

    def _forgive_servers(self) -> None:
        """Progress forgives the PS that were lost; what is done a second time, after a return, is none."""
        if self.work.records_done > self._reached:
            self._reached = self.work.records_done
            self.servers.crashes = 0

    def _main_done(self, task: TaskId, result: bytes = b"") -> None:
        self.failures.done(task)
        if task.round == self.work.round.number and self.work.main.holds(task):
            self.work.round.mark(task)
            before = self.work.accounts.skips
            changes = self.work.accounts.record(task, Account.of_result(result))
            self._emit(do.MarkDone([task], changes))
            for news in doublings(before, self.work.accounts.skips):
                self._tell("skipped", news)

    def _on_refused(self, event: ev.ReportRefused, now: float) -> None:
        """Somebody else does the task, or did it; what both applied is in the tally of the PS."""

    def _on_returned(self, event: ev.TaskReturned, now: float) -> None:
        worker = self.workers.by_owner(event.owner)
        if worker is not None:
            worker.leases.pop(event.token, None)
        if event.position > event.task.start and event.task.type is self.work.main_type and self.work.uses_rounds:
            self._main_done(event.task.front_until(min(event.position, event.task.end)), event.result)
        self._saw_version(event.model_version, now)
        if event.task.type is TaskType.TRAINING:
            self._keep_back()

    def _on_taken(self, event: ev.LeasesTaken, now: float) -> None:
        for lease in event.leases:
            self.workers.dropped(lease.owner, str(lease.token), training=lease.task.type is TaskType.TRAINING)
        if any(lease.task.type is TaskType.TRAINING for lease in event.leases):
            self._keep_back()

    def _keep_back(self) -> None:
        """Training tasks came back to the queue: they may be not to be done, or not now."""
        if self.work.stopped or self.work.held:
            self._emit(do.RebuildQueue(self.contents()))

    def _payload(self, task: TaskId, evaluation: Evaluation | None) -> str:
        data: dict[str, Any] = {}
        if task.type is TaskType.EVALUATION and evaluation is not None:
            data = {"pin": evaluation.number}
        elif task.type is TaskType.EVALUATION_SUMMARY and evaluation is not None:
            data = {
                "states": evaluation.merged(),
                "number": evaluation.number,
                "model_version": evaluation.model_version,
                "training_epoch": evaluation.training_epoch,
            }
        elif task.type is TaskType.EXPORT and self.final is not None:
            data = {
                "checkpoint_directory": self.final["directory"],
                "manifest": {key: value for key, value in self.final.items() if key != "done"},
                "output": self.setup.output,
                "formats": self.formats,
            }
        elif task.type is TaskType.LIST_SHARDS:
            purpose = self.work.main_type if task.index == 0 else TaskType.EVALUATION
            data = {
                "purpose": str(purpose),
                "origin": self.data_of(purpose),
                "records_per_task": self.spec.records_per_task,
            }
        return json.dumps(to_json(data), allow_nan=False) if data else ""

    def _on_traces_failed(self, event: ev.TracesFailed, now: float) -> None:
        self.trace_trouble = event.reason
        self._tell("traces_failed", f"{event.owner} {event.reason}; training goes on without traces")

    def _on_store_changed(self, event: ev.StoreChanged, now: float) -> None:
        if event.reason and not self.store_trouble:
            self._tell("queue_away", f"the task queue is away: {event.reason}")
        elif self.store_trouble and not event.reason:
            self._tell("queue_back", "the task queue was made anew")
        self.store_trouble = event.reason

    def _on_tick(self, event: ev.Tick, now: float) -> None:
        self.throughput.tick(self.workers, now)
        if self.ending is not None:
            return
        watch = self.servers.ready and not self.servers.silent and not self.store_trouble
        for worker, reason in self.workers.overdue(now, watch=watch):
            if reason:
                self._held_up(worker, reason)
            self._out += self.workers.stop(worker, self.limits.leave_s)

    def _held_up(self, worker: Worker, reason: str) -> None:
        """A worker makes no progress: it is replaced, and the task that it had is to blame if that happens again."""
        worker.stuck = True
        if worker.in_hand is None:
            self._tell("worker_stuck", f"{worker.owner} {reason}; it is replaced")
            return
        task, position = worker.in_hand
        where = self.place_of(task, position)
        self._tell(
            "worker_stuck", f"{worker.owner} {reason}, at {where}; it is replaced", task=str(task), position=position
        )
        if not self.failures.held_up(task, position):
            return
        self.failures.quarantined.add(task)
        self._emit(do.Quarantine(task))
        self._fail(
            f"{self.limits.stuck_workers} workers made no progress at {where}",
            fix="look at these records, and at the code that reads them and trains on them; "
            "raise progress_timeout_s if they only take long",
            where=f"task {task}",
        )

    def place_of(self, task: TaskId, position: int) -> str:
        """A place in a task, for people."""
        if not task.records:
            return f"task {task}"
        name = self.work.shard_of(task).name
        return f"record {position} of task {task} (records {task.start} to {task.end} of {name})"


_STAFFED = (ev.TasksLeased, ev.TaskReported)
"""What leaves the number of workers as it was; it comes too often for a look at all workers each time."""
_ROUTINE = (ev.TasksLeased, ev.TaskReported, ev.Heartbeat, ev.Tick)
_ROUTINE_ANSWERS = (do.MarkDone, do.PostLosses)
"""What happens a thousand times a second and changes nothing that the next master could not find out itself."""
_HANDLERS: dict[type, Callable[[JobMachine, Any, float], None]] = {
    ev.Started: JobMachine._on_started,
    ev.ShardsListed: JobMachine._on_shards_listed,
    ev.JobFailed: JobMachine._on_job_failed,
    ev.WorkerRegistered: JobMachine._on_registered,
    ev.ModelDescribed: JobMachine._on_described,
    ev.Heartbeat: JobMachine._on_heartbeat,
    ev.TasksLeased: JobMachine._on_leased,
    ev.TaskReported: JobMachine._on_reported,
    ev.ReportRefused: JobMachine._on_refused,
    ev.TaskReturned: JobMachine._on_returned,
    ev.LeasesTaken: JobMachine._on_taken,
    ev.WorkerFailed: JobMachine._on_worker_failed,
    ev.ProcessChanged: JobMachine._on_process,
    ev.Directed: JobMachine._on_directed,
    ev.GoingDown: JobMachine._on_going_down,
    ev.ServerSeen: JobMachine._on_server_seen,
    ev.ServerSilent: JobMachine._on_server_silent,
    ev.ServersRestored: JobMachine._on_restored,
    ev.RestoreFailed: JobMachine._on_restore_failed,
    ev.Pinned: JobMachine._on_pinned,
    ev.Saved: JobMachine._on_saved,
    ev.SaveFailed: JobMachine._on_save_failed,
    ev.TracesFailed: JobMachine._on_traces_failed,
    ev.TalliesRead: JobMachine._on_tallies,
    ev.StoreChanged: JobMachine._on_store_changed,
    ev.Tick: JobMachine._on_tick,
}
