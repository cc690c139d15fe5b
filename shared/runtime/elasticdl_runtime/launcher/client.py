"""The process launcher: the launcher port, spoken to the agent of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from elasticdl_core.meters import MeterKey, known_meters
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    Inquiry,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessStatus,
    Role,
)
from elasticdl_proto.v1 import agent_pb2
from elasticdl_runtime.launcher import codec
from elasticdl_runtime.launcher.addresses import process_address
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.credentials import RpcCredentials

SERVICE = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
_DEADLINE_S = 5.0
_LOGS_DEADLINE_S = 60.0
_INSPECTION_S = 10.0


class ProcessLauncher:
    """Launches processes through the agent; implements ``elasticdl_core.ports.launcher.Launcher``.

        async with ProcessLauncher("unix:/run/agent.sock", token) as launcher:
            await launcher.launch(spec)

    The channel is opened by the first call; close it with ``close()`` or by leaving ``async with``.

    Args:
        agent_address: ``unix:<run directory>/agent.sock``, or ``tls://<name>@<host>:<port>``.
        token: the node token, or a master's job token, or a function that returns the present one.
        deadline_s: seconds after which a call fails with UnavailableError.
        credentials: what to show under TLS; those of this process by default.

    Raises:
        InvalidInputError: that is no address of an agent.
    """

    def __init__(
        self,
        agent_address: str,
        token: str | Callable[[], str],
        *,
        deadline_s: float = _DEADLINE_S,
        credentials: RpcCredentials | None = None,
    ) -> None:
        process_address(agent_address, "any", Role.MASTER, 0)
        self._agent_address = agent_address
        self._credentials = credentials
        self._token = token
        self._deadline_s = deadline_s
        self._client: RpcClient | None = None

    async def __aenter__(self) -> ProcessLauncher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel to the agent; a later call would open another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def address(self, job_id: str, role: Role, index: int) -> str:
        """The gRPC address where that process listens: the same for each incarnation."""
        return process_address(self._agent_address, job_id, role, index)

    async def launch(self, spec: ProcessSpec) -> None:
        """Launches a process; does nothing if that id was launched before, whatever became of it.

        Raises:
            InvalidInputError: the id is malformed, or more slots are asked for than the machine has.
            ConflictError: a newer incarnation was launched, or the job or the agent is being stopped.
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        await self._call("Launch", codec.spec_to_message(spec))

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        """Asks the process to leave (SIGTERM), kills all of it after ``grace_s`` seconds. Returns at once.

        Does nothing for a process that has ended or was never launched.

        Raises:
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        await self._call("Terminate", agent_pb2.TerminateRequest(id=codec.id_to_message(process), grace_s=grace_s))

    async def terminate_job(self, job_id: str, *, grace_s: float) -> None:
        """Does so for all processes of a job, and ends its pending ones; a master leaves itself out.

        Raises:
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        await self._call("TerminateJob", agent_pb2.TerminateJobRequest(job_id=job_id, grace_s=grace_s))

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        """All known processes of a job, or of all jobs, oldest first.

        Raises:
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        response = await self._call("List", agent_pb2.ListRequest(job_id=job_id or ""))
        return [codec.status_from_message(message) for message in response.processes]

    async def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        """Yields the present statuses of a job's processes, then each change, for as long as it is read.

        Raises:
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent went away; call again to see the present statuses anew.
        """
        request = agent_pb2.WatchRequest(job_id=job_id)
        async with contextlib.aclosing(self._channel().stream("Watch", request, deadline_s=None)) as messages:
            async for message in messages:
                yield codec.status_from_message(message)

    async def capacity(self) -> CapacityInfo:
        """Slots in all, in use, and reserved by others.

        Raises:
            UnavailableError: the agent is down or slow.
        """
        return codec.capacity_from_message(await self._call("Capacity", agent_pb2.CapacityRequest()))

    async def reserve(self, name: str, slots: int, *, grace_s: float) -> None:
        """Takes slots from jobs for processes that are not ours; returns at once.

        Raises:
            InvalidInputError: the name is malformed, or there are not that many slots.
            PermissionDeniedError: the token is not the node's.
            UnavailableError: the agent is down or slow.
        """
        await self._call("Reserve", agent_pb2.ReserveRequest(name=name, slots=slots, grace_s=grace_s))

    async def release(self, name: str) -> None:
        """Gives reserved slots back to jobs.

        Raises:
            NotFoundError: there is no such reservation.
            PermissionDeniedError: the token is not the node's.
            UnavailableError: the agent is down or slow.
        """
        await self._call("Release", agent_pb2.ReleaseRequest(name=name))

    async def logs(
        self,
        job_id: str,
        role: Role,
        index: int,
        *,
        tail: int | None,
        follow: bool,
        since: float | None = None,
        lines: int | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yields pieces of what the incarnations of a process printed; with ``follow`` for as long as they are read.

        Args:
            job_id: the job.
            role: the process's role.
            index: which of that role.
            tail: begin that many bytes before the end; None for all.
            follow: go on with what is printed from now on, by later incarnations too; an empty piece comes again and
                again while all was read and none is running or pending.
            since: only what was printed then or later, in seconds since 1970, to a second; None for all.
            lines: begin that many lines before the end, whole ones, instead of ``tail``.

        Raises:
            NotFoundError: that process was never launched.
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        request = agent_pb2.LogsRequest(
            job_id=job_id,
            role=str(role),
            index=index,
            tail=-1 if tail is None else tail,
            follow=follow,
            since_ms=0 if since is None else max(1, int(since * 1000)),
            lines=0 if lines is None else lines + 1,
        )
        deadline_s = None if follow else _LOGS_DEADLINE_S
        async with contextlib.aclosing(self._channel().stream("Logs", request, deadline_s=deadline_s)) as chunks:
            async for chunk in chunks:
                yield chunk.data

    async def inspect(
        self, job_id: str | None, inquiry: Inquiry, *, seconds: float = 0.0
    ) -> Sequence[InspectedProcess]:
        """Asks all living processes of a job something; one that does not answer delays nobody for long.

        Args:
            job_id: the job; None for all jobs (``Inquiry.METRICS``).
            inquiry: what to ask.
            seconds: how long to record (``Inquiry.TRACE``).

        Raises:
            PermissionDeniedError: the token does not allow it.
            UnavailableError: the agent is down or slow.
        """
        request = agent_pb2.InspectRequest(job_id=job_id or "", ask=str(inquiry), seconds=seconds)
        async with contextlib.aclosing(
            self._channel().stream("Inspect", request, deadline_s=_INSPECTION_S)
        ) as messages:
            return [codec.inspected_from_message(message) async for message in messages]

    async def meters(self) -> Mapping[MeterKey, float]:
        """The agent's own numbers.

        Raises:
            PermissionDeniedError: the token is not the node's.
            UnavailableError: the agent is down or slow.
        """
        response = await self._call("Meters", agent_pb2.MetersRequest())
        return known_meters([(one.name, one.label, one.value) for one in response.values])

    def _channel(self) -> RpcClient:
        if self._client is None:
            self._client = RpcClient(self._agent_address, SERVICE, self._token, self._credentials)
        return self._client

    async def _call(self, method: str, request: object) -> Any:
        return await self._channel().call(method, request, deadline_s=self._deadline_s)
