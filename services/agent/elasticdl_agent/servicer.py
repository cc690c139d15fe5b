"""Serves the agent's RPCs: checks who may ask for what, and translates messages."""

# ruff: noqa: N802 - the methods are named as in the .proto file

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from elasticdl_agent.directories import AgentDirectories
from elasticdl_core.errors import ConflictError, InvalidInputError, PermissionDeniedError
from elasticdl_core.ports.launcher import Inquiry, Launcher, ProcessId, Role, Tenant
from elasticdl_proto.v1 import agent_pb2
from elasticdl_runtime import tokens
from elasticdl_runtime.launcher import codec
from elasticdl_runtime.launcher.addresses import NODE_NAME
from elasticdl_runtime.telemetry import meters

MASTER_ROLES = frozenset({Role.PS, Role.WORKER})
"""What a master may launch and end; masters themselves are launched by the api."""
_MAX_GRACE_S = 600.0


@dataclass(frozen=True, slots=True)
class AgentCaller:
    """The authenticated caller.

    Attributes:
        job_id: the job of the master that called; None for the node token, which may do everything.
    """

    job_id: str | None

    @property
    def certificate_name(self) -> str:
        """For whom the caller's certificate is."""
        return NODE_NAME if self.job_id is None else tokens.certificate_name(self.job_id, Role.MASTER, 0)

    def require_job(self, job_id: str) -> None:
        """Refuses a master that asks for another job.

        Raises:
            PermissionDeniedError: the job is not the caller's.
        """
        if self.job_id not in (None, job_id):
            raise PermissionDeniedError(
                f"a master of {self.job_id} may not touch job {job_id!r}",
                fix="name your own job, or use the node token",
            )

    def require_node(self) -> None:
        """Refuses masters.

        Raises:
            PermissionDeniedError: a master calls.
        """
        if self.job_id is not None:
            raise PermissionDeniedError(
                "a master may ask for its own job only, and reserve nothing", fix="use the node token"
            )

    def require_process(self, process: ProcessId) -> None:
        """Refuses a master that asks for another job's process, or for a master.

        Raises:
            PermissionDeniedError: the process is not the caller's to touch.
        """
        self.require_job(process.job_id)
        if self.job_id is not None and process.role not in MASTER_ROLES:
            raise PermissionDeniedError(f"a master may not touch a {process.role}", fix="launch ps and workers only")


def authenticator(node_token: str, cluster_secret: str) -> Callable[[str], AgentCaller]:
    """Makes the function that turns a token into its caller.

    Raises (the function):
        UnauthenticatedError: the token is neither the node's nor a valid job token.
        PermissionDeniedError: it is a job token, but not a master's.
    """

    def authenticate(token: str) -> AgentCaller:
        if hmac.compare_digest(token.encode(), node_token.encode()):
            return AgentCaller(None)
        job_id = tokens.peek_job_id(token)
        claims = tokens.verify(tokens.derive_job_secret(cluster_secret, job_id), token, job_id=job_id)
        claims.require(Role.MASTER)
        return AgentCaller(job_id)

    return authenticate


class ServedLauncher(Launcher, Protocol):
    """The launcher that the agent serves: one that tells the roles of a job apart."""

    def leaving(self, job_id: str) -> bool:
        """Whether the job as a whole was told to leave and has not left yet."""
        ...

    async def terminate_job(self, job_id: str, *, grace_s: float, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Terminates the processes of a job that have these roles; of all roles, the job leaves as a whole."""
        ...


class AgentServicer:
    """Serves the Agent service of ``agent.proto``.

    Args:
        launcher: has the processes.
        directories: say what an id may be.
    """

    def __init__(self, launcher: ServedLauncher, directories: AgentDirectories) -> None:
        self._launcher = launcher
        self._directories = directories

    async def Launch(self, request: agent_pb2.LaunchRequest, caller: AgentCaller) -> agent_pb2.LaunchResponse:
        """Launches a process once."""
        spec = codec.spec_from_message(request)
        caller.require_process(spec.id)
        if caller.job_id is not None and self._launcher.leaving(caller.job_id):
            raise ConflictError(f"job {caller.job_id} is being terminated", fix="launch nothing more and exit")
        # Whose a job is the node says: a master is believed in nothing about it.
        await self._launcher.launch(spec if caller.job_id is None else replace(spec, tenant=Tenant()))
        return agent_pb2.LaunchResponse()

    async def Terminate(
        self, request: agent_pb2.TerminateRequest, caller: AgentCaller
    ) -> agent_pb2.TerminateResponse:
        """Asks a process to leave."""
        process = codec.id_from_message(request.id)
        caller.require_process(process)
        await self._launcher.terminate(process, grace_s=_grace(request.grace_s))
        return agent_pb2.TerminateResponse()

    async def TerminateJob(
        self, request: agent_pb2.TerminateJobRequest, caller: AgentCaller
    ) -> agent_pb2.TerminateResponse:
        """Asks all processes of a job to leave; for a master, all but itself."""
        caller.require_job(request.job_id)
        roles = frozenset(Role) if caller.job_id is None else MASTER_ROLES
        self._directories.check(ProcessId(request.job_id, Role.MASTER, 0, 0))
        await self._launcher.terminate_job(request.job_id, grace_s=_grace(request.grace_s), roles=roles)
        return agent_pb2.TerminateResponse()

    async def List(self, request: agent_pb2.ListRequest, caller: AgentCaller) -> agent_pb2.ListResponse:
        """Lists processes."""
        caller.require_job(request.job_id)
        statuses = await self._launcher.list(request.job_id or None)
        return agent_pb2.ListResponse(processes=[codec.status_to_message(status) for status in statuses])

    async def Watch(
        self, request: agent_pb2.WatchRequest, caller: AgentCaller
    ) -> AsyncGenerator[agent_pb2.ProcessStatus]:
        """Streams the statuses of a job's processes."""
        caller.require_job(request.job_id)
        async with contextlib.aclosing(self._launcher.watch(request.job_id)) as statuses:
            async for status in statuses:
                yield codec.status_to_message(status)

    async def Capacity(self, request: agent_pb2.CapacityRequest, caller: AgentCaller) -> agent_pb2.CapacityResponse:
        """Slots in all, in use, and reserved by others."""
        return codec.capacity_to_message(await self._launcher.capacity())

    async def Reserve(self, request: agent_pb2.ReserveRequest, caller: AgentCaller) -> agent_pb2.ReserveResponse:
        """Takes slots from jobs."""
        caller.require_node()
        await self._launcher.reserve(request.name, int(request.slots), grace_s=request.grace_s)
        return agent_pb2.ReserveResponse()

    async def Release(self, request: agent_pb2.ReleaseRequest, caller: AgentCaller) -> agent_pb2.ReserveResponse:
        """Gives reserved slots back."""
        caller.require_node()
        await self._launcher.release(request.name)
        return agent_pb2.ReserveResponse()

    async def Logs(self, request: agent_pb2.LogsRequest, caller: AgentCaller) -> AsyncGenerator[agent_pb2.LogsChunk]:
        """Streams what a process printed."""
        caller.require_job(request.job_id)
        process = ProcessId(request.job_id, codec.role_from_text(request.role), request.index, 0)
        self._directories.check(process)
        pieces = self._launcher.logs(
            process.job_id,
            process.role,
            process.index,
            tail=None if request.tail < 0 else int(request.tail),
            follow=request.follow,
            since=request.since_ms / 1000 if request.since_ms > 0 else None,
            lines=int(request.lines) - 1 if request.lines > 0 else None,
        )
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield agent_pb2.LogsChunk(data=piece)

    async def Inspect(
        self, request: agent_pb2.InspectRequest, caller: AgentCaller
    ) -> AsyncGenerator[agent_pb2.InspectedProcess]:
        """Asks the processes of a job what they do, or those of all jobs for their numbers."""
        caller.require_job(request.job_id)
        try:
            inquiry = Inquiry(request.ask)
        except ValueError:
            raise InvalidInputError(
                f"no process can be asked for {request.ask!r}", fix=f"ask for one of {', '.join(Inquiry)}"
            ) from None
        if request.job_id:
            self._directories.check(ProcessId(request.job_id, Role.MASTER, 0, 0))
        elif inquiry is not Inquiry.METRICS:
            raise InvalidInputError(f"{inquiry} of all jobs would be too much", fix="ask for one job")
        for found in await self._launcher.inspect(request.job_id or None, inquiry, seconds=request.seconds):
            yield codec.inspected_to_message(found)

    async def Meters(self, request: agent_pb2.MetersRequest, caller: AgentCaller) -> agent_pb2.MetersResponse:
        """The agent's own numbers."""
        caller.require_node()
        values = [agent_pb2.MeterValue(name=name, label=label, value=value) for name, label, value in meters.read()]
        return agent_pb2.MetersResponse(values=values)


def _grace(seconds: float) -> float:
    if not 0.0 <= seconds <= _MAX_GRACE_S:
        raise InvalidInputError(
            f"a grace of {seconds} s is out of range", fix=f"give between 0 and {_MAX_GRACE_S:.0f} seconds"
        )
    return seconds
