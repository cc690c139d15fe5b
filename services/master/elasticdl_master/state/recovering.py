"""The life and death of PS: starting, restoring, rolling back; and the checkpoints that make it possible."""

from __future__ import annotations

from typing import Any

from elasticdl_core.job import JobType
from elasticdl_core.ports.launcher import ProcessStatus
from elasticdl_core.task import TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.checkpoints import FINAL
from elasticdl_master.state.evaluating import Evaluating
from elasticdl_master.state.servers import Phase
from elasticdl_master.state.work import EXPORT_TASK
from elasticdl_master.state.workers import describe_exit


class Recovering(Evaluating):
    """Brings PS to content, and the ledger to what they contain."""

    def _on_server_seen(self, event: ev.ServerSeen, now: float) -> None:
        came_back = self.servers.seen(
            event.index,
            event.incarnation,
            initialized=event.initialized,
            version=event.version,
            rows=event.rows,
            size=event.bytes,
            records=event.records,
        )
        if came_back:
            self.workers.spare(now)
        if event.index == 0 and self.servers.servers[0].incarnation == event.incarnation:
            self._saw_version(event.version, now)

    def _on_server_silent(self, event: ev.ServerSilent, now: float) -> None:
        server = self.servers.unanswered(event.index, event.incarnation, now)
        if server is None or self.ending is not None or self.servers.phase is Phase.STOPPED:
            return
        self._tell("ps_stuck", f"ps-{server.index}.{server.incarnation} {server.stuck}; it is replaced")
        self._emit(do.TerminateServer(server.index, server.incarnation, 0.0))

    def _server_lost(self, status: ProcessStatus, now: float) -> None:
        server = self.servers.servers[status.id.index]
        words = f"ps-{status.id.index}.{status.id.incarnation} {server.stuck or describe_exit(status)}"
        why = self.servers.lost(server, status, now)
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
            self._known_done = 0
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
        self._went_back(0, now)
        for one in self.servers.wipe():
            self._emit(one)
        for worker in self.workers.living:
            if worker.staying:
                self._out += self.workers.stop(worker, self.limits.leave_s)
        self._virgin = True

    def _went_back(self, version: int, now: float) -> None:
        """The model version is an earlier one; what workers say of it is not true for a while."""
        self.version = version
        self._evaluated_version = min(self._evaluated_version, version)
        self._quiet_until = now + 2.0 * self.limits.heartbeat_s
        self.checkpoints.went_back(version)

    def _on_restored(self, event: ev.ServersRestored, now: float) -> None:
        manifest = self.checkpoints.to_restore
        if self.servers.phase is not Phase.RESTORING or manifest is None:
            return
        if manifest["directory"] != event.directory:
            self.servers.phase = Phase.STARTING
            return
        self._tell("restored", f"the parameter servers hold the checkpoint of version {event.version}")
        self._went_back(event.version, now)
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
            again = max(again, self._known_done - self.work.records_done)
            self._known_done = 0
            changes = self.work.accounts.replace((snapshot or {}).get("accounts") or {})
            if changes:
                self._emit(do.MarkDone([], changes))
            # Durable done-marks are never taken back: from now on they say more than the PS hold.
            self._rolled_back = self._rolled_back or again > 0 or bool(self.setup.done)
            if again:
                self.redone += again
                self._tell("rolled_back", f"{again} records after the last checkpoint are processed again")
        self._serve(now)

    def _serve(self, now: float) -> None:
        lost = {one.training_epoch for one in self.work.evaluations.values() if one.boundary}
        for one in self.work.evaluations.values():
            self.work.singles.discard(one.summary)
        if self.work.evaluations:
            self._evaluated_version = -1  # it began, and was lost
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
