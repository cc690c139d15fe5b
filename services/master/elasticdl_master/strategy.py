"""The strategy of a job that leaves it to us: a worker looks at the model, rules choose, and the choice is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import structlog

from elasticdl.recognition import resolve_framework
from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.job.fields import PARAMETER_SERVERS
from elasticdl_core.job.strategy import (
    ModelProfile,
    StrategyChoice,
    choose_by_checkpoint,
    choose_strategy,
    settled_strategy,
)
from elasticdl_core.ports.launcher import ProcessId, ProcessState
from elasticdl_master.api import ApiClient
from elasticdl_master.inspection_servicer import InspectionServicer
from elasticdl_master.job_lease import JobLease
from elasticdl_master.outbox import Outbox
from elasticdl_master.patience import PatientCalls
from elasticdl_master.processes import Processes
from elasticdl_master.settings import MasterSettings
from elasticdl_master.startup import ResolvedCode

_PATIENCE_S = 180.0
_LOOK_S = 0.25
_GRACE_S = 1.0
_log = structlog.get_logger(__name__)


class StrategyChooser:
    """Makes the choice, once for a job.

    Args:
        settings: of the master.
        api: keeps the choice.
        outbox: tells it.
        patience: waits for what is away.
        processes: launches the worker that looks at the model.
        is_wanted: whether the job shall still run.
    """

    def __init__(
        self,
        settings: MasterSettings,
        api: ApiClient,
        outbox: Outbox,
        patience: PatientCalls,
        processes: Processes,
        is_wanted: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._api = api
        self._outbox = outbox
        self._patience = patience
        self._processes = processes
        self._is_wanted = is_wanted

    async def choose(self, lease: JobLease, code: ResolvedCode) -> StrategyChoice:
        """The strategy of the job: as it was asked for, as an earlier master chose, or by a look at the model."""
        spec = lease.spec
        settled = settled_strategy(spec)
        if settled is not None:
            return settled
        if lease.strategy:
            return StrategyChoice.from_mapping(lease.strategy)
        if lease.plan is not None or lease.manifests:
            return StrategyChoice(PARAMETER_SERVERS, "the job was begun so")
        if code.problem is not None:
            return StrategyChoice(PARAMETER_SERVERS, "the job cannot begin")
        if spec.type is not JobType.TRAINING:
            choice = choose_by_checkpoint(spec, has_tables=code.initial is None or _has_tables(code.initial))
        else:
            profile = _profile_of_refused(spec, code) or await self._inspect(lease, code)
            if profile is None:
                return StrategyChoice(PARAMETER_SERVERS, "the model was not looked at yet")
            choice = choose_strategy(spec, profile)
        durable = {"strategy": choice.to_mapping()}
        await self._patience.until_works("the api", lambda: self._api.heartbeat(durable, []), "api")
        self._outbox.add_event("strategy", f"{choice.chosen}: {choice.reason}", choice.to_mapping())
        return choice

    async def _inspect(self, lease: JobLease, code: ResolvedCode) -> ModelProfile | None:
        """Has a worker look at the model; None if the job shall not run any more."""
        servicer = InspectionServicer(self._settings, lease.spec, str(code.zoo), lease.epoch)
        server = servicer.make_server()
        await server.start()
        process: ProcessId | None = None
        try:
            process = await self._patience.until_works(
                "the launcher", lambda: self._processes.launch_inspector(lease.epoch), "launcher"
            )
            return await self._watch(servicer, process)
        except (ConflictError, InvalidInputError) as error:
            return ModelProfile(fault=error.message)
        finally:
            if process is not None and not servicer.profile.done():
                await self._processes.stop_inspector(process, _GRACE_S)
            await server.stop(_GRACE_S)

    async def _watch(self, servicer: InspectionServicer, process: ProcessId) -> ModelProfile | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while not servicer.profile.done():
            if not self._is_wanted():
                return None
            state = await self._state_of(process)
            if state is ProcessState.PENDING:
                end = loop.time() + _PATIENCE_S  # it waits for room, a node or an image
            if loop.time() > end:
                return ModelProfile(fault=f"the worker that looks at it takes more than {_PATIENCE_S:.0f} s")
            if state is ProcessState.EXITED and not servicer.profile.done():
                return ModelProfile(fault="the worker that looked at it ended before it could say what it saw")
            await asyncio.wait({servicer.profile}, timeout=_LOOK_S)
        return servicer.profile.result()

    async def _state_of(self, process: ProcessId) -> ProcessState:
        try:
            return await self._processes.state_of(process) or ProcessState.EXITED
        except UnavailableError:
            return ProcessState.RUNNING  # as far as anybody knows


def _profile_of_refused(spec: JobSpec, code: ResolvedCode) -> ModelProfile | None:
    """The reason against a group that is known before anything is run."""
    try:
        resolve_framework(code.zoo, StrategyChoice.of_group(spec, "").applied_to(spec))
    except ElasticDLError as error:
        return ModelProfile(fault=error.message)
    if code.initial is not None and _has_tables(code.initial):
        return ModelProfile(refusal="the checkpoint that it starts from has embedding tables")
    return None


def _has_tables(manifest: Manifest) -> bool:
    model = manifest.get("model")
    try:
        described = json.loads(model) if isinstance(model, str) else model
        return bool(described and described.get("tables"))
    except (ValueError, AttributeError):
        return True
