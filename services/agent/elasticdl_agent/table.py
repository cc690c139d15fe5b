"""The agent's table of processes: which run, which wait for a slot, which have ended and why.

All methods run on one event loop and change the table without awaiting in between, so that it needs no lock.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from signal import SIGKILL, SIGTERM

import psutil
import structlog

from elasticdl_agent.directories import AgentDirectories, JobUser
from elasticdl_agent.entry import ProcessEntry
from elasticdl_agent.limits import LimitWatch
from elasticdl_agent.processes.child import Child, Command
from elasticdl_agent.processes.credentials import CredentialFiles
from elasticdl_agent.processes.devices import MachineDevices
from elasticdl_agent.processes.environment import Endpoints, check_variables, process_environment
from elasticdl_agent.processes.inquiries import Living, ProcessInquiries
from elasticdl_agent.processes.inspection import Inspected
from elasticdl_agent.processes.isolation import Isolation
from elasticdl_agent.processes.journal import Journal, Record, recover, shim_record
from elasticdl_agent.processes.logs import note
from elasticdl_agent.processes.quotas import Quotas
from elasticdl_agent.processes.reservations import Reservations
from elasticdl_agent.zygote.client import ZygoteClient
from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, NotFoundError
from elasticdl_core.meters import MeterKey
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    DeviceUse,
    Inquiry,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
    Tenant,
)
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.rpc.credentials import CREDENTIALS_VARIABLE
from elasticdl_runtime.telemetry import inspection

COMMANDS: Mapping[Role, Sequence[str]] = {role: (sys.executable, "-P", "-m", f"elasticdl_{role}") for role in Role}
"""What each role runs. ``-P`` keeps the working directory off the module path."""
OVERDUE_GRACE_S = 2.0
"""Time between the signal and the end of a worker whose slot was to be left already."""
KEEP_ENDED = 10_000
"""Processes that have ended and are remembered, unless the settings say another number."""
_CANNOT_START = 127
_log = structlog.get_logger(__name__)


class ProcessTable:
    """Launches and ends processes on this machine.

    Args:
        directories: the directories.
        endpoints: what masters are told.
        slots: worker slots of this machine.
        commands: what each role runs; other than the default in tests only.
        headroom: slots that no worker takes.
        zygotes: by kind (see ``kind_of``), what forks its processes; the others get interpreters of their own.
        isolation: what is taken from processes.
        credentials: issued to processes, where they speak TLS.
        keep_ended: processes that have ended and are remembered; those of jobs of which nothing is left go first.
        quotas: what a job may take of disk and shared memory; by default what it may without settings.
        devices: the accelerators that are given out; none by default.
        memory_mib: MiB that processes of jobs may take together, as jobs are told; 0 for nothing.
    """

    def __init__(
        self,
        directories: AgentDirectories,
        endpoints: Endpoints,
        slots: int,
        commands: Mapping[Role, Sequence[str]] = COMMANDS,
        *,
        headroom: int = 0,
        zygotes: Mapping[str, ZygoteClient] | None = None,
        isolation: Isolation | None = None,
        credentials: CredentialFiles | None = None,
        keep_ended: int = KEEP_ENDED,
        quotas: Quotas | None = None,
        devices: MachineDevices | None = None,
        memory_mib: int = 0,
    ) -> None:
        self._memory_mib = memory_mib
        self._devices = devices or MachineDevices()
        self._keep_ended = keep_ended
        self._directories = directories
        self._endpoints = endpoints
        self._slots = slots
        self._commands = commands
        self._zygotes = dict(zygotes or {})
        self._isolation = isolation or Isolation(directories)
        self._credentials = credentials
        self._tenants: dict[str, Tenant] = {}
        self._entries: dict[ProcessId, ProcessEntry] = {}
        self._runs: set[asyncio.Task[int]] = set()
        self._watchers: dict[asyncio.Queue[ProcessStatus], str] = {}
        self._leaving: set[str] = set()
        self._removals: dict[str, asyncio.Task[OSError | None]] = {}
        self._inquiries = ProcessInquiries(directories.run, self._living)
        self._launches = self._endings = 0
        self._closing = False
        journal = directories.data / "agent" / "processes.jsonl"
        journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for record in recover(journal):
            status = record.status
            self._entries[status.id] = ProcessEntry(ProcessSpec(status.id), status, record=record)
        self._journal = Journal(journal)
        self._reservations = Reservations(directories.data / "agent" / "reservations.json", slots, headroom)
        self._reservations.grant(0, now=time.time())
        self._limits = LimitWatch(directories, self._running, self._user, self._isolation.uids, quotas)

    def launch(self, spec: ProcessSpec) -> None:
        """Launches a process, or lets it wait: for slots or a device, its job's end, or an older incarnation to go.

        The same id again does nothing. A newer incarnation replaces a living older one, which is killed: both would
        serve at the same address.

        Raises:
            InvalidInputError: the id is malformed, more slots or devices are asked for than there are, or no process
                can have such variables.
            ConflictError: a newer incarnation was launched before, or the agent is stopping.
        """
        self._directories.check(spec.id)
        if spec.id in self._entries:
            return
        if self._closing:
            raise ConflictError("the agent is stopping", fix="launch again when it is up")
        if not 0 <= spec.slots <= self._slots or spec.memory_mib < 0:
            raise InvalidInputError(
                f"{spec.id} wants {spec.slots} slots and {spec.memory_mib} MiB; this machine has {self._slots} slots",
                fix="ask for fewer slots, or give the cluster more with --slots",
            )
        if spec.pod.asked:
            raise InvalidInputError(
                f"{spec.id} asks for {', '.join(spec.pod.asked)}, and this machine makes processes, not pods",
                fix="leave that out, or submit the job to a cluster on Kubernetes (docs/kubernetes.md)",
            )
        self._devices.check(spec.device_share)
        check_variables(spec.environment)
        if any(other.incarnation > spec.id.incarnation for other in self._siblings(spec.id)):
            raise ConflictError(
                f"a newer incarnation of {spec.id} was launched before", fix="take a higher incarnation"
            )
        for kind, zygote in self._zygotes.items():
            if kind in list(Role) or kind == _kind(spec):
                zygote.ask()  # a job's workers follow its master
        if spec.id.role is Role.MASTER:
            self._tenants[spec.id.job_id] = spec.tenant
        entry = ProcessEntry(spec, ProcessStatus(spec.id, ProcessState.PENDING))
        self._entries[spec.id] = entry
        self._launches += 1
        self._changed(entry)
        try:
            failpoint("agent.after_accepted")
        finally:
            self._advance()

    def terminate(self, process: ProcessId, *, grace_s: float, reason: str = "terminated") -> None:
        """Asks a process to leave, kills its tree after ``grace_s`` seconds; a later call can only shorten that."""
        entry = self._entries.get(process)
        if entry is None or entry.ended:
            return
        entry.stop_reason = entry.stop_reason or reason
        if entry.waiting:
            self._end(entry, -SIGTERM)
            self._advance()
            return
        now = asyncio.get_running_loop().time()
        deadline = now + max(0.0, grace_s)
        first = entry.stop_at is None
        if entry.stop_at is None or deadline < entry.stop_at:
            entry.stop_at = deadline
            self._schedule_kill(entry)
        if first and entry.child is not None:
            entry.child.signal(SIGTERM)

    def terminate_job(self, job_id: str, *, grace_s: float, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Terminates the processes of a job; of all roles, its run directory goes when the last one has gone."""
        for entry in list(self._of_job(job_id)):
            if entry.spec.id.role in roles:
                self.terminate(entry.spec.id, grace_s=grace_s)
        if roles == frozenset(Role):
            self._leaving.add(job_id)
            self._finish_leaving(job_id)

    def leaving(self, job_id: str) -> bool:
        """Whether the job as a whole was told to leave and has not left yet."""
        return job_id in self._leaving

    def statuses(self, job_id: str | None = None) -> list[ProcessStatus]:
        """All known processes of a job, or of all jobs, oldest first."""
        return [entry.status for entry in self._entries.values() if job_id in (None, entry.spec.id.job_id)]

    async def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        """Yields the present statuses of a job's processes, then each change."""
        queue: asyncio.Queue[ProcessStatus] = asyncio.Queue()
        self._watchers[queue] = job_id
        try:
            for status in self.statuses(job_id):
                yield status
            while True:
                yield await queue.get()
        finally:
            del self._watchers[queue]

    def capacity(self) -> CapacityInfo:
        """Slots in all, and those that running and pending processes take."""
        used: dict[str, int] = {}
        for entry in self._entries.values():
            if entry.spec.slots and not entry.ended:
                used[entry.spec.id.job_id] = used.get(entry.spec.id.job_id, 0) + entry.spec.slots
        reservations = tuple(self._reservations.all())
        headroom, isolation = self._reservations.headroom, str(self._isolation)
        uses = sorted(
            DeviceUse(entry.spec.id.job_id, entry.spec.id.index, entry.place, entry.spec.device_share)
            for entry in self._holders()
            if entry.place
        )
        return CapacityInfo(
            self._slots,
            used,
            reservations,
            headroom,
            self._closing,
            isolation,
            self._devices.infos,
            tuple(uses),
            memory_mib=self._memory_mib,
        )

    def reserve(self, name: str, slots: int, grace_s: float) -> None:
        """Takes slots from jobs; workers that still hold them after ``grace_s`` seconds are ended.

        Raises:
            InvalidInputError: the name is malformed, or there are not that many slots.
        """
        loop = asyncio.get_running_loop()
        self._reservations.set(name, slots, grace_s, now=time.time(), clock=loop.time())
        self._advance()
        loop.call_later(grace_s, self._end_overdue)

    def release(self, name: str) -> None:
        """Gives reserved slots back.

        Raises:
            NotFoundError: there is no such reservation.
        """
        if not self._reservations.release(name):
            raise NotFoundError(f"no slots are reserved for {name!r}", fix="list the reservations, or do nothing")
        self._advance()

    def may_print_more(self, job_id: str, role: Role, index: int) -> bool:
        """Whether any incarnation of that process is running or pending."""
        return any(
            not entry.ended and (entry.spec.id.role, entry.spec.id.index) == (role, index)
            for entry in self._of_job(job_id)
        )

    async def inspect(self, job_id: str | None, inquiry: Inquiry, *, seconds: float) -> list[InspectedProcess]:
        """Asks the living processes of a job something, one inquiry after the other, or those of all jobs."""
        if job_id is None:
            return await self._inquiries.ask_all(inquiry)
        return await self._inquiries.ask(job_id, inquiry, seconds=seconds)

    def meters(self) -> dict[MeterKey, float | None]:
        """The numbers of present and past processes."""
        states = [entry.status.state for entry in self._entries.values() if not entry.ended]
        return {
            ("elasticdl_agent_processes", "pending"): states.count(ProcessState.PENDING),
            ("elasticdl_agent_processes", "running"): states.count(ProcessState.RUNNING),
            ("elasticdl_agent_launches_total", ""): self._launches,
            ("elasticdl_agent_ended_total", ""): self._endings,
        }

    async def close(self, *, grace_s: float, master_grace_s: float = 0.0) -> None:
        """Ends all processes (reason ``launcher_lost``) and waits until they are gone; launches nothing more.

        Masters go first, while their jobs' other processes live, so that they can save.

        Args:
            grace_s: seconds that processes have to leave.
            master_grace_s: seconds that masters have.
        """
        self._closing = True
        masters = [entry for entry in self._entries.values() if entry.spec.id.role is Role.MASTER]
        for entry in masters:
            self.terminate(entry.spec.id, grace_s=max(grace_s, master_grace_s), reason="launcher_lost")
        saving = [entry.run for entry in masters if entry.run is not None]
        if saving:
            await asyncio.wait(saving)
        for entry in list(self._entries.values()):
            self.terminate(entry.spec.id, grace_s=grace_s, reason="launcher_lost")
        if self._runs:
            await asyncio.wait(self._runs)
        if self._removals:
            await asyncio.wait(self._removals.values())
        await self._limits.close()
        self._journal.close()

    # -- launching -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Starts every pending process that can start now; for slots and devices it is first come, first served.

        Who waits for a device keeps the slot that is free for it, and holds up nobody who needs no device.
        """
        busy = sum(entry.spec.slots for entry in self._holders())
        self._reservations.grant(busy, now=time.time())
        free = self._slots - self._reservations.withheld - busy
        pool = self._devices.left((entry.spec.device_share, entry.place) for entry in self._holders())
        queue_open = devices_open = True
        for entry in [entry for entry in self._entries.values() if entry.waiting]:
            if self._closing or entry.spec.id.job_id in self._leaving:
                continue
            older = [other for other in self._siblings(entry.spec.id) if not self._entries[other].ended]
            older = [other for other in older if other.incarnation < entry.spec.id.incarnation]
            for other in older:
                self.terminate(other, grace_s=0.0)
            if older:
                continue
            if entry.spec.slots and (not queue_open or entry.spec.slots > free):
                queue_open = False
                continue
            free -= entry.spec.slots
            if share := entry.spec.device_share:
                place = pool.find(share) if devices_open else None
                if place is None:
                    devices_open = False
                    continue
                pool.take(share, place)
                entry.place = place
            entry.run = run = asyncio.create_task(self._live(entry), name=f"run-{entry.spec.id}")
            self._runs.add(run)
            run.add_done_callback(functools.partial(self._over, entry))

    async def _live(self, entry: ProcessEntry) -> int:
        """The life of a process, from before its start until nothing of it is left; returns its exit code."""
        tenant = self._tenant(entry.spec)
        level = self._isolation.level(tenant)
        self._directories.prepare(entry.spec.id, self._isolation.user(tenant), confined=level.user or level.files)
        failpoint("agent.before_start")
        zygote = self._zygotes.get(_kind(entry.spec))
        entry.child = child = await Child.start(self._command(entry), zygote.spawn if zygote else None)
        try:
            failpoint("agent.after_start")
            entry.status = replace(entry.status, state=ProcessState.RUNNING, pid=child.pid)
            self._changed(entry)
            if entry.stop_at is not None:
                child.signal(SIGTERM)
                self._schedule_kill(entry)
            code = await child.wait()
        finally:
            await child.end()
        if code == -SIGKILL and not entry.stop_reason and self._limits.oom_kills.lately():
            entry.stop_reason = "oom_killed"
        return code

    def _over(self, entry: ProcessEntry, run: asyncio.Task[int]) -> None:
        """The one place where slots come back: whatever ended the task, the process has ended, for a reason."""
        self._runs.discard(run)
        error = asyncio.CancelledError() if run.cancelled() else run.exception()
        try:
            if error is not None:
                self._explain(entry, error)
        finally:
            try:
                self._end(entry, _CANNOT_START if error is not None else run.result())
            finally:
                self._advance()

    def _explain(self, entry: ProcessEntry, error: BaseException) -> None:
        """Says why a process could not be started, or why nobody knows how it ended."""
        started = entry.status.state is ProcessState.RUNNING
        entry.stop_reason = entry.stop_reason or ("launcher_lost" if started else "cannot_start")
        what = "lost" if started else "cannot start"
        _log.error(what, process=str(entry.spec.id), error=str(error), exc_info=_unexpected(error))
        note(self._directories.log_file(entry.spec.id), f"{what}: {error}\n")

    def _command(self, entry: ProcessEntry) -> Command:
        spec = entry.spec
        tenant = self._tenant(spec)
        given = self._devices.give(spec.device_share, entry.place)
        environment = process_environment(spec, self._directories, self._endpoints) | given.environment
        if self._credentials is not None:
            file = self._credentials.issue(spec.id, self._isolation.user(tenant))
            environment[CREDENTIALS_VARIABLE] = str(file)
        environment |= self._isolation.environment(spec, tenant)
        # Not where a job's own TMPDIR leads: the agent knows these places, and paths of sockets must be short.
        folder = self._isolation.temporary_folder(spec, tenant)
        environment[inspection.VARIABLE] = str(folder / _inspection_name(spec.id))
        if spec.id.role is Role.WORKER:
            environment["ELASTICDL_SOCKETS"] = str(folder)
        return Command(
            argv=self._commands[spec.id.role],
            environment=environment,
            directory=self._isolation.directory(spec, tenant),
            log=self._directories.log_file(spec.id),
            expendable=True,
            confinement=self._isolation.plan(spec, tenant, accelerators=given.files, readable=given.turns),
        )

    def _inspection_file(self, spec: ProcessSpec) -> str:
        """The file through which a process is asked, relative to the run directory."""
        folder = self._isolation.temporary_folder(spec, self._tenant(spec))
        return str((folder / _inspection_name(spec.id)).relative_to(self._directories.run))

    def _tenant(self, spec: ProcessSpec) -> Tenant:
        """Whose a job is: its master's launch says so, which nobody but the api can ask for."""
        return self._tenants.get(spec.id.job_id, spec.tenant)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end_overdue(self) -> None:
        """Ends workers whose slots others wait for longer than agreed: those that were told to leave go first."""
        missing = self._reservations.overdue(asyncio.get_running_loop().time())
        holders = sorted(
            self._holders(), key=lambda entry: (entry.stop_at is None, -entry.spec.id.index, entry.spec.id)
        )
        for entry in holders:
            if missing <= 0:
                return
            missing -= entry.spec.slots
            _log.warning("ending a worker for a reservation", process=str(entry.spec.id))
            self.terminate(entry.spec.id, grace_s=OVERDUE_GRACE_S)

    def _schedule_kill(self, entry: ProcessEntry) -> None:
        if entry.child is None or entry.stop_at is None:
            return
        if entry.stopping is not None:
            entry.stopping.cancel()
        entry.stopping = asyncio.get_running_loop().call_at(entry.stop_at, entry.child.kill)

    def _end(self, entry: ProcessEntry, code: int) -> None:
        if entry.stopping is not None:
            entry.stopping.cancel()
        entry.status = ProcessStatus(entry.spec.id, ProcessState.EXITED, code, entry.stop_reason)
        entry.child = None
        self._endings += 1
        if self._credentials is not None:
            self._credentials.forget(entry.spec.id)
        try:
            failpoint("agent.before_exit_told")
        finally:
            _log.info("process ended", process=str(entry.spec.id), code=code, reason=entry.stop_reason)
            self._changed(entry)
            self._finish_leaving(entry.spec.id.job_id)
            self._forget_old()

    def _finish_leaving(self, job_id: str) -> None:
        gone = all(entry.ended or entry.waiting for entry in self._of_job(job_id))
        if job_id in self._leaving and gone and job_id not in self._removals:
            # What a tenant left may be a million files: nobody waits for it but the job itself, if it comes again.
            removal = asyncio.create_task(asyncio.to_thread(self._directories.remove_run_dir, job_id))
            self._removals[job_id] = removal
            removal.add_done_callback(partial(self._left, job_id))

    def _left(self, job_id: str, removal: asyncio.Task[OSError | None]) -> None:
        del self._removals[job_id]
        self._leaving.discard(job_id)
        failed = None if removal.cancelled() else removal.exception() or removal.result()
        if failed is not None:
            _log.warning("a job's run directory cannot be removed whole", job=job_id, error=str(failed))
        self._advance()

    def _forget_old(self) -> None:
        """Forgets processes of jobs of which nothing lives here, the oldest first, when very many have ended."""
        surplus = len(self._entries) - self._keep_ended
        if surplus > self._keep_ended // 10:
            busy = {process.job_id for process, entry in self._entries.items() if not entry.ended} | self._leaving
            old = [process for process in self._entries if process.job_id not in busy][:surplus]
            for process in old:
                del self._entries[process]
            present = {process.job_id for process in self._entries}
            self._tenants = {job_id: tenant for job_id, tenant in self._tenants.items() if job_id in present}
        records = [entry.record for entry in self._entries.values() if entry.record is not None]
        if self._journal.lines > 4 * (len(records) + self._keep_ended // 10):
            try:
                self._journal.compact(records)
            except OSError:
                _log.exception("cannot shorten the journal of processes")

    def _changed(self, entry: ProcessEntry) -> None:
        """Tells everybody. A journal that cannot be written costs the next agent's knowledge, and no process."""
        shim_pid = entry.child.shim_pid if entry.child is not None else 0
        try:
            entry.record = shim_record(entry.status, shim_pid) if shim_pid else Record(entry.status, time.time())
            self._journal.append(entry.record)
        except (OSError, psutil.Error):
            _log.exception("cannot write the journal of processes", process=str(entry.spec.id))
        for queue, job_id in self._watchers.items():
            if job_id == entry.spec.id.job_id:
                queue.put_nowait(entry.status)

    # -- looking ---------------------------------------------------------------------------------------------------

    def _holders(self) -> list[ProcessEntry]:
        """The processes that hold slots."""
        return [entry for entry in self._entries.values() if entry.holds_slots]

    def _of_job(self, job_id: str) -> list[ProcessEntry]:
        return [entry for process, entry in self._entries.items() if process.job_id == job_id]

    def _living(self, job_id: str | None) -> Living:
        """The living processes of a job, or of all jobs, and what is needed to ask them."""
        entries = self._entries.values() if job_id is None else self._of_job(job_id)
        return {
            entry.spec.id: Inspected(entry.spec.id, child.pid, self._inspection_file(entry.spec), child.signal)
            if (child := entry.child) is not None
            else None
            for entry in entries
            if not entry.ended
        }

    def _running(self) -> list[ProcessEntry]:
        """The processes that have started and are not known to have ended."""
        return [entry for entry in self._entries.values() if entry.child is not None]

    def _user(self, spec: ProcessSpec) -> JobUser | None:
        """The user that a job's processes run as, where that is one of its own."""
        return self._isolation.user(self._tenant(spec))

    def _siblings(self, process: ProcessId) -> list[ProcessId]:
        """Other incarnations of the same process."""
        return [
            other
            for other in self._entries
            if other != process
            and (other.job_id, other.role, other.index) == (process.job_id, process.role, process.index)
        ]


def _unexpected(error: BaseException) -> BaseException | None:
    """Whether an error deserves a traceback: not what a machine or a caller does wrong every day."""
    return None if isinstance(error, OSError | ElasticDLError) else error


def kind_of(role: Role, framework: str = "") -> str:
    """The common ground of processes that one zygote can fork: their role and, if not the usual, framework."""
    return f"{role}.{framework}" if framework else str(role)


def _kind(spec: ProcessSpec) -> str:
    framework = spec.environment.get("ELASTICDL_FRAMEWORK", "")
    return kind_of(spec.id.role, framework if framework != "tensorflow" else "")


def _inspection_name(process: ProcessId) -> str:
    return f"{process.owner}.inspection"
