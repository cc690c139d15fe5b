"""The beginning: of a job, or of a master's rule over a job that another one left."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobType
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.task import TaskId
from elasticdl_master.state import events as ev
from elasticdl_master.state.closing import Closing
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.gate import TrainingGate
from elasticdl_master.state.group import Group
from elasticdl_master.state.instructions import Instruction, MarkDone, Note, RebuildQueue, tell
from elasticdl_master.state.listing import ShardListing
from elasticdl_master.state.plan import JobPlans
from elasticdl_master.state.record import TakeoverRecord
from elasticdl_master.state.recovery import ServerRecovery
from elasticdl_master.state.schedule import EpochSequence


class Takeover:
    """Finds out what is true, from what store, ledger and launcher say, and leaves a record to the next master.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.
        gate: says when training tasks may be leased, and when training is over.
        schedule: goes from epoch to epoch.
        closing: closes a job whose work is done.
        recovery: knows what the PS contain.
        listing: has the shards listed.
        group: the members, of a job that trains by AllReduce.

    Attributes:
        text: the record as it was left last.
    """

    def __init__(
        self,
        job: JobContext,
        epochs: Epochs,
        evaluations: Evaluations,
        gate: TrainingGate,
        schedule: EpochSequence,
        closing: Closing,
        recovery: ServerRecovery,
        listing: ShardListing,
        group: Group,
    ) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self._gate = gate
        self._schedule = schedule
        self._closing = closing
        self._recovery = recovery
        self._listing = listing
        self._group = group
        self.text = ""

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Begins, when all is found."""
        return self._start(now) if isinstance(event, ev.Started) else []

    # -- what the next master is left ------------------------------------------------------------------------------

    def leave_record(self) -> list[Instruction]:
        """Leaves a record to the next master, if it would differ from the last one."""
        text = self._record().to_text()
        if text == self.text:
            return []
        self.text = text
        return [Note(text)]

    def _record(self) -> TakeoverRecord:
        servers, early = self._job.servers, self._gate.rules.early_stopping
        return TakeoverRecord(
            servers={one.index: one.incarnation for one in servers.servers} if servers.ready else {},
            generation=servers.generation,
            rolled_back=self._recovery.rolled_back,
            epoch=self._epochs.number,
            closed_epoch=self._schedule.closed_epoch,
            awaited_pin=self._schedule.awaited_pin,
            stopped=self._epochs.stopped,
            single_tasks=tuple(sorted(self._job.single_tasks.pending)),
            single_tasks_done=tuple(sorted(self._job.single_tasks.done)),
            exported=self._closing.exported,
            last_evaluation_begun=self._closing.last_evaluation_begun,
            evaluations=tuple(run.to_record() for run in self._evaluations.running.values()),
            evaluation_number=self._evaluations.latest_number,
            evaluated_version=self._evaluations.latest_version,
            evaluated_epochs=tuple(sorted(self._evaluations.epochs_evaluated)),
            evaluated=self._evaluations.published,
            description=self._gate.description,
            best=early.best if early is not None else None,
            waited=early.waited if early is not None else 0,
            group=self._group.record(),
            group_incarnation=servers.servers[0].incarnation if self._job.spec.by_group else -1,
        )

    # -- what this one was left ------------------------------------------------------------------------------------

    def _start(self, now: float) -> list[Instruction]:
        setup, results = self._job.setup, self._results()
        for status in setup.processes:
            if status.id.role is Role.WORKER:
                self._job.workers.process(status, now)
            elif status.id.role is Role.PS:
                self._job.servers.process(status, now)
        if setup.plan is not None:
            self._listing.adopt(setup.plan)
        record, out = self._read_record()
        if record is not None:
            self._find_group(record, now)
        if setup.spec.type is JobType.PREDICTION and setup.plan is not None:
            self._epochs.adopt_done([*setup.done, *results])
        if record is not None and setup.plan is not None and self._job.servers.adopt(record.servers):
            out += self._go_on(record, results, now)
        else:
            ledger_alone = setup.contents is None and setup.plan is not None
            self._recovery.find_servers(self._known(), ledger_alone=ledger_alone)
        out += self._listing.begin()
        out += self._epochs.adopt_accounts(setup.accounts, results)
        return [*out, RebuildQueue()]

    def _find_group(self, record: TakeoverRecord, now: float) -> None:
        """The group lives if any of its members does: then it is the PS that it was."""
        living = {worker.owner for worker in self._job.workers.living}
        if not living & set(record.group.get("members", ())):
            return
        process = ProcessId("", Role.PS, 0, record.group_incarnation)
        self._job.servers.process(ProcessStatus(process, ProcessState.RUNNING), now)
        self._group.restore(record.group, now)

    def _results(self) -> dict[TaskId, bytes]:
        """The done tasks that the queue knows, with what was reported of each."""
        contents = self._job.setup.contents
        return {task: contents.results.get(task, b"") for task in contents.done} if contents is not None else {}

    def _read_record(self) -> tuple[TakeoverRecord | None, list[Instruction]]:
        contents = self._job.setup.contents
        if contents is None or not contents.notes:
            return None, []
        try:
            return TakeoverRecord.from_text(contents.notes), []
        except InvalidInputError as error:
            return None, [tell("takeover_record_refused", error.message, fix=error.fix)]

    def _known(self) -> Epochs | None:
        """The records that an earlier master knew to be done, if any: by the queue, else by the durable marks."""
        setup = self._job.setup
        if setup.plan is None or setup.spec.type is not JobType.TRAINING:
            return None
        plans = JobPlans(setup.spec)
        plans.main.adopt(setup.plan)
        before = Epochs(plans)
        before.adopt_done(setup.contents.done if setup.contents is not None else setup.done)
        return before if before.records_done else None

    def _go_on(self, record: TakeoverRecord, results: Mapping[TaskId, bytes], now: float) -> list[Instruction]:
        """The PS live on: what the store and the ledger say is done is done, evaluations and leases go on."""
        contents = self._job.setup.contents
        assert contents is not None
        self._recovery.restore(record.generation, rolled_back=record.rolled_back)
        durable = () if record.rolled_back else self._job.setup.done
        self._epochs.go_on(record.epoch, contents.done, durable, record.stopped)
        self._job.single_tasks.restore(record.single_tasks, record.single_tasks_done)
        self._closing.restore(exported=record.exported, last_evaluation_begun=record.last_evaluation_begun)
        self._schedule.restore(record.closed_epoch, record.awaited_pin)
        self._gate.restore(record.description, record.best, record.waited)
        self._job.failures.quarantined = set(contents.quarantined)
        out = self._evaluations.restore(
            record.evaluations,
            latest_number=record.evaluation_number,
            latest_version=record.evaluated_version,
            published=record.evaluated,
            epochs_evaluated=record.evaluated_epochs,
            results=results,
        )
        for lease in contents.doing:
            # A store that lost the end of its log still has leases of tasks that were reported, or returned, since.
            if not self._epochs.has_begun(lease.task):
                self._job.workers.held_before(lease)
        for task in sorted(set(record.single_tasks) & contents.done.keys()):
            out += self._single_task_done(ev.TaskReported(task, "", "", results[task]), now)
        mine = [task for task in contents.done if task.type is self._job.plans.main_type]
        return [*out, MarkDone(mine)]

    def _single_task_done(self, event: ev.TaskReported, now: float) -> list[Instruction]:
        """A task was reported whose report the last master did not get to."""
        parts = (self._listing, self._evaluations, self._gate, self._closing)
        return [one for part in parts for one in part.handle(event, now)]
