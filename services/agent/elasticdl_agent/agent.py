"""The agent: the table of processes behind its gRPC server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import structlog

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.credentials import DEFAULT_HOURS, CredentialFiles
from elasticdl_agent.processes.devices import OFF, MachineDevices, parse_devices
from elasticdl_agent.processes.environment import Endpoints, common_environment
from elasticdl_agent.processes.isolation import Isolation
from elasticdl_agent.processes.quotas import Quotas
from elasticdl_agent.servicer import AgentServicer, authenticator
from elasticdl_agent.table import COMMANDS, KEEP_ENDED, ProcessTable, kind_of
from elasticdl_agent.table_launcher import TableLauncher
from elasticdl_agent.zygote.client import START_DELAY_S, ZygoteClient
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address
from elasticdl_runtime.launcher.client import SERVICE
from elasticdl_runtime.memory_group import MemoryGroups
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.rpc.service import Server, listen, make_server
from elasticdl_runtime.telemetry import meters

PRELOADS: Mapping[str, str] = {
    Role.WORKER: "elasticdl_worker.preload",
    kind_of(Role.WORKER, "torch"): "elasticdl_worker.preload_torch",
}
"""What zygotes import, by kind of process; one for a framework begins with the first process that needs it."""
STOP_GRACE_S = 10.0
MASTER_GRACE_S = 25.0
"""Masters have that long to let their workers go and to save, before anything else is ended."""
_MIN_SECRET = 16
_log = structlog.get_logger(__name__)


class Agent:
    """Owns the processes of jobs on this machine and serves the Agent service; an async context manager.

    Args:
        directories: data and run directory.
        endpoints: what masters are told.
        node_token: the token that may do everything.
        slots: worker slots of this machine.
        commands: what each role runs; other than the default in tests only.
        stop_grace_s: seconds that processes have to leave when the agent stops.
        master_grace_s: seconds that masters have before, to save their jobs.
        headroom: slots that are kept free of workers.
        devices: the accelerators, as in the settings.
        device_turns: whether those that share one take turns.
        isolation: what keeps jobs apart, as in the settings.
        uids: user ids for namespaces.
        preloads: by role, or by role and framework, the module that a zygote imports before it forks such processes.
        certificate_hours: how long the certificates of processes are valid.
        keep_ended: processes that have ended and are remembered.

    Raises:
        InvalidInputError: no slots, or a token or secret that is too short to be one.
    """

    def __init__(
        self,
        directories: AgentDirectories,
        endpoints: Endpoints,
        node_token: str,
        slots: int,
        commands: Mapping[Role, Sequence[str]] = COMMANDS,
        *,
        stop_grace_s: float = STOP_GRACE_S,
        master_grace_s: float = MASTER_GRACE_S,
        headroom: int = 0,
        devices: str = OFF,
        device_turns: bool = True,
        isolation: str = "off",
        uids: range = range(0),
        preloads: Mapping[str, str] | None = None,
        certificate_hours: float = DEFAULT_HOURS,
        keep_ended: int = KEEP_ENDED,
        job_disk_mib: int = 0,
        job_shared_memory_mib: int = 0,
    ) -> None:
        if slots < 1:
            raise InvalidInputError(
                f"an agent with {slots} slots can run no worker", fix="set ELASTICDL_SLOTS to 1 or more"
            )
        if min(len(node_token), len(endpoints.cluster_secret)) < _MIN_SECRET:
            raise InvalidInputError(
                f"the node token and the cluster secret must have {_MIN_SECRET} characters or more",
                fix="set ELASTICDL_NODE_TOKEN and ELASTICDL_CLUSTER_SECRET to long random text",
            )
        self._directories = directories
        self._endpoints = endpoints
        self._node_token = node_token
        self._slots = slots
        self._commands = commands
        self._stop_grace_s = stop_grace_s
        self._master_grace_s = master_grace_s
        self._headroom = headroom
        parse_devices(devices)
        self._devices, self._device_turns = devices, device_turns
        self._isolation = isolation
        self._keep_ended = keep_ended
        self._quotas = job_disk_mib, job_shared_memory_mib
        self._uids = uids
        self._preloads = dict(preloads or {})
        self._zygotes = contextlib.AsyncExitStack()
        self._table: ProcessTable | None = None
        self._server: Server | None = None
        self.address = agent_address(directories.run, endpoints.transport)
        self._credentials: CredentialFiles | None = None
        if endpoints.transport is RpcTransport.TLS:
            self._credentials = CredentialFiles(directories.run, endpoints.cluster_secret, certificate_hours)
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Agent:
        prepare_run_dir(self._directories.run)
        self._directories.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        isolation = await asyncio.to_thread(
            Isolation.find,
            self._isolation,
            self._directories,
            self._uids,
            self._slots,
            self._commands[Role.WORKER][0],
        )
        turns = self._directories.run / "devices" if self._device_turns else None
        devices = await asyncio.to_thread(MachineDevices.find, self._devices, turns)
        zygotes = {
            kind: await self._zygotes.enter_async_context(
                ZygoteClient(
                    module, common_environment(), start_delay_s=START_DELAY_S if kind in list(Role) else None
                )
            )
            for kind, module in self._preloads.items()
        }
        self._table = ProcessTable(
            self._directories,
            self._endpoints,
            self._slots,
            self._commands,
            headroom=self._headroom,
            zygotes=zygotes,
            isolation=isolation,
            credentials=self._credentials,
            keep_ended=self._keep_ended,
            quotas=Quotas(self._directories, *self._quotas),
            devices=devices,
            memory_mib=MemoryGroups().room().for_jobs_mib,
        )
        meters.show_all("agent", self._table.meters)
        meters.show_disk(self._directories.data)
        own = self._issue_own()
        servicer = AgentServicer(TableLauncher(self._table, self._directories), self._directories)
        self._server = make_server(SERVICE, servicer, authenticator(self._node_token, self._endpoints.cluster_secret))
        listen(self._server, self.address, own)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._table is not None:
            await self._table.close(grace_s=self._stop_grace_s, master_grace_s=self._master_grace_s)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._zygotes.aclose()
        if self._server is not None:
            await self._server.stop(grace=0.5)

    def _issue_own(self) -> RpcCredentials | None:
        if self._credentials is None:
            return None
        self._credentials.issue_own()
        self._renewing = asyncio.create_task(self._renew(self._credentials), name="credentials")
        return RpcCredentials(self._credentials.agent)

    @staticmethod
    async def _renew(credentials: CredentialFiles) -> None:
        while True:
            await asyncio.sleep(credentials.pause_s)
            credentials.renew()


def prepare_run_dir(run: Path) -> None:
    """Makes the run directory, for this user alone, without what an earlier agent left in it.

    Raises:
        InvalidInputError: it belongs to somebody else, or others can enter it.
    """
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = run.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o066:
        raise InvalidInputError(
            f"the run directory {run} belongs to another user or is open to others",
            fix="remove it, or set ELASTICDL_RUN_DIR to a directory of mode 0700 that is yours",
        )
    (run / "agent.sock").unlink(missing_ok=True)
