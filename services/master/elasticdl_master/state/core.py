"""What every part of the state machine stands on: the state itself, and how to say what shall be done."""

from __future__ import annotations

import json
from typing import Any

from elasticdl_core.early_stopping import EarlyStopping
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobState, JobType
from elasticdl_core.skips import Skips
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.queue.port import Contents
from elasticdl_master.state import instructions as do
from elasticdl_master.state.auditing import Audit
from elasticdl_master.state.checkpoints import CheckpointBook
from elasticdl_master.state.ending import Ending
from elasticdl_master.state.failures import FailureBook
from elasticdl_master.state.servers import ServerPool
from elasticdl_master.state.settings import Limits
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.work import Work
from elasticdl_master.state.workers import WorkerPool

_EPOCH_STRIDE = 1_000
"""First incarnations of a master that does not know what earlier ones launched; keeps names of workers unique."""


class MachineCore:
    """The state of one job.

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
        self.throughput = Throughput(setup.measured)
        self.ending: Ending | None = None
        self.state = setup.state
        self.target_workers = setup.target_workers
        self.version = 0
        self.metrics: dict[str, float] = {}
        self.evaluated_nothing = False
        self.validation_skips = Skips()
        self.loss: float | None = None
        self.last_loss: float | None = None
        self.learning_rate: float | None = None
        self.training_metrics: dict[str, float] = {}
        self.description: dict[str, Any] = {}
        self.early_stopping: EarlyStopping | None = None
        self.exported = False
        self.final: dict[str, Any] | None = None
        self.evaluated = False
        self.store_trouble = ""
        self.save_trouble = ""
        self.trace_trouble = ""
        self.redone = 0
        self.audit: Audit | None = None
        self._audit_asked = -1
        self.finished = False
        self._out: list[do.Instruction] = []
        self._started = False
        self._virgin = True
        self._trusts_ledger = False
        self._rolled_back = False
        self._known_done = 0
        self._reached = 0
        self._number = setup.evaluations
        self._evaluated_epochs = set(setup.evaluated_epochs)
        self._evaluated_version = -1
        self._boundary: int | None = None
        self._closed_round = -1
        self._last_evaluation_begun = False
        self._quiet_until = 0.0
        self._retry_save_at = 0.0
        self._returns_until = 0.0
        self._notes = ""
        self._plan_put = False
        self._forgettable: list[TaskId] = []

    @property
    def listing_by_worker(self) -> bool:
        """Whether a worker is to list the shards and has not done so."""
        return self.setup.lists_by_worker and not self.work.listed

    @property
    def restoring(self) -> bool:
        """Whether the PS will still get content from a checkpoint before anybody may use them."""
        return not self.servers.ready and (self.checkpoints.to_restore is not None or not self._virgin)

    @property
    def start_version(self) -> int:
        """The model version that the job began at: that of the checkpoint that it started from."""
        for manifest in self.setup.manifests:
            if "start_version" in manifest:
                return int(manifest["start_version"])
        return int(self.setup.initial["version"]) if self.setup.initial is not None else 0

    @property
    def step_limit(self) -> int:
        """The model version after which the job makes no more updates; 0 for none."""
        limits = [self.spec.max_steps, int((self.description.get("callbacks") or {}).get("max_steps") or 0)]
        own = min((one for one in limits if one), default=0)
        return self.start_version + own if own and self.spec.type is JobType.TRAINING else 0

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

    def contents(self) -> Contents:
        """What the queue must hold, to rebuild it; leases live on for another full term."""
        leases = [
            Lease(task, worker.owner, LeaseToken.parse(token), self.limits.lease_s)
            for worker in self.workers.living
            for token, task in worker.leases.items()
        ]
        held = {lease.task for lease in leases}
        results = self._results()
        results |= {task: data for one in self.work.evaluations.values() for task, data in one.results.items()}
        return Contents(
            tuple(task for task in self.work.pending() if task not in held),
            tuple(leases),
            dict.fromkeys(self.work.finished(), ""),
            frozenset(self.failures.quarantined),
            results,
            self._notes,
        )

    def _results(self) -> dict[TaskId, bytes]:
        """What the queue keeps with tasks of the main work: accounts that are not as expected."""
        done = set(self.work.finished())
        kept = self.work.accounts.items()
        return {task: account.within(b"") for task, account in kept if task in done}

    @property
    def duplicates(self) -> int:
        """Records that are in the model too often: exact after the audit, before that at least so many."""
        if self.audit is not None:
            return self.audit.duplicates
        if self.spec.type is not JobType.TRAINING or not self.servers.ready:
            return 0
        in_hand = sum(
            task.records
            for worker in self.workers.living
            for task in worker.leases.values()
            if task.type is TaskType.TRAINING
        )
        present = max(server.records for server in self.servers.servers)
        return max(0, present - self.work.accounts.rows_of(self.work.records_done) - in_hand)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """What was passed over, as JSON data: one entry for each reason and kind of data."""
        main = [{"of": "main", **entry} for entry in self.work.accounts.skips.to_json()]
        validation = [{"of": "validation", **entry} for entry in self.validation_skips.to_json()]
        plans = {"main": self.work.main, "validation": self.work.validation}
        for of, plan in plans.items():
            if plan is not None and plan.damaged and (of == "main" or plan is not self.work.main):
                path, reason = next(iter(sorted(plan.damaged.items())))
                example = f"the rest of {path}: {reason}"
                main.append({"of": of, "reason": "corrupt", "records": None, "example": example})
        return main + validation

    def begin_save(self, kind: str, now: float) -> None:
        """Asks for a checkpoint that contains at least what is done now."""
        self.checkpoints.begin(kind, self.version, now)
        self._emit(do.Save(kind, self.work.snapshot(), self.work.rounds_done, self.work.records_done))

    def _saw_version(self, version: int, now: float) -> None:
        if self.servers.ready and now >= self._quiet_until:
            self.version = max(self.version, version)

    def _take_callbacks(self) -> None:
        early = (self.description.get("callbacks") or {}).get("early_stopping")
        self.early_stopping = EarlyStopping.from_mapping(early) if early else None
        if self.early_stopping is None or self.spec.type is not JobType.TRAINING:
            return
        try:
            self.early_stopping.check(validates=bool(self.spec.validation_data))
        except UserCodeError as error:
            self._fail(error.message, fix=error.fix, kind="user_code")

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
        if self.ending is not None and (self.ending.to is None or not self.ending.to.succeeded):
            return
        detail = {"message": message, "fix": fix, "traceback": traceback, "kind": kind, "where": where}
        self._end(JobState.FAILED, message, {key: value for key, value in detail.items() if value}, crashed)

    def _end(
        self,
        to: JobState | None,
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
