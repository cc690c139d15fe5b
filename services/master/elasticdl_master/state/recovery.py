"""The life and death of PS: starting, restoring, and taking the ledger back to what they contain."""

from __future__ import annotations

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.job import JobType
from elasticdl_core.ports.launcher import ProcessStatus, Role
from elasticdl_core.process_life import describe_exit, ended_by_others
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.checkpoints import Checkpoints
from elasticdl_master.state.closing import Closing
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.schedule import EpochSequence
from elasticdl_master.state.servers import Phase
from elasticdl_master.state.version import ModelVersion


class ServerRecovery:
    """Brings the PS to content, and everything else to what they contain.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.
        schedule: goes from epoch to epoch.
        closing: closes a job whose work is done.
        checkpoints: take the checkpoints.
        version: the model version.

    Attributes:
        redone: records that were processed again, over all returns.
        rolled_back: whether the PS ever went back, so that durable done-marks say more than they hold.
    """

    def __init__(
        self,
        job: JobContext,
        epochs: Epochs,
        evaluations: Evaluations,
        schedule: EpochSequence,
        closing: Closing,
        checkpoints: Checkpoints,
        version: ModelVersion,
    ) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self._schedule = schedule
        self._closing = closing
        self._checkpoints = checkpoints
        self._version = version
        self.redone = 0
        self.rolled_back = False
        self._never_used = True
        self._begins = False
        self._trusts_ledger = False
        self._known: Epochs | None = None
        self._most_done = 0

    @property
    def restoring(self) -> bool:
        """Whether the PS will still get content from a checkpoint before anybody may use them."""
        waits = self._checkpoints.book.to_restore is not None or not self._never_used
        return not self._job.servers.ready and waits

    @property
    def last_known(self) -> Epochs:
        """The progress to show: until it is found what the PS hold, that which an earlier master left."""
        return self._epochs if self._known is None else self._known

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes in how the PS are, and what became of restoring them."""
        match event:
            case ev.TaskReported(task=TaskId(type=self._job.plans.main_type)):
                self._forgive()
            case ev.ServerSeen():
                if self._job.servers.seen(event):
                    self._job.workers.spare(now)
            case ev.ServerSilent(index, incarnation):
                return self._silent(index, incarnation, now)
            case ev.ProcessChanged(status) if status.id.role is Role.PS:
                return self._process_changed(status, now)
            case ev.ServersRestored(directory, version):
                return self._restored(directory, version, now)
            case ev.RestoreFailed(directory, message, fix):
                return self._restore_failed(directory, message, fix)
        return []

    def advance(self, now: float) -> list[do.Instruction]:
        """Launches the PS that are missing; once all answer, brings them to content."""
        out = self._job.servers.reconcile(now)
        if self._job.servers.phase is not Phase.STARTING or not self._job.servers.all_answer:
            return out
        initialized = [server.initialized for server in self._job.servers.servers]
        manifest = self._checkpoints.book.to_restore
        if self._trusts_ledger and all(initialized):
            # Redis is lost, the PS are not, and never were: the durable done-marks say what they contain.
            self._epochs.adopt_done(self._job.setup.done)
            self._known = None
            self._never_used = False
            return [*out, *self._serve(now)]
        if manifest is not None:
            if self._checkpoints.is_own(manifest) and not self._job.plans.main.listed:
                return out
            self._job.servers.phase = Phase.RESTORING
            return [*out, do.RestoreServers(manifest)]
        if any(initialized) and not self._never_used:
            return [*out, *self._start_over(now)]
        if self._begins:
            # Workers may have leased tasks, and have trained on them, before this master saw that all PS answer.
            self._open(now)
            return out
        return [*out, *self._roll_back(None, now)]

    # -- takeovers -------------------------------------------------------------------------------------------------

    def find_servers(self, known: Epochs | None, *, ledger_alone: bool) -> None:
        """Begins with PS of which no record says that they hold the job's parameters.

        Args:
            known: what an earlier master knew to be done, if anything.
            ledger_alone: whether the queue is lost, so that the durable done-marks say what PS contain that were
                never lost.
        """
        servers = self._job.servers.servers
        self._never_used = not any(server.alive for server in servers)
        self._trusts_ledger = ledger_alone and all(server.alive and server.incarnation == 0 for server in servers)
        self._known = known
        self._begins = self._never_used and known is None and not self._job.setup.done

    def restore(self, generation: int, *, rolled_back: bool) -> None:
        """Goes on where an earlier master was, with the same PS."""
        self._never_used = False
        self.rolled_back = rolled_back
        self._job.servers.generation = generation
        self._job.servers.ever_lost = rolled_back

    # -- losses ----------------------------------------------------------------------------------------------------

    def _forgive(self) -> None:
        """Progress forgives the PS that were lost; what is done a second time, after a return, is none."""
        if self._job.plans.with_epochs and self._epochs.records_done > self._most_done:
            self._most_done = self._epochs.records_done
            self._job.servers.forgive()

    @property
    def _trains(self) -> bool:
        return self._job.spec.type is JobType.TRAINING

    @property
    def _may_lose(self) -> bool:
        return not self._job.lifecycle.ending and self._job.servers.phase is not Phase.STOPPED

    def _silent(self, index: int, incarnation: int, now: float) -> list[do.Instruction]:
        server = self._job.servers.unanswered(index, incarnation, now)
        if server is None or not self._may_lose:
            return []
        words = f"ps-{server.index}.{server.incarnation} {server.stuck}; it is replaced"
        return [do.tell("ps_stuck", words), do.TerminateServer(server.index, server.incarnation, 0.0)]

    def _process_changed(self, status: ProcessStatus, now: float) -> list[do.Instruction]:
        server = self._job.servers.process(status, now)
        if server is None or not self._may_lose:
            return []
        words = f"ps-{status.id.index}.{status.id.incarnation} {server.stuck or describe_exit(status)}"
        of_itself = self._job.spec.by_group or bool(server.stuck) or not ended_by_others(status)
        why = self._job.servers.lost(server, status, now, of_itself=of_itself)
        if why and self._job.spec.by_group:
            self._job.lifecycle.fail(
                f"the group lost its model {self._job.servers.crashes} times without any progress: all workers that "
                "held it ended, or stood still, at a time",
                fix="see what ended the workers: their logs, and `elasticdl jobs events`",
            )
        elif why:
            limited = "raise ps_memory_mib" if self._job.servers.memory_mib else "give the machine more memory"
            fix = limited if status.reason == "oom_killed" else "look at the log of the PS"
            self._job.lifecycle.fail(f"{why}; the last one, {words}", fix=fix)
        else:
            self._never_used = self._begins = False
            self._trusts_ledger = False
            self._job.servers.restart()
        if self._job.spec.by_group:
            return [do.tell("model_lost", "no worker holds the model any more", reason=status.reason)]
        return [do.tell("ps_lost", words, exit_code=status.exit_code, reason=status.reason)]

    def _start_over(self, now: float) -> list[do.Instruction]:
        """Nothing was saved yet: every PS and every worker begins anew."""
        self._go_back(0, now)
        self._never_used = True
        what = "the model" if self._job.spec.by_group else "a PS"
        return [
            do.tell("start_over", f"{what} was lost before the first checkpoint: training starts over"),
            *self._job.servers.wipe(),
            *self._job.workers.stop_staying(),
        ]

    # -- content ---------------------------------------------------------------------------------------------------

    def _restored(self, directory: str, version: int, now: float) -> list[do.Instruction]:
        manifest = self._checkpoints.book.to_restore
        if self._job.servers.phase is not Phase.RESTORING or manifest is None:
            return []
        if manifest["directory"] != directory:
            self._job.servers.phase = Phase.STARTING
            return []
        self._go_back(version, now)
        out: list[do.Instruction] = []
        begins = not self._checkpoints.is_own(manifest) or int(manifest["version"]) == self._version.start > 0
        if not self._never_used and self._trains and begins:
            # It has the other job's optimizer and mode, also if this one had saved it before any worker pushed its
            # own: the workers that come push the model of this one again.
            out += self._job.workers.stop_staying()
        out += self._roll_back(manifest, now)
        self._job.servers.hold(version)
        who = "the parameter servers hold" if self._job.spec.has_servers else "the workers hold"
        return [do.tell("restored", f"{who} the checkpoint of version {version}"), *out]

    def _restore_failed(self, directory: str, message: str, fix: str) -> list[do.Instruction]:
        if self._job.servers.phase is not Phase.RESTORING:
            return []
        out: list[do.Instruction] = [do.tell("checkpoint_refused", f"checkpoint {directory}: {message}", fix=fix)]
        initial = self._checkpoints.book.initial
        if initial is not None and initial["directory"] == directory:
            self._job.lifecycle.fail(
                f"cannot start from checkpoint {directory}: {message}",
                fix=", or ".join(filter(None, (fix, "give another checkpoint_dir_for_init"))),
                kind="data",
            )
            return out
        self._checkpoints.book.refuse(directory)
        self._job.servers.phase = Phase.STARTING
        self._never_used = False
        return out

    def _go_back(self, version: int, now: float) -> None:
        self._version.go_back(version, now)
        self._evaluations.go_back(version)
        self._checkpoints.book.went_back(version)

    def _roll_back(self, manifest: Manifest | None, now: float) -> list[do.Instruction]:
        """The PS hold exactly a checkpoint, or nothing: so does the ledger, and what came after is to do again."""
        out: list[do.Instruction] = []
        if self._trains:
            own = manifest if manifest is not None and self._checkpoints.is_own(manifest) else None
            again, out = self._epochs.roll_back(own["done"] if own is not None else None)
            again = max(again, self.last_known.records_done - self._epochs.records_done)
            self._known = None
            # Durable done-marks are never taken back: from now on they say more than the PS hold.
            self.rolled_back = self.rolled_back or again > 0 or bool(self._job.setup.done)
            if again:
                self.redone += again
                words = f"{again} records after the last checkpoint are processed again"
                out.append(do.tell("rolled_back", words))
        return [*out, *self._serve(now)]

    def _serve(self, now: float) -> list[do.Instruction]:
        """The PS may be used; what depended on what they held before begins anew."""
        lost = self._evaluations.abandon()
        self._schedule.interrupt()
        self._closing.interrupt()
        self._job.workers.take_all_back(but=TaskType.LIST_SHARDS)
        self._open(now)
        return [do.RebuildQueue(), *self._evaluate_again(lost)]

    def _open(self, now: float) -> None:
        self._begins = False
        self._job.workers.spare(now)
        self._job.servers.phase = Phase.READY

    def _evaluate_again(self, lost: set[int]) -> list[do.Instruction]:
        """Begins the evaluations at ends of epochs that are missing."""
        number, validation = self._epochs.number, self._job.plans.validation
        if self._job.setup.spec.type is not JobType.TRAINING or validation is None or not validation.listed:
            return []
        missing = sorted((lost | {number}) - self._evaluations.epochs_evaluated - {0})
        out: list[do.Instruction] = []
        for epoch in missing:
            if epoch <= number:
                out += self._evaluations.begin(boundary=True, training_epoch=epoch)
        return out
