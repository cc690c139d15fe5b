"""The job's processes: what each is launched with, and how the launcher's news become events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ConflictError, ElasticDLError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import (
    INSPECTOR,
    Launcher,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
)
from elasticdl_master.settings import MasterSettings
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_runtime import tokens
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.retry import Attempts

_BACKOFF = Backoff(0.5, 0.5)
_LOG_DEADLINE_S = 5.0
_LOG_TAIL_BYTES = 8_000
_log = structlog.get_logger(__name__)
Tell = Callable[[ev.Event], Awaitable[None]]


class Processes:
    """Launches, stops and watches the processes of one job.

    Args:
        settings: of this master.
        spec: the job.
        launcher: starts and stops processes.
        tell: takes events.
        framework: that the model is written in, by which workers find a zygote; empty where that is not known.
    """

    def __init__(
        self, settings: MasterSettings, spec: JobSpec, launcher: Launcher, tell: Tell, framework: str = ""
    ) -> None:
        self._framework = framework
        self._settings = settings
        self._spec = spec
        self._launcher = launcher
        self._tell = tell
        self._wanted: asyncio.PriorityQueue[tuple[bool, int, do.Instruction]] = asyncio.PriorityQueue()
        self._orders = itertools.count()
        self._seen: set[ProcessId] = set()

    def address(self, role: Role, index: int) -> str:
        """The address of a process of the job."""
        return self._launcher.address(self._settings.job_id, role, index)

    def carry_out(self, instruction: do.Instruction) -> None:
        """Takes a launch or a termination; they are carried out in order, but launches of servers first.

        Where there is room for some of the job's processes only, workers without servers could do nothing.
        """
        self._wanted.put_nowait((not isinstance(instruction, do.LaunchServer), next(self._orders), instruction))

    async def run(self) -> None:
        """Carries out launches and terminations until cancelled; waits out an agent that is away."""
        while True:
            _, _, instruction = await self._wanted.get()
            async for _ in Attempts(_BACKOFF):
                try:
                    failpoint("master.before_process_order")
                    await self._carry_out(instruction)
                    failpoint("master.after_process_order")
                    break
                except UnavailableError as error:
                    _log.warning("the launcher is away", error=error.message)
                except ConflictError as error:
                    _log.warning("not launched", error=error.message)
                    break
                except ElasticDLError as error:
                    if isinstance(instruction, do.LaunchWorker | do.LaunchServer):
                        await self._tell(ev.JobFailed(f"cannot launch: {error.message}", error.fix))
                    else:
                        _log.error("the launcher refused", wanted=type(instruction).__name__, error=error.message)
                    break

    async def watch(self) -> None:
        """Turns what happens to processes into events, until cancelled."""
        async for _ in Attempts(_BACKOFF):
            try:
                await self._follow()
            except UnavailableError as error:
                _log.warning("the launcher is away", error=error.message)

    async def present(self) -> list[ProcessStatus]:
        """The job's processes, but for the one that looked at the model."""
        return [one for one in await self._launcher.list(self._settings.job_id) if not _inspects(one.id)]

    async def launch_inspector(self, incarnation: int) -> ProcessId:
        """Launches a worker that looks at the model.

        Raises:
            ElasticDLError: the launcher is away, or refuses.
        """
        spec = self._worker(INSPECTOR, incarnation, self._spec.worker_memory_mib)
        await self._launcher.launch(spec)
        return spec.id

    async def stop_inspector(self, process: ProcessId, grace_s: float) -> None:
        """Ends it, if it can be reached."""
        try:
            await self._launcher.terminate(process, grace_s=grace_s)
        except UnavailableError as error:
            _log.warning("the launcher is away", error=error.message)

    async def state_of(self, process: ProcessId) -> ProcessState | None:
        """The state of a process; None if the launcher does not know it."""
        known = await self._launcher.list(self._settings.job_id)
        return next((one.state for one in known if one.id == process), None)

    async def last_output(self, index: int) -> str:
        """The end of what a worker printed; empty if it cannot be had."""
        pieces = []
        try:
            async with asyncio.timeout(_LOG_DEADLINE_S):
                async for piece in self._launcher.logs(
                    self._settings.job_id, Role.WORKER, index, tail=_LOG_TAIL_BYTES, follow=False
                ):
                    pieces.append(piece)
        except (ElasticDLError, TimeoutError):
            pass
        return b"".join(pieces).decode(errors="replace")[-_LOG_TAIL_BYTES:]

    async def _follow(self) -> None:
        for status in self._vanished(await self.present()):
            await self._tell(ev.ProcessChanged(status))
        async for status in self._launcher.watch(self._settings.job_id):
            if status.state is ProcessState.EXITED:
                self._seen.discard(status.id)
            else:
                self._seen.add(status.id)
            if status.id.role is not Role.MASTER and not _inspects(status.id):
                await self._tell(ev.ProcessChanged(status))

    def _vanished(self, known: list[ProcessStatus]) -> list[ProcessStatus]:
        """Processes that a launcher, started anew, no longer knows: they died with the one before."""
        present = {status.id for status in known}
        gone = [process for process in sorted(self._seen, key=str) if process not in present]
        self._seen.difference_update(gone)
        return [ProcessStatus(process, ProcessState.EXITED, None, "launcher_lost") for process in gone]

    async def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.LaunchWorker(index, incarnation, memory):
                await self._launcher.launch(self._worker(index, incarnation, memory))
            case do.LaunchServer(index, incarnation, memory):
                await self._launcher.launch(self._server(index, incarnation, memory))
            case do.TerminateWorker(index, incarnation, grace):
                await self._launcher.terminate(self._id(Role.WORKER, index, incarnation), grace_s=grace)
            case do.TerminateServer(index, incarnation, grace):
                await self._launcher.terminate(self._id(Role.PS, index, incarnation), grace_s=grace)
            case _:
                raise TypeError(f"{instruction} is not about a process")

    def _id(self, role: Role, index: int, incarnation: int) -> ProcessId:
        return ProcessId(self._settings.job_id, role, index, incarnation)

    def _token(self, process: ProcessId) -> str:
        return tokens.issue(
            self._settings.job_secret, process.job_id, process.role, process.index, process.incarnation
        )

    def _worker(self, index: int, incarnation: int, memory_mib: int) -> ProcessSpec:
        process = self._id(Role.WORKER, index, incarnation)
        environment = {
            **self._spec.envs,
            "ELASTICDL_MASTER": self.address(Role.MASTER, 0),
            "ELASTICDL_JOB_TOKEN": self._token(process),
        }
        if self._framework:
            environment["ELASTICDL_FRAMEWORK"] = self._framework
        if self._spec.keras == "legacy":
            environment["TF_USE_LEGACY_KERAS"] = "1"
        return ProcessSpec(
            process,
            environment,
            memory_mib,
            slots=1,
            device_share=self._spec.device_share,
            pod=self._spec.pod_of(Role.WORKER),
        )

    def _server(self, index: int, incarnation: int, memory_mib: int) -> ProcessSpec:
        process = self._id(Role.PS, index, incarnation)
        environment = {
            "ELASTICDL_NUM_PS": str(self._spec.num_ps),
            "ELASTICDL_JOB_SECRET": self._settings.job_secret,
            "ELASTICDL_JOB_TOKEN": self._token(process),
        }
        return ProcessSpec(process, environment, memory_mib, pod=self._spec.pod_of(Role.PS))


def _inspects(process: ProcessId) -> bool:
    return process.role is Role.WORKER and process.index == INSPECTOR
