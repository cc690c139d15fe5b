"""The state machine of a job: every decision of the master, and no input or output.

``handle(event, now)`` takes what happened and returns what to do. ``now`` is any monotonic clock in seconds.

The machine owns *parts*. Each has a state and rules of its own, and ``handle(event, now)`` that returns what to do;
a part may use another's verbs and read what it publishes, never what is private to it. Which parts an event goes to,
and in which order, is the table in ``JobMachine._route``; what is looked at after each event is the list in
``JobMachine._advance``.

A job works through epochs. When all is done, or training was stopped for a reason, it *closes* (``state.closing``):
last evaluation, last checkpoint, export, audit. Then, or when it is told to stop, or when it cannot go on, it *ends*
(``state.ending``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from elasticdl_core.job import JobState
from elasticdl_core.json_numbers import to_json
from elasticdl_core.task import Lease, LeaseToken, Task, TaskId, TaskType
from elasticdl_master.queue.port import Contents
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.auditing import RecordAudit
from elasticdl_master.state.checkpoints import Checkpoints
from elasticdl_master.state.closing import Closing
from elasticdl_master.state.conditions import DegradedConditions
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.ending import JobEnding
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.gate import TrainingGate
from elasticdl_master.state.group import Group
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.listing import ShardListing
from elasticdl_master.state.recovery import ServerRecovery
from elasticdl_master.state.reports import TrainingReports
from elasticdl_master.state.schedule import EpochSequence
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.supervision import WorkerSupervisor
from elasticdl_master.state.takeover import Takeover
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.version import ModelVersion

_STAFFED = (ev.TasksLeased, ev.TaskReported, ev.MemberMet, ev.GroupLooked)
"""What leaves the number of workers as it was; it comes too often for a look at all workers each time."""
_ROUTINE = (ev.TasksLeased, ev.TaskReported, ev.WorkerHeartbeat, ev.Tick)
_ROUTINE_ANSWERS = (do.MarkDone, do.PostLosses)
"""What happens a thousand times a second and changes nothing that the next master could not find out itself."""


class Part(Protocol):
    """A part of the machine."""

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes an event in; returns what to do about it, in order."""
        ...


class JobMachine:
    """All decisions about one job.

    Args:
        setup: what was found.
        limits: times and budgets.
    """

    def __init__(self, setup: Setup, limits: Limits | None = None) -> None:
        job = JobContext.of(setup, limits or Limits())
        self.setup, self.spec, self.limits = setup, setup.spec, job.limits
        self.lifecycle, self.plans, self.single_tasks = job.lifecycle, job.plans, job.single_tasks
        self.workers, self.servers, self.failures = job.workers, job.servers, job.failures
        self.lives = job.lives
        self.throughput = Throughput(setup.measured)
        # The parts: each knows those that it is given, all of them before it.
        self.conditions = DegradedConditions()
        self.group = Group(job)
        self.version = version = ModelVersion(job)
        self.reports = TrainingReports(job)
        self.supervisor = WorkerSupervisor(job, self.throughput, self.conditions)
        self.epochs = epochs = Epochs(job.plans)
        self.listing = ShardListing(job, epochs)
        self.checkpoints = checkpoints = Checkpoints(job, epochs, version)
        self.evaluations = evaluations = Evaluations(job, epochs, version, checkpoints)
        self.gate = gate = TrainingGate(job, epochs, evaluations, checkpoints, version)
        self.schedule = schedule = EpochSequence(job, epochs, evaluations, gate, version)
        self.audit = RecordAudit(job, epochs, evaluations)
        self.closing = closing = Closing(job, epochs, evaluations, schedule, gate, checkpoints, self.audit, version)
        self.recovery = ServerRecovery(job, epochs, evaluations, schedule, closing, checkpoints, version)
        self.ending = JobEnding(job, epochs, checkpoints)
        self.takeover = Takeover(
            job, epochs, evaluations, gate, schedule, closing, self.recovery, self.listing, self.group
        )
        self._started = False
        self._routes = self._route()

    def _route(self) -> Mapping[type, tuple[Part, ...]]:
        """The parts that an event goes to, in this order."""
        return {
            ev.Started: (self.takeover,),
            ev.Directed: (self.supervisor, self.ending),
            ev.GoingDown: (self.ending,),
            ev.JobFailed: (self.ending,),
            ev.Tick: (self.supervisor,),
            # a group
            ev.MemberMet: (self.group,),
            ev.GroupLooked: (self.group, self.schedule),
            ev.GroupAllowed: (self.group,),
            ev.GroupVoided: (self.group,),
            # work
            ev.ShardsListed: (self.listing,),
            ev.TasksLeased: (self.gate,),
            ev.TaskReported: (
                self.supervisor,
                self.version,
                self.epochs,
                self.recovery,
                self.listing,
                self.evaluations,
                self.gate,
                self.closing,
            ),
            ev.TaskReturned: (self.supervisor, self.epochs, self.version, self.gate),
            ev.LeasesTaken: (self.supervisor, self.gate),
            # workers
            ev.WorkerRegistered: (self.supervisor,),
            ev.ModelDescribed: (self.gate,),
            ev.WorkerHeartbeat: (self.supervisor, self.reports, self.version),
            ev.WorkerFailed: (self.supervisor, self.gate),
            ev.ProcessChanged: (self.supervisor, self.group, self.recovery, self.conditions),
            # parameter servers
            ev.ServerSeen: (self.recovery, self.version),
            ev.ServerSilent: (self.recovery,),
            ev.ServersRestored: (self.recovery,),
            ev.RestoreFailed: (self.recovery,),
            ev.GroupPaused: (self.version,),
            ev.Pinned: (self.version, self.evaluations, self.schedule),
            ev.RoundFlushed: (self.schedule,),
            ev.Saved: (self.version, self.checkpoints, self.evaluations, self.closing),
            ev.SaveFailed: (self.checkpoints,),
            ev.TalliesRead: (self.closing,),
            # what is in the way
            ev.StoreChanged: (self.conditions,),
            ev.Contradicted: (self.conditions,),
            ev.TracesFailed: (self.conditions,),
        }

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes an event in; returns what to do about it, in order."""
        out: list[do.Instruction] = []
        for part in self._routes[type(event)]:
            out += part.handle(event, now)
        if isinstance(event, ev.Started):
            self._started = True
            self.lives.begin(self.setup.processes)
            wished = ev.Directed(self.setup.desired, self.setup.target_workers)
            for part in self._routes[ev.Directed]:
                out += part.handle(wished, now)
        if self._started and not self.finished:
            out += self._advance(now, staffed=isinstance(event, _STAFFED))
            if not isinstance(event, _ROUTINE) or not all(isinstance(one, _ROUTINE_ANSWERS) for one in out):
                out += self.takeover.leave_record()
        return out + self.lives.take()

    def _advance(self, now: float, *, staffed: bool) -> list[do.Instruction]:
        """Decides what comes next, whenever anything has happened."""
        if self.lifecycle.decision is not None:
            return self.ending.advance(self.lifecycle.decision, now)
        out = [] if staffed else self.supervisor.reconcile(now)
        out += self.recovery.advance(now)
        if not self.servers.ready or self.lifecycle.ending:
            return out
        if self.lifecycle.state is JobState.STARTING and self.workers.leases():
            out += self.lifecycle.start_running("the first worker is at work")
        for step in (
            self.gate.stop_at_limit,
            self.evaluations.begin_due,
            self.checkpoints.save_due,
            self.schedule.advance,
            self.evaluations.merge_complete,
            self.evaluations.keep,
            self.gate.hold,
        ):
            out += step(now)
        return out if self.lifecycle.ending else out + self.closing.advance(now)

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the job has ended, and nothing is left to do."""
        return self.ending.over

    def directive(self, owner: str) -> Directive:
        """The directive for a worker that asks for work or sends a heartbeat."""
        worker = self.workers.by_owner(owner)
        if self.lifecycle.decision is not None:
            return self.lifecycle.decision.directive
        if worker is None or not worker.staying:
            return Directive.DRAIN
        if not self._started or (not self.servers.ready and not self.listing.waits_for_worker):
            return Directive.WAIT
        return Directive.CONTINUE

    def note_told(self, owner: str, directive: Directive) -> None:
        """A worker was told something; if that is to go, its exit is as it should be."""
        worker = self.workers.by_owner(owner)
        if worker is not None:
            worker.finished |= directive is Directive.FINISHED
            worker.dismissed |= directive is Directive.DRAIN

    def task(self, lease: Lease) -> Task:
        """The task that a leased id stands for."""
        run = self.evaluations.of(lease.task)
        version = run.model_version if run is not None else -1
        data = to_json(self._payload(lease.task))
        payload = json.dumps(data, allow_nan=False) if data else ""
        reading = self.plans.reading(lease.task, max(1, len(self.workers.living)))
        shard, known = self.plans.shard_of(lease.task), self.plans.fingerprints(lease.task, reading)
        return Task(lease.task, shard, version, payload, reading, known)

    def _payload(self, task: TaskId) -> dict[str, Any]:
        run = self.evaluations.of(task)
        match task.type:
            case TaskType.EVALUATION | TaskType.EVALUATION_SUMMARY if run is not None:
                return run.payload(task)
            case TaskType.EXPORT:
                return self.closing.payload(task)
            case TaskType.LIST_SHARDS:
                return self.listing.payload(task)
        return {}

    def lacks(self, task: TaskId) -> bool:
        """Whether a task, or any record of it, is still to do."""
        run = self.evaluations.of(task)
        if task.type is self.plans.main_type and self.plans.with_epochs:
            ledger = self.epochs.ledger if task.epoch == self.epochs.number else None
        elif task.type is TaskType.EVALUATION:
            ledger = run.progress if run is not None else None
        else:
            return task in self.single_tasks.pending
        if ledger is None or not ledger.plan.holds(task):
            return False
        return any(rest.start < task.end and task.start < rest.end for rest in ledger.remaining([task.index]))

    def contents(self) -> Contents:
        """The tasks that the queue must hold, to rebuild it."""
        leases = [Lease(task, worker.owner, LeaseToken.parse(token)) for worker, token, task in self.workers.leases()]
        held = {lease.task for lease in leases}
        pending = [*sorted(self.single_tasks.pending), *self.evaluations.pending(), *self.epochs.pending()]
        done = [*sorted(self.single_tasks.done), *self.evaluations.done(), *self.epochs.done()]
        return Contents(
            tuple(task for task in pending if task not in held),
            tuple(leases),
            dict.fromkeys(done, ""),
            frozenset(self.failures.quarantined),
            self.epochs.results() | self.evaluations.results(),
            self.takeover.text,
        )
