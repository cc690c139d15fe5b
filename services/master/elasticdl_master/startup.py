"""Start of a master: it leases the job, fetches the code, and finds out what is there already."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from elasticdl.data import with_columns
from elasticdl.model_check import check_model_module
from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ElasticDLError, FencedError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.job.strategy import StrategyChoice
from elasticdl_core.path_policy import PathPolicy, stores_written
from elasticdl_core.ports.launcher import ProcessStatus
from elasticdl_master.api import ApiClient, JobHeldError
from elasticdl_master.job_lease import JobLease
from elasticdl_master.kept_checkpoint import find_kept, keep, keep_in_mind, require_room
from elasticdl_master.listing import has_own_reader
from elasticdl_master.patience import PatientCalls
from elasticdl_master.queue.port import Contents
from elasticdl_master.settings import MasterSettings
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.setup import Setup
from elasticdl_runtime.bundles import unpack_zoo, unpacked_zoo
from elasticdl_runtime.object_store import try_out
from elasticdl_runtime.path_checks import require_place, require_reach
from elasticdl_runtime.stored_checkpoints import find_checkpoint

_PAUSE_S = 1.0
T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ResolvedCode:
    """The job's code, and the checkpoint that it starts from.

    Attributes:
        zoo: directory of the model code.
        initial: the manifest of another job's checkpoint to start from.
        problem: why the job cannot go on, if that showed already.
        output: where what the user wants elsewhere goes; empty for the job's own directory.
        framework: that the model module is written for; empty where there is a problem.
    """

    zoo: Path
    initial: Manifest | None = None
    problem: ElasticDLError | None = None
    output: str = ""
    framework: str = ""


class Startup:
    """The steps before a master serves.

    Args:
        settings: of this process.
        api: the api.
        patience: waits for what is away.
    """

    def __init__(self, settings: MasterSettings, api: ApiClient, patience: PatientCalls) -> None:
        self._settings = settings
        self._api = api
        self._patience = patience

    async def lease(self) -> JobLease:
        """Becomes the job's master; waits while another one of the same incarnation is.

        Raises:
            FencedError: a newer one is, or the job needs none.
        """
        holder = f"master-0.{self._settings.incarnation}@{os.uname().nodename}:{os.getpid()}"
        while True:
            try:
                return await self._patience.until_works("the api", lambda: self._api.lease(holder))
            except JobHeldError as error:
                _log.info("waiting for the job", reason=error.message)
                await asyncio.sleep(_PAUSE_S)

    async def find_code(self, lease: JobLease) -> ResolvedCode:
        """Fetches the code, and looks at the model module without running it.

        Places are judged by where links lead now, and stores are tried out when the job begins.

        Raises:
            FencedError: a newer master took over.
        """
        spec, reach = lease.spec, lease.reach
        zoo, initial, output = Path(spec.model_zoo), None, ""
        try:
            zoo = await asyncio.to_thread(require_reach, await self._code_of(spec), reach)
            framework = await asyncio.to_thread(
                check_model_module, zoo, spec, reach=reach, workers_see=os.path.exists
            )
            if spec.checkpoint_dir_for_init:
                initial = await self._ask_store(lambda: self._find_initial(spec.checkpoint_dir_for_init, reach))
            if spec.output:
                output = await asyncio.to_thread(require_place, spec.output, reach, writing=True)
            if spec.checkpoint_dir:
                await asyncio.to_thread(require_place, spec.checkpoint_dir, reach, writing=True)
            if lease.plan is None and (urls := stores_written(spec)):
                await self._ask_store(lambda: try_out(urls))
        except FencedError:
            raise
        except ElasticDLError as error:
            return ResolvedCode(zoo, initial, error)
        return ResolvedCode(zoo, initial, output=output, framework=framework)

    async def keep_checkpoint(self, code: ResolvedCode, spec: JobSpec) -> ResolvedCode:
        """Has the job keep the checkpoint that it begins with: a copy if each worker reads it, else which one it is.

        Args:
            code: what was found.
            spec: the job, with its strategy.
        """
        if code.initial is None or code.problem is not None:
            return code
        try:
            if not _reads_by_itself(spec):
                await asyncio.to_thread(keep_in_mind, code.initial, self._settings.job_dir)
                return code
            require_room(code.initial, int(spec.worker_memory_mib * Limits().memory_limit))
            initial = code.initial
            kept = await self._ask_store(lambda: keep(initial, self._settings.job_dir))
        except ElasticDLError as error:
            return dataclasses.replace(code, problem=error)
        return dataclasses.replace(code, initial=kept)

    def setup(
        self,
        lease: JobLease,
        code: ResolvedCode,
        contents: Contents | None,
        processes: Sequence[ProcessStatus],
        choice: StrategyChoice,
    ) -> Setup:
        """Everything that was found, for the state machine."""
        spec = choice.applied_to(lease.spec)
        if code.initial is not None and _reads_by_itself(spec):
            spec = dataclasses.replace(spec, checkpoint_dir_for_init=code.initial["directory"])
        if code.initial is not None:
            params = with_columns(spec.data_reader_params, code.initial.get("columns"))
            spec = dataclasses.replace(spec, data_reader_params=params)
        return Setup(
            spec=spec,
            epoch=lease.epoch,
            state=lease.state,
            desired=lease.desired_state.desired,
            target_workers=lease.desired_state.target_workers,
            plan=lease.plan,
            done=lease.done,
            accounts=lease.accounts,
            manifests=lease.manifests,
            initial=code.initial,
            evaluations=lease.evaluations,
            evaluated_epochs=lease.evaluated_epochs,
            contents=contents,
            processes=processes,
            lists_by_worker=has_own_reader(lease.spec, code.zoo),
            output=code.output or str(self._settings.job_dir / "artifacts" / "model"),
            measured=lease.measured,
            strategy=choice,
        )

    def _find_initial(self, path: str, reach: PathPolicy | None) -> Manifest:
        return find_kept(self._settings.job_dir, reach) or find_checkpoint(path, reach)

    async def _ask_store(self, work: Callable[[], T]) -> T:
        """Reads or tries something in a thread, and waits as long as the store that it lies in is away."""
        return await self._patience.until_works("the store", lambda: asyncio.to_thread(work), "store")

    async def _code_of(self, spec: JobSpec) -> Path:
        if not spec.model_bundle:
            return await asyncio.to_thread(Path(spec.model_zoo).absolute)
        folder = self._settings.job_dir / "code"
        zoo = await asyncio.to_thread(unpacked_zoo, folder)
        if zoo is None:
            archive = self._settings.job_dir / ".bundle.zip"
            await self._patience.until_works("the api", lambda: self._api.fetch_bundle(archive))
            zoo = await asyncio.to_thread(unpack_zoo, archive, folder)
            archive.unlink()
        return zoo


def _reads_by_itself(spec: JobSpec) -> bool:
    """Whether each worker of a job reads the checkpoint when it begins."""
    return not spec.has_servers and spec.type is not JobType.TRAINING
