"""The launcher port in front of the table of this machine's processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.logs import read_logs
from elasticdl_agent.table import ProcessTable
from elasticdl_core.meters import MeterKey
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    Inquiry,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessStatus,
    Role,
)


class TableLauncher:
    """Implements the port; what each method does and raises, the table says.

    Args:
        table: the processes.
        directories: where logs are.
    """

    def __init__(self, table: ProcessTable, directories: AgentDirectories) -> None:
        self._table = table
        self._directories = directories

    def address(self, job_id: str, role: Role, index: int) -> str:
        """Never asked of the agent: addresses follow from its own."""
        raise NotImplementedError

    def leaving(self, job_id: str) -> bool:
        """Whether the job as a whole was told to leave and has not left yet."""
        return self._table.leaving(job_id)

    async def launch(self, spec: ProcessSpec) -> None:
        """Launches a process, or lets it wait."""
        self._table.launch(spec)

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        """Asks a process to leave."""
        self._table.terminate(process, grace_s=grace_s)

    async def terminate_job(self, job_id: str, *, grace_s: float, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Asks those of a job to leave."""
        self._table.terminate_job(job_id, grace_s=grace_s, roles=roles)

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        """All known processes, oldest first."""
        return self._table.statuses(job_id)

    def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        """Yields the present statuses, then each change."""
        return self._table.watch(job_id)

    async def capacity(self) -> CapacityInfo:
        """Slots in all, in use, and reserved by others."""
        return self._table.capacity()

    async def reserve(self, name: str, slots: int, *, grace_s: float) -> None:
        """Takes slots from jobs."""
        self._table.reserve(name, slots, grace_s)

    async def release(self, name: str) -> None:
        """Gives reserved slots back."""
        self._table.release(name)

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
        """Yields what the incarnations of a process printed."""
        pieces = read_logs(
            self._directories.log_dir(job_id),
            role,
            index,
            tail=tail,
            follow=follow,
            may_grow=lambda: self._table.may_print_more(job_id, role, index),
            since=since,
            lines=lines,
        )
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def inspect(
        self, job_id: str | None, inquiry: Inquiry, *, seconds: float = 0.0
    ) -> Sequence[InspectedProcess]:
        """Asks the living processes of a job something."""
        return await self._table.inspect(job_id, inquiry, seconds=seconds)

    async def meters(self) -> Mapping[MeterKey, float]:
        """The numbers of present and past processes."""
        return {key: value for key, value in self._table.meters().items() if value is not None}
