"""A worker whose model is a script: the script's thread, and beside it the one that takes part in the group."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

from elasticdl.own_loop import LeaveScript, set_feed
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.task import TaskType
from elasticdl_core.training_rules import DeclaredRules
from elasticdl_worker.group.loop import MemberLoop, Membership
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.own_loop.bridge import LoopBridge
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.own_loop.replica import ScriptReplica
from elasticdl_worker.reporting.traces import TraceWriter
from elasticdl_worker.trainers.description import describe
from elasticdl_worker.trainers.engine import TaskOutcome
from elasticdl_worker.trainers.output_files import delivered, describe_folder, output_folder
from elasticdl_worker.user_code import ModelModule, run_script

NO_RECORDS = UserCodeError(
    "the script has ended and took no records", fix="let its loop read an elasticdl.torch.ElasticDataset"
)


class ScriptMember:
    """Runs the script of a job, and trains in its group.

    Args:
        membership: what it takes to be in a group.
        spec: the job.
        zoo: directory of the script.
        session: the standing with the master.
        job_dir: directory of the job's files.
        traces: what was processed.
        on_first_step: called when the first step was made.
    """

    def __init__(
        self,
        membership: Membership,
        spec: JobSpec,
        zoo: Path,
        session: Session,
        job_dir: Path,
        traces: TraceWriter,
        on_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._membership = membership
        self._spec = spec
        self._zoo = zoo
        self._session = session
        self._job_dir = job_dir
        self._traces = traces
        self._on_first_step = on_first_step
        self._bridge = LoopBridge(spec, self._start)
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._finished = False
        self._error: BaseException | None = None

    def run(self) -> bool:
        """Works; returns whether the job has ended, rather than this member been told to leave.

        Raises:
            ElasticDLError: the script or the data failed.
        """
        set_feed(self._bridge)
        with contextlib.suppress(LeaveScript):
            self._bridge.run(lambda: run_script(self._spec, self._zoo))
        if not self._ready.is_set():
            raise NO_RECORDS
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._finished

    def _start(self) -> None:
        """The script wants its first record: it has said what it trains."""
        self._ready.set()
        threading.Thread(target=self._drive, name="group", daemon=True).start()

    def _drive(self) -> None:
        try:
            records = ScriptRecords(self._spec, self._zoo, self._bridge.size)
            replica = ScriptReplica(self._spec, self._bridge, records)
            script = ModelModule(self._zoo, (self._zoo,), build_model=lambda: None)
            self._session.describe_model(describe(script, replica.layout.dense, (), None, DeclaredRules(), {}, {}))
            others = _OtherScriptTasks(self._bridge, records, self._session, self._job_dir)
            loop = MemberLoop(
                self._membership, self._spec, replica, self._session, others.run, self._traces, self._on_first_step
            )
            self._finished = loop.run()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._bridge.leave()


class _OtherScriptTasks:
    def __init__(self, bridge: LoopBridge, records: ScriptRecords, session: Session, job_dir: Path) -> None:
        self._bridge = bridge
        self._records = records
        self._session = session
        self._job_dir = job_dir

    def run(self, lease: LeasedTask) -> TaskOutcome:
        """Runs a task that is no training: the list of shards, or the end of the script in the place of an export."""
        if lease.task.id.type is TaskType.LIST_SHARDS:
            self._session.progress.set_phase("listing")
            shards = self._records.shards()
            self._session.report_shards(lease, shards)
            return TaskOutcome(0, {"shards": len(shards)})
        assert lease.task.id.type is TaskType.EXPORT, lease.task.id
        self._session.progress.set_phase("exporting")
        given = json.loads(lease.task.payload or "{}").get("output")
        output = str(given or self._job_dir / "artifacts" / "model")
        with output_folder(output) as folder:
            folder.mkdir(parents=True, exist_ok=True)
            self._bridge.finish(folder)
            return TaskOutcome(0, {"files": delivered(describe_folder(folder), output)})
