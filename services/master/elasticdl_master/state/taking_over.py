"""The beginning: of a job, or of a master's rule over a job that another one left."""

from __future__ import annotations

import json
from typing import Any

from elasticdl_core.job import JobState, JobType
from elasticdl_core.ports.launcher import ProcessStatus, Role
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.queue.port import Contents
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.accounts import Account
from elasticdl_master.state.advancing import Advancing
from elasticdl_master.state.checkpoints import FINAL
from elasticdl_master.state.evaluations import Evaluation, Stage
from elasticdl_master.state.ledger import Round
from elasticdl_master.state.work import Work

_ENDINGS = {"cancel": JobState.CANCELLED, "suspend": JobState.SUSPENDED, "evict": JobState.QUEUED}


class TakingOver(Advancing):
    """Finds out what is true, from what the store, the ledger and the launcher say."""

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
            self._known_done = self._records_known()
            self._trusts_ledger = contents is None and setup.plan is not None and originals
        if not self.work.listed:
            self._begin_listing()
        self._adopt_accounts(contents)
        self._emit(do.RebuildQueue(self.contents()))
        self._started = True
        self._on_directed(ev.Directed(setup.desired, setup.target_workers), now)

    def _records_known(self) -> int:
        """How many records an earlier master knew to be done: by the queue, or else by the durable marks."""
        setup = self.setup
        if setup.plan is None or setup.spec.type is not JobType.TRAINING:
            return 0
        before = Work(setup.spec)
        before.main.adopt(setup.plan)
        before.adopt_done(setup.contents.done if setup.contents is not None else setup.done)
        return before.records_done

    def _adopt_accounts(self, contents: Contents | None) -> None:
        """What the ledger says of tasks' records, and over it what the queue says, which is the newer word."""
        book = self.work.accounts
        book.replace(self.setup.accounts)
        for task in contents.done if contents is not None else ():
            if task.type is self.work.main_type and self.work.uses_rounds:
                result = contents.results.get(task, b"") if contents is not None else b""
                changes = book.record(task, Account.of_result(result))
                if changes:
                    self._emit(do.MarkDone([], changes))

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
                damaged = self.setup.plan.get("validation_damaged")
                validation.adopt(
                    {**self.setup.plan, "shards": listed, "rounds": 1, "shuffle": False, "damaged": damaged}
                )

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

    def _single_done(self, task: TaskId, result: bytes, now: float) -> None:
        self.work.singles.discard(task)
        self.work.singles_done.add(task)
        if task.type is TaskType.EXPORT:
            self._post_artifacts(result)
            self.exported = True
        elif task.type is TaskType.EVALUATION_SUMMARY:
            self._summarised(task, result, now)

    def _on_going_down(self, event: ev.GoingDown, now: float) -> None:
        if self._started and self.ending is None:
            self._tell("going_down", "the cluster goes down: workers leave, and the job is saved")
            self._end(None, "the cluster goes down", now=now)

    def _on_directed(self, event: ev.Directed, now: float) -> None:
        if event.target_workers != self.target_workers:
            self.throughput.target_changed(self.target_workers, event.target_workers, now)
            self._tell("scale", f"workers: {self.target_workers} -> {event.target_workers}")
            self.target_workers = event.target_workers
        wanted = _ENDINGS.get(event.desired)
        if wanted is not None and (self.ending is None or self.ending.yields_to(wanted)):
            self._end(wanted, f"{event.desired} was asked for", now=now)
