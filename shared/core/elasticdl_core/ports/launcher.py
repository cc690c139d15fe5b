"""The launcher: what starts and stops the processes of jobs.

Adapters: ``process`` (an agent on this machine owns the children) and ``kubernetes`` (an agent makes pods).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from elasticdl_core.meters import MeterKey
from elasticdl_core.pods import PodRequest, PodRules

JOB_REVISION = 13
"""The migration that last changed what a job's specification means. An agent of before launches masters of before."""


INSPECTOR = 10_000
"""Index of the worker that looks at the model before the strategy is chosen: none that trains has it."""


class Role(enum.StrEnum):
    """Roles of a job's processes."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """Names one launch of one process; launching the same id twice launches once.

    Attributes:
        job_id: the job.
        role: master, PS or worker.
        index: which of that role.
        incarnation: how often this index was launched before.
    """

    job_id: str
    role: Role
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job_id}/{self.role}/{self.index}/{self.incarnation}"

    @property
    def owner(self) -> str:
        """Name used as the owner of leases and in traces, e.g. ``worker-3.1``."""
        return f"{self.role}-{self.index}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a job is, and what of the machine it was allowed to name.

    Attributes:
        namespace: the job's.
        restricted: whether it may touch its namespace's places only: not so for jobs of the cluster's administrator.
        readable: paths that its workers may read, beside their own.
        writable: paths that its workers may make and write.
    """

    namespace: str = ""
    restricted: bool = False
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The process to launch. The command follows from the role: no caller can make a launcher run anything else.

    Attributes:
        id: the process.
        environment: variables for the process besides those that the launcher gives every process.
        memory_mib: limit of resident memory in MiB; 0 for none.
        slots: worker slots that the process takes; it is pending until they are free.
        tenant: whose job it is. Told with a master; its PS and workers are the same tenant's, whatever it says.
        device_share: hundredths of a device that the process takes; it is pending until they are free, too.
        pod: what it asks for that only a pod has; a launcher without pods refuses it.
    """

    id: ProcessId
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = 0
    slots: int = 0
    tenant: Tenant = field(default_factory=Tenant)
    device_share: int = 0
    pod: PodRequest = field(default_factory=PodRequest)


class ProcessState(enum.StrEnum):
    """States of a process."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The known facts of a process.

    Attributes:
        id: the process.
        state: pending, running or exited.
        exit_code: its exit code, or minus the signal that ended it; None while it lives.
        reason: empty, or ``oom_killed``, ``terminated`` (asked to), ``cannot_start``, ``too_many_processes``,
            ``too_much_disk`` or ``too_much_shared_memory`` (its job has), ``launcher_lost`` (its launcher died).
        pid: process id while running, else 0.
        message: why it waits or ended, for people, where its launcher knows more than that.
    """

    id: ProcessId
    state: ProcessState
    exit_code: int | None = None
    reason: str = ""
    pid: int = 0
    message: str = ""

    @property
    def waits_for(self) -> str:
        """A sentence on what a process that has not begun waits for; empty where its launcher says nothing of it."""
        if self.state is not ProcessState.PENDING or not self.message:
            return ""
        return f"{self.id.owner} {self.message if self.message.startswith('waits ') else f'waits: {self.message}'}"


@dataclass(frozen=True, slots=True)
class SlotReservation:
    """Slots that processes which are not ours take, such as those of a service; above all jobs.

    Attributes:
        name: who takes them.
        slots: how many are asked for.
        granted: how many of them no worker holds any more.
        grace_s: seconds that workers have to leave them; then they are ended.
        changed_at: when it was last changed, in seconds since the epoch.
        granted_at: when all of them were granted; None while workers are still leaving.
    """

    name: str
    slots: int
    granted: int
    grace_s: float
    changed_at: float
    granted_at: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An accelerator of a launcher.

    Attributes:
        name: ``gpu0``, ``gpu1``, ...: by its number here.
        declared: whether it is there because somebody said so: no hardware was found.
        memory_mib: its memory; 0 if that is not known.
        model: what it is, in words; empty if that is not known.
    """

    name: str
    declared: bool = False
    memory_mib: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True, order=True)
class DeviceUse:
    """The devices that one process holds.

    Attributes:
        job_id: its job.
        index: which of the job's workers it is.
        devices: their numbers.
        share: hundredths of one device, or 100 for each of several.
    """

    job_id: str
    index: int
    devices: tuple[int, ...]
    share: int


@dataclass(frozen=True, slots=True)
class CapacityInfo:
    """The capacity of a launcher.

    Attributes:
        slots: worker slots in all.
        used: worker slots taken by running or pending processes, by job id.
        reservations: slots that are not for jobs.
        headroom: slots that no job takes, for reservations to come; those that there are go into it.
        isolation: what keeps jobs from the cluster's secrets and from each other, in words.
        closing: whether the launcher is being stopped, and all processes with it; masters first, so that they save.
        devices: the accelerators, by number.
        device_uses: who holds what of them, by job and worker.
        job_revision: what the masters that it launches take a job's specification to mean.
        pods: what jobs may ask of their pods; None where processes are no pods.
        memory_mib: MiB of memory that processes of jobs may take together; 0 where that is not told.
    """

    slots: int
    used: Mapping[str, int] = field(default_factory=dict)
    reservations: Sequence[SlotReservation] = ()
    headroom: int = 0
    closing: bool = False
    isolation: str = ""
    devices: Sequence[DeviceInfo] = ()
    device_uses: Sequence[DeviceUse] = ()
    job_revision: int = JOB_REVISION
    pods: PodRules | None = None
    memory_mib: int = 0

    @property
    def for_jobs(self) -> int:
        """Slots that jobs may have together: all, less what others asked for, or the headroom if that is more."""
        return max(0, self.slots - max(self.headroom, sum(one.slots for one in self.reservations)))


class Inquiry(enum.StrEnum):
    """Questions to a process."""

    STACKS = "stacks"
    METRICS = "metrics"
    TRACE = "trace"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class SystemThread:
    """A thread as the system sees it.

    Attributes:
        name: its name.
        state: running, sleeping, stopped, ...
        waits_in: a function of the kernel, if it is known.
    """

    name: str
    state: str
    waits_in: str = ""


@dataclass(frozen=True, slots=True)
class InspectedProcess:
    """The answer of a process. It runs a tenant's code: nothing of the answer is to be believed or of any size.

    Attributes:
        id: the process.
        state: what the system says of it: running, sleeping, stopped, ...; ``pending`` before it runs.
        answer: JSON, bounded in size; empty if it did not answer.
        dump: the stacks that its interpreter wrote in its stead, bounded in size.
        threads: if there is neither.
    """

    id: ProcessId
    state: str
    answer: bytes = b""
    dump: bytes = b""
    threads: tuple[SystemThread, ...] = ()


class Launcher(Protocol):
    """Starts, stops, lists and watches processes. Every call has a deadline and may raise UnavailableError."""

    def address(self, job_id: str, role: Role, index: int) -> str:
        """The gRPC address where that process listens: the same for each incarnation."""
        ...

    async def launch(self, spec: ProcessSpec) -> None:
        """Launches a process; does nothing if that id was launched before, whatever became of it."""
        ...

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        """Asks the process to leave (SIGTERM), kills its whole group after ``grace_s`` seconds. Returns at once."""
        ...

    async def terminate_job(self, job_id: str, *, grace_s: float) -> None:
        """Does so for all processes of a job, and forgets its pending ones."""
        ...

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        """All known processes of a job, or of all jobs, oldest first."""
        ...

    def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        """Yields the present statuses of a job's processes, then each change."""
        ...

    async def capacity(self) -> CapacityInfo:
        """Slots in all, in use, and reserved by others."""
        ...

    async def reserve(self, name: str, slots: int, *, grace_s: float) -> None:
        """Takes slots from jobs for processes that are not ours; workers have ``grace_s`` seconds to leave them.

        Sets the amount if there is such a reservation. Returns at once; ``capacity`` tells what is granted.
        """
        ...

    async def release(self, name: str) -> None:
        """Gives reserved slots back to jobs.

        Raises:
            NotFoundError: there is no such reservation.
        """
        ...

    def logs(
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
        """
        ...

    async def meters(self) -> Mapping[MeterKey, float]:
        """The launcher's own numbers."""
        ...

    async def inspect(
        self, job_id: str | None, inquiry: Inquiry, *, seconds: float = 0.0
    ) -> Sequence[InspectedProcess]:
        """Asks all living processes of a job something; one that does not answer delays nobody for long.

        Args:
            job_id: the job; None for all jobs (``Inquiry.METRICS``).
            inquiry: what to ask.
            seconds: how long to record (``Inquiry.TRACE``).
        """
        ...
