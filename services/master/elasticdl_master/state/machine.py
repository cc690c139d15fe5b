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

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobState, JobType
from elasticdl_core.ports.launcher import ProcessStatus, Role
from elasticdl_core.task import Lease, LeaseToken, Task, TaskId, TaskType
from elasticdl_master.queue.port import Contents
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.checkpoints import FINAL, CheckpointBook
from elasticdl_master.state.ending import Directive, Ending
from elasticdl_master.state.evaluations import EarlyStopping, Evaluation, Stage, metrics_of
from elasticdl_master.state.failures import FailureBook
from elasticdl_master.state.ledger import Round
from elasticdl_master.state.servers import Phase, ServerPool
from elasticdl_master.state.settings import Limits
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.work import EXPORT_TASK, Work
from elasticdl_master.state.workers import Death, WorkerPool, describe_exit

_ENDINGS = {"cancel": JobState.CANCELLED, "suspend": JobState.SUSPENDED, "evict": JobState.QUEUED}
_EPOCH_STRIDE = 1_000
"""First incarnations of a master that does not know what earlier ones launched; keeps names of workers unique."""


class JobMachine:
    """All decisions about one job.

    Args:
        setup: what was found.
        limits: times and budgets.
    """

    def __init__(self, setup: Setup, limits: Limits | None = None) -> None:
        self.setup = setup
        self.spec = setup.spec
        self.limits = limits or Limits()
        self.work = Work(setup.spec)
        first = 0 if setup.epoch <= 1 or setup.contents is not None else setup.epoch * _EPOCH_STRIDE
        self.workers = WorkerPool(self.limits, setup.spec.worker_memory_mib, first)
        self.servers = ServerPool(
            setup.spec.num_ps, self.limits, setup.spec.ps_memory_mib, first, max(1, setup.epoch) * _EPOCH_STRIDE
        )
        training = setup.spec.type is JobType.TRAINING
        self.checkpoints = CheckpointBook(
            setup.spec.checkpoint_steps,
            setup.spec.keep_checkpoint_max,
            self.limits.recovery_s if training else 0.0,
            setup.manifests if training else (),
            setup.initial,
        )
        self.failures = FailureBook(self.limits)
        self.throughput = Throughput()
        self.ending: Ending | None = None
        self.state = setup.state
        self.target_workers = setup.target_workers
        self.version = 0
        self.metrics: dict[str, float] = {}
        self.loss: float | None = None
        self.description: dict[str, Any] = {}
        self.early_stopping: EarlyStopping | None = None
        self.exported = False
        self.final: dict[str, Any] | None = None
        self.evaluated = False
        self.store_trouble = ""
        self.save_trouble = ""
        self.duplicates = 0
        self.finished = False
        self._out: list[do.Instruction] = []
        self._started = False
        self._virgin = True
        self._trusts_ledger = False
        self._rolled_back = False
        self._number = setup.evaluations
        self._evaluated_epochs = set(setup.evaluated_epochs)
        self._evaluated_version = -1
        self._boundary: int | None = None
        self._closed_round = -1
        self._last_evaluation_begun = False
        self._quiet_until = 0.0
        self._retry_save_at = 0.0
        self._notes = ""
        self._plan_put = False
        self._forgettable: list[TaskId] = []

    # -- the door --------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes an event in; returns what to do about it, in order."""
        _HANDLERS[type(event)](self, event, now)
        if self._started and not self.finished:
            self._advance(now)
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

    @property
    def listing_by_worker(self) -> bool:
        """Whether a worker is to list the shards and has not done so."""
        return self.setup.lists_by_worker and not self.work.listed

    @property
    def restoring(self) -> bool:
        """Whether the PS will still get content from a checkpoint before anybody may use them."""
        return not self.servers.ready and (self.checkpoints.to_restore is not None or not self._virgin)

    def task(self, lease: Lease) -> Task:
        """What a leased id stands for."""
        shard = self.work.shard_of(lease.task)
        evaluation = self.work.evaluation_of(lease.task)
        version = evaluation.model_version if evaluation is not None else -1
        return Task(lease.task, shard, version, self._payload(lease.task, evaluation))

    def contents(self) -> Contents:
        """What the queue must hold, to rebuild it; leases live on for another full term."""
        leases = [
            Lease(task, worker.owner, LeaseToken.parse(token), self.limits.lease_s)
            for worker in self.workers.living
            for token, task in worker.leases.items()
        ]
        held = {lease.task for lease in leases}
        results = {task: data for one in self.work.evaluations.values() for task, data in one.results.items()}
        return Contents(
            tuple(task for task in self.work.pending() if task not in held),
            tuple(leases),
            dict.fromkeys(self.work.finished(), ""),
            frozenset(self.failures.quarantined),
            results,
            self._notes,
        )

    # -- start and take-over ---------------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started, now: float) -> None:
        setup, contents = self.setup, self.setup.contents
        for status in setup.processes:
            self._adopt_process(status, now)
        notes = json.loads(contents.notes) if contents is not None and contents.notes else {}
        if setup.plan is not None:
            self._adopt_plan()
        continues = bool(notes) and setup.plan is not None and self.servers.adopt(notes.get("servers", {}))
        if setup.spec.type is JobType.PREDICTION and setup.plan is not None:
            self.work.adopt_done([*setup.done, *(contents.done if contents is not None else ())])
        if continues and contents is not None:
            self._continue(notes, contents, now)
        else:
            self._virgin = not any(server.alive for server in self.servers.servers)
            originals = all(server.alive and server.incarnation == 0 for server in self.servers.servers)
            self._trusts_ledger = contents is None and setup.plan is not None and originals
        if not self.work.listed:
            self._begin_listing()
        self._emit(do.RebuildQueue(self.contents()))
        self._started = True
        self._on_directed(ev.Directed(setup.desired, setup.target_workers), now)

    def _adopt_process(self, status: ProcessStatus, now: float) -> None:
        if status.id.role is Role.WORKER:
            self.workers.process(status, now)
        elif status.id.role is Role.PS:
            self.servers.process(status, now)

    def _adopt_plan(self) -> None:
        assert self.setup.plan is not None
        self.work.main.adopt(self.setup.plan)
        self._plan_put = True
        validation = self.work.validation
        if validation is not None and validation is not self.work.main:
            listed = self.setup.plan.get("validation")
            if listed is not None:
                validation.adopt({**self.setup.plan, "shards": listed, "rounds": 1, "shuffle": False})

    def _continue(self, notes: dict[str, Any], contents: Contents, now: float) -> None:
        """The PS live on: what the store and the ledger say is done is done, evaluations and leases go on."""
        self._virgin = False
        self._rolled_back = bool(notes["rolled_back"])
        self.servers.generation = int(notes["generation"])
        self.servers.ever_lost = self._rolled_back
        done = [*contents.done, *(() if self._rolled_back else self.setup.done)]
        if int(notes["round"]) > 0:
            self.work.round = Round(self.work.main, int(notes["round"]))
        self.work.adopt_done(done)
        if self.work.round.number > 0:
            self.work.previous = Round(self.work.main, self.work.round.number - 1)
            for task in contents.done:
                if task.type is self.work.main_type and task.round == self.work.previous.number:
                    self.work.previous.mark(task)
        self.work.stopped = str(notes["stopped"])
        self.work.singles = {TaskId.parse(text) for text in notes["singles"]}
        self.work.singles_done = {TaskId.parse(text) for text in notes["singles_done"]}
        self.work.singles_done |= {task for task in contents.done if task in self.work.singles}
        self.exported, self.evaluated = bool(notes["exported"]), bool(notes["evaluated"])
        self._number = max(self._number, int(notes["number"]))
        self._evaluated_version = int(notes["evaluated_version"])
        self._closed_round, self._boundary = int(notes["closed_round"]), notes["boundary"]
        self._last_evaluation_begun = bool(notes["last_evaluation_begun"])
        self._evaluated_epochs |= set(notes["evaluated_epochs"])
        self.description = dict(notes["description"])
        self._take_callbacks()
        if self.early_stopping is not None and notes["early"] is not None:
            self.early_stopping.best, self.early_stopping.waited = notes["early"]
        self.final = next((dict(m) for m in self.checkpoints.manifests if m.get("kind") == FINAL), None)
        self.failures.quarantined = set(contents.quarantined)
        for data in notes["evaluations"]:
            self._revive_evaluation(data, contents)
        for lease in contents.doing:
            worker = self.workers.by_owner(lease.owner)
            if worker is not None and worker.staying:
                worker.leases[str(lease.token)] = lease.task
        for task in sorted(self.work.singles & self.work.singles_done):
            self._single_done(task, contents.results.get(task, b""), now)
        self._emit(do.MarkDone([task for task in contents.done if task.type is self.work.main_type]))

    def _revive_evaluation(self, data: dict[str, Any], contents: Contents) -> None:
        plan = self.work.validation
        if plan is None or not plan.listed:
            return
        one = Evaluation(
            int(data["number"]), int(data["training_epoch"]), bool(data["boundary"]), Round(plan, int(data["number"]))
        )
        one.stage, one.model_version = Stage(data["stage"]), int(data["model_version"])
        for task in contents.done:
            if task.type is TaskType.EVALUATION and task.round == one.number and plan.holds(task):
                one.progress.mark(task)
                one.results[task] = contents.results.get(task, b"")
        self.work.evaluations[one.number] = one
        if one.stage is Stage.PINNING:
            self._emit(do.Pin(one.number))

    def _begin_listing(self) -> None:
        if self.setup.lists_by_worker:
            plans = [self.work.main] if self.work.validation in (None, self.work.main) else [self.work.main, None]
            self.work.singles |= {TaskId(TaskType.LIST_SHARDS, 0, index, 0, 0) for index in range(len(plans))}
        else:
            self._emit(do.ListShards())

    # -- listing ---------------------------------------------------------------------------------------------------

    def _on_shards_listed(self, event: ev.ShardsListed, now: float) -> None:
        plan = self.work.plan_of(event.type)
        if plan is None or plan.listed:
            return
        indexes = plan.extend(event.shards)
        plan.listed = event.last
        if plan.listed and not plan.parts:
            self._fail(f"the {event.type} data holds no records", fix="check the path and the reader's parameters")
        elif plan is self.work.main and self.work.uses_rounds and indexes:
            order = plan.order(0, None if event.last and indexes.start == 0 else indexes)
            self._emit(do.AddTasks(self.work.round.remaining(order)))
        if self.work.listed and not self._plan_put and self.ending is None:
            self._plan_put = True
            mapping = self.work.main.to_mapping()
            if self.work.validation not in (None, self.work.main):
                assert self.work.validation is not None
                mapping["validation"] = self.work.validation.to_mapping()["shards"]
            self._emit(do.PutPlan(mapping))

    def _on_job_failed(self, event: ev.JobFailed, now: float) -> None:
        self._fail(event.message, fix=event.fix, traceback=event.traceback, kind=event.kind)

    # -- workers ---------------------------------------------------------------------------------------------------

    def _on_registered(self, event: ev.WorkerRegistered, now: float) -> None:
        self.workers.hello(event.index, event.incarnation, now)

    def _on_described(self, event: ev.ModelDescribed, now: float) -> None:
        first = not self.description
        self.description = dict(event.description)
        if first:
            self._take_callbacks()

    def _take_callbacks(self) -> None:
        early = (self.description.get("callbacks") or {}).get("early_stopping")
        self.early_stopping = EarlyStopping.from_mapping(early) if early else None

    def _on_heartbeat(self, event: ev.Heartbeat, now: float) -> None:
        worker = self.workers.heartbeat(event, now)
        if worker is None:
            return
        self.throughput.heartbeat(worker)
        if event.losses:
            self.loss = event.losses[-1][1]
            self._emit(do.PostLosses(tuple(event.losses)))
        self._saw_version(event.model_version, now)

    def _saw_version(self, version: int, now: float) -> None:
        if self.servers.ready and now >= self._quiet_until:
            self.version = max(self.version, version)

    def _on_leased(self, event: ev.TasksLeased, now: float) -> None:
        self.workers.leased(list(event.leases))
        for lease in event.leases:
            worker = self.workers.by_owner(lease.owner)
            if worker is not None and len(worker.leases) == 1:
                worker.last_progress = now

    def _on_worker_failed(self, event: ev.WorkerFailed, now: float) -> None:
        worker = self.workers.by_owner(event.owner)
        if worker is not None and event.token:
            worker.leases.pop(event.token, None)
        if self.ending is not None:
            return
        if event.kind == "infrastructure":
            self._tell("worker_trouble", f"{event.owner}: {event.message}")
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
        counts = culprit is not None and death in (Death.CRASHED, Death.OUT_OF_MEMORY)
        if culprit is not None and counts and self.failures.killed_worker(culprit):
            self.failures.quarantined.add(culprit)
            self._emit(do.Quarantine(culprit))
            self._fail(
                f"task {culprit} ended {self.limits.user_failures} workers; the last one, {words}",
                fix="look at the worker's log; run the model module with --local on this part of the data",
                crashed=worker.owner,
            )
            return
        why = self.workers.charge(death, now)
        if why:
            fix = (
                "raise worker_memory_mib, or lower minibatch_size"
                if death is Death.OUT_OF_MEMORY
                else "look at the worker's log"
            )
            self._fail(f"{why}; the last one, {words}", fix=fix, crashed=worker.owner)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _on_reported(self, event: ev.TaskReported, now: float) -> None:
        self.workers.settled(event.owner, event.token)
        self.servers.crashes = 0
        self._saw_version(event.model_version, now)
        task = event.task
        if task.type is self.work.main_type and self.work.uses_rounds:
            self._main_done(task)
            self._post_artifacts(event.result)
        elif task.type is TaskType.EVALUATION:
            self._evaluation_task_done(task, event.result)
        elif task in self.work.singles:
            self._single_done(task, event.result, now)

    def _main_done(self, task: TaskId) -> None:
        if task.round == self.work.round.number and self.work.main.holds(task):
            self.work.round.mark(task)
            self._emit(do.MarkDone([task]))

    def _on_refused(self, event: ev.ReportRefused, now: float) -> None:
        if event.task.type is TaskType.TRAINING:
            self.duplicates += max(0, event.records)

    def _on_returned(self, event: ev.TaskReturned, now: float) -> None:
        worker = self.workers.by_owner(event.owner)
        if worker is not None:
            worker.leases.pop(event.token, None)
        if event.position > event.task.start and event.task.type is self.work.main_type and self.work.uses_rounds:
            self._main_done(event.task.front_until(min(event.position, event.task.end)))

    def _on_taken(self, event: ev.LeasesTaken, now: float) -> None:
        for lease in event.leases:
            if lease.task.type is TaskType.TRAINING:
                self.duplicates += self.workers.dropped(lease.owner, str(lease.token))
            else:
                worker = self.workers.by_owner(lease.owner)
                if worker is not None:
                    worker.leases.pop(str(lease.token), None)

    def _single_done(self, task: TaskId, result: bytes, now: float) -> None:
        self.work.singles.discard(task)
        self.work.singles_done.add(task)
        if task.type is TaskType.EXPORT:
            self._post_artifacts(result)
            self.exported = True
        elif task.type is TaskType.EVALUATION_SUMMARY:
            self._summarised(task, result, now)

    def _post_artifacts(self, result: bytes) -> None:
        try:
            files = json.loads(result).get("files", []) if result else []
        except (ValueError, AttributeError):
            return
        for entry in files:
            self._emit(
                do.PostArtifact(
                    str(entry.get("name", "")),
                    str(entry.get("path") or entry.get("name", "")),
                    int(entry.get("size", 0)),
                    str(entry.get("sha256", "")),
                )
            )

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
        return json.dumps(data) if data else ""

    @property
    def formats(self) -> list[str]:
        """The formats to export to."""
        return [part for part in self.spec.export_formats.split(",") if part]

    def data_of(self, purpose: TaskType) -> str:
        """The data of a type of work, as the user gave it."""
        return {
            TaskType.TRAINING: self.spec.training_data,
            TaskType.EVALUATION: self.spec.validation_data,
            TaskType.PREDICTION: self.spec.prediction_data,
        }[purpose]

    # -- evaluations -----------------------------------------------------------------------------------------------

    def _begin_evaluation(self, *, boundary: bool, training_epoch: int) -> Evaluation:
        assert self.work.validation is not None
        self._number += 1
        one = Evaluation(self._number, training_epoch, boundary, Round(self.work.validation, self._number))
        self.work.evaluations[one.number] = one
        self._evaluated_version = self.version
        self._emit(do.Pin(one.number))
        return one

    def _on_pinned(self, event: ev.Pinned, now: float) -> None:
        one = self.work.evaluations.get(event.number)
        if one is None or one.stage is not Stage.PINNING:
            self._emit(do.Unpin(event.number))
            return
        one.stage, one.model_version = Stage.RUNNING, event.version
        self._evaluated_version = max(self._evaluated_version, event.version)
        plan = one.progress.plan
        self._emit(do.AddTasks(one.progress.remaining(plan.order(one.number)), front=True))
        if self._boundary == event.number:
            self._boundary = None

    def _evaluation_task_done(self, task: TaskId, result: bytes) -> None:
        one = self.work.evaluation_of(task)
        if one is None or not one.progress.plan.holds(task):
            return
        one.progress.mark(task)
        one.results[task] = result

    def _advance_evaluations(self) -> None:
        for one in list(self.work.evaluations.values()):
            if one.stage is not Stage.RUNNING or not one.progress.complete:
                continue
            try:
                one.merged()
            except UserCodeError as error:
                self._fail(error.message, fix=error.fix, kind="user_code")
                return
            one.stage = Stage.SUMMARY
            self.work.singles.add(one.summary)
            self._emit(do.AddTasks([one.summary], front=True))

    def _summarised(self, task: TaskId, result: bytes, now: float) -> None:
        one = self.work.evaluations.pop(task.round, None)
        if one is None:
            return
        self._emit(do.Unpin(one.number))
        # Replays of reports may still come for a while: forget the evaluation before this one.
        if self._forgettable:
            self._emit(do.ForgetTasks(self._forgettable))
        self._forgettable = one.progress.done()
        try:
            metrics = metrics_of(result)
        except UserCodeError as error:
            self._fail(error.message, fix=error.fix, kind="user_code")
            return
        self.metrics, self.evaluated = metrics, True
        if one.boundary:
            self._evaluated_epochs.add(one.training_epoch)
        self._emit(do.PostEvaluation(one.number, one.model_version, one.training_epoch, metrics))
        if self.early_stopping is not None and self.spec.type is JobType.TRAINING:
            why = self.early_stopping.observe(metrics)
            if why and not self.work.trained:
                self._stop_training(why, now)

    def _stop_training(self, why: str, now: float) -> None:
        self.work.stopped = why
        for worker in self.workers.living:
            for token, task in list(worker.leases.items()):
                if task.type is TaskType.TRAINING:
                    worker.leases.pop(token)
        # Workers hear with their next heartbeat that their leases are gone; until then they may still push.
        self._retry_save_at = now + 2.0 * self.limits.heartbeat_s
        self._tell("training_stopped", why)
        self._emit(do.RebuildQueue(self.contents()))

    # -- parameter servers -----------------------------------------------------------------------------------------

    def _on_server_seen(self, event: ev.ServerSeen, now: float) -> None:
        self.servers.seen(
            event.index,
            event.incarnation,
            initialized=event.initialized,
            version=event.version,
            rows=event.rows,
            size=event.bytes,
        )
        if event.index == 0 and self.servers.servers[0].incarnation == event.incarnation:
            self._saw_version(event.version, now)

    def _server_lost(self, status: ProcessStatus, now: float) -> None:
        words = f"ps-{status.id.index}.{status.id.incarnation} {describe_exit(status)}"
        why = self.servers.lost(self.servers.servers[status.id.index], status, now)
        self._tell("ps_lost", words, exit_code=status.exit_code, reason=status.reason)
        if why:
            self._fail(f"{why}; the last one, {words}", fix="look at the log of the PS; raise ps_memory_mib")
            return
        self._virgin = False
        self._trusts_ledger = False
        self.servers.restart()

    def _advance_servers(self, now: float) -> None:
        for one in self.servers.reconcile(now):
            self._emit(one)
        if self.servers.phase is not Phase.STARTING or not self.servers.all_answer:
            return
        initialized = [server.initialized for server in self.servers.servers]
        if self._trusts_ledger and all(initialized):
            # Redis is lost, the PS are not, and never were: the durable done-marks say what they contain.
            self.work.adopt_done(self.setup.done)
            self._virgin = False
            self._serve(now)
            return
        manifest = self.checkpoints.to_restore
        if manifest is not None:
            if self._own(manifest) and not self.work.main.listed:
                return
            self.servers.phase = Phase.RESTORING
            self._emit(do.RestoreServers(manifest))
        elif any(initialized) and not self._virgin:
            self._start_over(now)
        else:
            self._roll_back(None, now)

    def _own(self, manifest: Any) -> bool:
        return self.spec.type is JobType.TRAINING and any(
            one["directory"] == manifest["directory"] for one in self.checkpoints.manifests
        )

    def _start_over(self, now: float) -> None:
        """Nothing was saved yet: every PS and every worker begins anew."""
        self._tell("start_over", "a PS was lost before the first checkpoint: training starts over")
        for one in self.servers.wipe():
            self._emit(one)
        for worker in self.workers.living:
            if worker.staying:
                self._out += self.workers.stop(worker, self.limits.leave_s)
        self._virgin = True

    def _on_restored(self, event: ev.ServersRestored, now: float) -> None:
        manifest = self.checkpoints.to_restore
        if self.servers.phase is not Phase.RESTORING or manifest is None:
            return
        if manifest["directory"] != event.directory:
            self.servers.phase = Phase.STARTING
            return
        self.version = event.version
        self._quiet_until = now + 2.0 * self.limits.heartbeat_s
        self._roll_back(manifest, now)
        for server in self.servers.servers:
            server.initialized, server.version = True, event.version

    def _on_restore_failed(self, event: ev.RestoreFailed, now: float) -> None:
        if self.servers.phase is not Phase.RESTORING:
            return
        initial = self.checkpoints.initial
        self._tell("checkpoint_refused", f"checkpoint {event.directory}: {event.message}")
        if initial is not None and initial["directory"] == event.directory:
            self._fail(
                f"cannot start from checkpoint {event.directory}: {event.message}",
                fix="give another checkpoint_dir_for_init",
                kind="data",
            )
            return
        self.checkpoints.refuse(event.directory)
        self.servers.phase = Phase.STARTING
        self._virgin = False

    def _roll_back(self, manifest: Any, now: float) -> None:
        """The PS hold exactly a checkpoint, or nothing: so does the ledger, and what came after is to do again."""
        if self.spec.type is JobType.TRAINING:
            snapshot = manifest["done"] if manifest is not None and self._own(manifest) else None
            again = self.work.roll_back(snapshot)
            # Durable done-marks are never taken back: from now on they say more than the PS hold.
            self._rolled_back = self._rolled_back or again > 0 or bool(self.setup.done)
            if again:
                self.duplicates += again
                self._tell("rolled_back", f"{again} records after the last checkpoint are processed again")
        self._serve(now)

    def _serve(self, now: float) -> None:
        lost = {one.training_epoch for one in self.work.evaluations.values() if one.boundary}
        for one in self.work.evaluations.values():
            self.work.singles.discard(one.summary)
        self.work.evaluations.clear()
        for worker in self.workers.living:
            kept = {token: task for token, task in worker.leases.items() if task.type is TaskType.LIST_SHARDS}
            worker.leases = kept
        self._boundary, self._closed_round, self._last_evaluation_begun = None, -1, False
        self.servers.phase = Phase.READY
        self.workers.spare(now)
        self._emit(do.RebuildQueue(self.contents()))
        number, validation = self.work.round.number, self.work.validation
        if self.spec.type is JobType.TRAINING and validation is not None and validation.listed:
            for epoch in sorted((lost | {number}) - self._evaluated_epochs - {0}):
                if epoch <= number:
                    self._begin_evaluation(boundary=True, training_epoch=epoch)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def begin_save(self, kind: str, now: float) -> None:
        """Asks for a checkpoint that contains at least what is done now."""
        self.checkpoints.begin(kind, now)
        self._emit(do.Save(kind, self.work.snapshot(), self.work.rounds_done, self.work.records_done))

    def _on_saved(self, event: ev.Saved, now: float) -> None:
        self.save_trouble = ""
        for old in self.checkpoints.committed(event.manifest, now):
            self._emit(do.Prune(old, replaced=old["version"] == event.manifest["version"]))
        if event.kind == FINAL and self.work.trained:
            self._finalise(dict(event.manifest))

    def _on_save_failed(self, event: ev.SaveFailed, now: float) -> None:
        self.checkpoints.failed(now)
        self.save_trouble = event.message
        self._retry_save_at = now + 5.0
        self._tell("checkpoint_failed", f"no checkpoint: {event.message}")

    def _finalise(self, manifest: dict[str, Any]) -> None:
        self.final = manifest
        if self.formats and not self.exported and EXPORT_TASK not in self.work.singles:
            self.work.singles.add(EXPORT_TASK)
            self._emit(do.AddTasks([EXPORT_TASK], front=True))

    # -- wishes ----------------------------------------------------------------------------------------------------

    def _on_directed(self, event: ev.Directed, now: float) -> None:
        if event.target_workers != self.target_workers:
            self.throughput.target_changed(self.target_workers, event.target_workers, now)
            self._tell("scale", f"workers: {self.target_workers} -> {event.target_workers}")
            self.target_workers = event.target_workers
        wanted = _ENDINGS.get(event.desired)
        if wanted is not None and (self.ending is None or self.ending.yields_to(wanted)):
            self._end(wanted, f"{event.desired} was asked for", now=now)

    def _on_store_changed(self, event: ev.StoreChanged, now: float) -> None:
        self.store_trouble = event.reason

    def _on_tick(self, event: ev.Tick, now: float) -> None:
        self.throughput.tick(self.workers, now)
        if self.ending is not None:
            return
        for worker, reason in self.workers.overdue(now, watch=self.servers.ready and not self.store_trouble):
            if reason:
                worker.stuck = True
                self._tell("worker_stuck", f"{worker.owner} {reason}; it is replaced")
            self._out += self.workers.stop(worker, self.limits.leave_s)

    # -- going on --------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self.ending is not None:
            self.finished = self.ending.advance(self, now)
            return
        self._out += self.workers.reconcile(self.target_workers, now)
        self._advance_servers(now)
        if not self.servers.ready or self.ending is not None:
            return
        if self.state is JobState.STARTING and self.workers.running:
            self.state = JobState.RUNNING
            self._emit(do.SetState(JobState.RUNNING, "the first worker is at work"))
        self._check_steps(now)
        self._advance_rounds()
        self._advance_evaluations()
        if self.ending is None:
            self._advance_closing(now)

    def _check_steps(self, now: float) -> None:
        if self.spec.type is not JobType.TRAINING:
            return
        limits = [self.spec.max_steps, int((self.description.get("callbacks") or {}).get("max_steps") or 0)]
        limit = min((one for one in limits if one), default=0)
        if limit and self.version >= limit and not self.work.trained:
            self._stop_training(f"max_steps reached: {limit} updates", now)
        every, validation = self.spec.evaluation_steps, self.work.validation
        due = every and self.version // every > max(0, self._evaluated_version) // every
        if due and not self.work.trained and not self.work.evaluations and validation and validation.listed:
            self._begin_evaluation(boundary=False, training_epoch=self.work.rounds_done)
        kind = self.checkpoints.due(self.version, now)
        ready = self.servers.initialized and self.work.main.listed and now >= self._retry_save_at
        if kind and ready and not self.work.trained:
            self.begin_save(kind, now)

    def _advance_rounds(self) -> None:
        work = self.work
        if not work.uses_rounds or work.stopped or not work.round.complete or self._boundary is not None:
            return
        validation = work.validation if self.spec.type is JobType.TRAINING else None
        if self._closed_round != work.round.number:
            if validation is not None and not validation.listed:
                return
            self._closed_round = work.round.number
            if self.spec.type is JobType.TRAINING and not self.spec.use_async:
                self._emit(do.FlushRound())
            if validation is not None:
                one = self._begin_evaluation(boundary=True, training_epoch=work.round.number + 1)
                self._boundary = one.number
                return
        if work.round.number + 1 < work.main.rounds:
            forgotten = work.next_round()
            if forgotten:
                self._emit(do.ForgetTasks(forgotten))
            self._emit(do.AddTasks(work.todo()))

    def _advance_closing(self, now: float) -> None:
        work = self.work
        if self.spec.type is JobType.EVALUATION:
            if work.main.listed and self.servers.initialized and not work.evaluations and not self.evaluated:
                self._begin_evaluation(boundary=True, training_epoch=0)
            if self.evaluated and not work.evaluations:
                self._succeed(now)
            return
        if not work.trained or self._boundary is not None:
            return
        if self.spec.type is JobType.PREDICTION:
            self._succeed(now)
            return
        if now < self._retry_save_at:
            return
        if work.stopped and work.validation is not None and not self._last_evaluation_begun:
            self._last_evaluation_begun = True
            if self._evaluated_version != self.version and work.validation.listed:
                self._begin_evaluation(boundary=True, training_epoch=work.rounds_done)
        if self.final is None and not self.checkpoints.saving:
            self.begin_save(FINAL, now)
        if self.final is not None:
            self._finalise(self.final)
            if (self.exported or not self.formats) and not work.evaluations and not self.checkpoints.saving:
                self._succeed(now)

    def _succeed(self, now: float) -> None:
        if self.state is JobState.STARTING:
            self.state = JobState.RUNNING
            self._emit(do.SetState(JobState.RUNNING, "all work is done already"))
        self._end(JobState.SUCCEEDED, self.work.stopped or "every record was processed", now=now)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _fail(
        self,
        message: str,
        *,
        fix: str = "",
        traceback: str = "",
        kind: str = "",
        where: str = "",
        crashed: str = "",
    ) -> None:
        if self.ending is not None and self.ending.to is not JobState.SUCCEEDED:
            return
        detail = {"message": message, "fix": fix, "traceback": traceback, "kind": kind, "where": where}
        self._end(JobState.FAILED, message, {key: value for key, value in detail.items() if value}, crashed)

    def _end(
        self,
        to: JobState,
        reason: str,
        detail: dict[str, Any] | None = None,
        crashed: str = "",
        now: float | None = None,
    ) -> None:
        self.ending = Ending(to, reason, detail or {}, crashed)

    def emit(self, *instructions: do.Instruction) -> None:
        """Adds instructions to what this event leads to; for the parts of the machine."""
        self._out += instructions

    def _emit(self, instruction: do.Instruction) -> None:
        self._out.append(instruction)

    def _tell(self, kind: str, message: str, **detail: Any) -> None:
        known = {key: value for key, value in detail.items() if value not in (None, "")}
        self._emit(do.PostEvent(kind, message, known))

    def _note(self) -> None:
        """Keeps for the next master what it could not know otherwise."""
        early = self.early_stopping
        notes = {
            "servers": {str(s.index): s.incarnation for s in self.servers.servers} if self.servers.ready else {},
            "generation": self.servers.generation,
            "rolled_back": self._rolled_back,
            "round": self.work.round.number,
            "stopped": self.work.stopped,
            "singles": sorted(str(task) for task in self.work.singles),
            "singles_done": sorted(str(task) for task in self.work.singles_done),
            "exported": self.exported,
            "evaluated": self.evaluated,
            "number": self._number,
            "evaluated_version": self._evaluated_version,
            "closed_round": self._closed_round,
            "boundary": self._boundary,
            "last_evaluation_begun": self._last_evaluation_begun,
            "evaluated_epochs": sorted(self._evaluated_epochs),
            "description": self.description,
            "early": [early.best, early.waited] if early is not None else None,
            "evaluations": [one.to_mapping() for one in self.work.evaluations.values()],
        }
        text = json.dumps(notes, sort_keys=True)
        if text != self._notes:
            self._notes = text
            self._emit(do.Note(text))


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
    ev.ServerSeen: JobMachine._on_server_seen,
    ev.ServersRestored: JobMachine._on_restored,
    ev.RestoreFailed: JobMachine._on_restore_failed,
    ev.Pinned: JobMachine._on_pinned,
    ev.Saved: JobMachine._on_saved,
    ev.SaveFailed: JobMachine._on_save_failed,
    ev.StoreChanged: JobMachine._on_store_changed,
    ev.Tick: JobMachine._on_tick,
}
