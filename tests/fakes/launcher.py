"""An in-memory launcher for tests: it starts no process; a test says what becomes of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM

from elasticdl_agent.directories import AgentDirectories
from elasticdl_core.devices import WHOLE, DevicePool
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError
from elasticdl_core.meters import MeterKey
from elasticdl_core.pods import PodRules
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    DeviceInfo,
    DeviceUse,
    Inquiry,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
    SlotReservation,
)

_NOWHERE = AgentDirectories(Path("/nowhere"), Path("/nowhere"))


class FakeLauncher:
    """Implements the launcher port; passes the same contract suite as the process launcher.

    Args:
        slots: worker slots.
        obedient: whether a terminated process leaves at once; if not, a test ends it with ``finish``.

    Attributes:
        launched: every specification in the order of its first launch.
        grace: the grace of each process that was asked to leave.
        answers: what processes answer to inquiries; those that are not here answer nothing.
        pods: what jobs may ask of pods, where the processes are some.
        devices: what there is of accelerators; each living worker that asks for a share gets one.
    """

    def __init__(self, slots: int = 4, *, obedient: bool = True) -> None:
        self.launched: list[ProcessSpec] = []
        self.grace: dict[ProcessId, float] = {}
        self._slots = slots
        self._obedient = obedient
        self._specs: dict[ProcessId, ProcessSpec] = {}
        self._statuses: dict[ProcessId, ProcessStatus] = {}
        self._reasons: dict[ProcessId, str] = {}
        self._output: dict[ProcessId, bytes] = {}
        self._printed_at: dict[ProcessId, float] = {}
        self.answers: dict[tuple[ProcessId, Inquiry], bytes] = {}
        self.asked_since: float | None = None
        self.devices: tuple[DeviceInfo, ...] = ()
        self.pods: PodRules | None = None
        self._watchers: dict[asyncio.Queue[ProcessStatus], str] = {}
        self._reservations: dict[str, SlotReservation] = {}
        self._pids = 1000

    async def __aenter__(self) -> FakeLauncher:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    # -- what a test says ------------------------------------------------------------------------------------------

    def finish(self, process: ProcessId, exit_code: int = 0, *, reason: str = "") -> None:
        """A running process ends."""
        assert self._statuses[process].state is ProcessState.RUNNING, f"{process} does not run"
        self._end(process, exit_code, reason)

    def say(self, status: ProcessStatus) -> None:
        """A process is as this says."""
        self._set(status)

    def print(self, process: ProcessId, data: bytes) -> None:
        """A process prints."""
        self._output[process] += data
        self._printed_at[process] = time.time()

    # -- the port --------------------------------------------------------------------------------------------------

    def address(self, job_id: str, role: Role, index: int) -> str:
        return f"unix:/nowhere/{job_id}/{role}-{index}.sock"

    async def launch(self, spec: ProcessSpec) -> None:
        if spec.id in self._statuses:
            return
        _NOWHERE.check(spec.id)
        if not 0 <= spec.slots <= self._slots:
            raise InvalidInputError(f"cannot launch {spec.id}", fix="ask for what there is")
        if spec.pod.asked and self.pods is None:
            raise InvalidInputError(f"{spec.id} is no pod", fix="leave out what only a pod has")
        siblings = [other for other in self._statuses if _place(other) == _place(spec.id)]
        if any(other.incarnation > spec.id.incarnation for other in siblings):
            raise ConflictError(f"a newer incarnation of {spec.id} was launched", fix="take a higher one")
        self.launched.append(spec)
        self._specs[spec.id] = spec
        self._output[spec.id] = b""
        self._set(ProcessStatus(spec.id, ProcessState.PENDING))
        for other in siblings:
            if self._statuses[other].state is not ProcessState.EXITED:
                self._end(other, -SIGTERM, "terminated")
        self._advance()

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        status = self._statuses.get(process)
        if status is None or status.state is ProcessState.EXITED:
            return
        self.grace.setdefault(process, grace_s)
        self._reasons[process] = "terminated"
        if self._obedient or status.state is ProcessState.PENDING:
            self._end(process, -SIGTERM, "terminated")

    async def terminate_job(self, job_id: str, *, grace_s: float) -> None:
        living = [p for p, s in self._statuses.items() if p.job_id == job_id and s.state is not ProcessState.EXITED]
        for process in sorted(living, key=lambda p: self._statuses[p].state is ProcessState.RUNNING):
            await self.terminate(process, grace_s=grace_s)

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        return [status for process, status in self._statuses.items() if job_id in (None, process.job_id)]

    async def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        queue: asyncio.Queue[ProcessStatus] = asyncio.Queue()
        self._watchers[queue] = job_id
        try:
            for status in await self.list(job_id):
                yield status
            while True:
                yield await queue.get()
        finally:
            del self._watchers[queue]

    async def capacity(self) -> CapacityInfo:
        used: dict[str, int] = {}
        for process, status in self._statuses.items():
            slots = self._specs[process].slots
            if slots and status.state is not ProcessState.EXITED:
                used[process.job_id] = used.get(process.job_id, 0) + slots
        pool, uses = DevicePool([WHOLE] * len(self.devices)), []
        for process, status in self._statuses.items():
            share = self._specs[process].device_share
            if share and status.state is ProcessState.RUNNING and (place := pool.find(share)) is not None:
                pool.take(share, place)
                uses.append(DeviceUse(process.job_id, process.index, place, share))
        return CapacityInfo(
            self._slots,
            used,
            tuple(self._reservations.values()),
            devices=self.devices,
            device_uses=tuple(uses),
            pods=self.pods,
        )

    async def reserve(self, name: str, slots: int, *, grace_s: float) -> None:
        others = sum(one.slots for one in self._reservations.values() if one.name != name)
        if not name.islower() or not 0 <= slots <= self._slots - others:
            raise InvalidInputError(f"cannot reserve {slots} slots for {name!r}", fix="ask for what there is")
        known = self._reservations.get(name)
        granted = 0 if known is None else min(known.granted, slots)
        self._reservations[name] = SlotReservation(name, slots, granted, grace_s, 0.0)
        self._advance()

    async def release(self, name: str) -> None:
        if self._reservations.pop(name, None) is None:
            raise NotFoundError(f"no slots are reserved for {name!r}", fix="do nothing")
        self._advance()

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
        mine = [process for process in self._statuses if _place(process) == (job_id, role, index)]
        if not mine:
            raise NotFoundError(f"there is no log of {role} {index}", fix="wait until it has started")
        self.asked_since = since
        if since is not None:
            mine = [process for process in mine if self._printed_at.get(process, since) >= since]
        if lines is not None:
            whole = b"".join(self._output[process] for process in mine).splitlines(keepends=True)
            tail = len(b"".join(whole[-lines:])) if lines else 0
        sent = 0 if tail is None else max(0, sum(len(self._output[process]) for process in mine) - tail)
        while True:
            data = b"".join(self._output[process] for process in mine)
            if len(data) > sent:
                yield data[sent:]
                sent = len(data)
            elif not follow:
                return
            elif all(self._statuses[process].state is ProcessState.EXITED for process in mine):
                yield b""
            mine = [process for process in self._statuses if _place(process) == (job_id, role, index)]
            await asyncio.sleep(0)

    async def meters(self) -> Mapping[MeterKey, float]:
        return {("elasticdl_agent_launches_total", ""): float(len(self.launched))}

    async def inspect(
        self, job_id: str | None, inquiry: Inquiry, *, seconds: float = 0.0
    ) -> Sequence[InspectedProcess]:
        return [
            InspectedProcess(process, "pending")
            if status.state is ProcessState.PENDING
            else InspectedProcess(process, "sleeping", self.answers.get((process, inquiry), b""))
            for process, status in self._statuses.items()
            if job_id in (None, process.job_id) and status.state is not ProcessState.EXITED
        ]

    # -- the inside ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        running = [p for p, s in self._statuses.items() if s.state is ProcessState.RUNNING]
        free = self._slots - sum(self._specs[process].slots for process in running)
        free -= sum(one.granted for one in self._reservations.values())
        for one in self._reservations.values():
            granted = one.granted + max(0, min(one.slots - one.granted, free))
            free -= one.slots - one.granted
            done = 0.0 if granted == one.slots else None
            self._reservations[one.name] = replace(one, granted=granted, granted_at=done)
        for process, status in list(self._statuses.items()):
            needed = self._specs[process].slots
            if status.state is not ProcessState.PENDING:
                continue
            if needed > free:
                free = 0
                continue
            free -= needed
            self._pids += 1
            self._set(replace(status, state=ProcessState.RUNNING, pid=self._pids))

    def _end(self, process: ProcessId, exit_code: int, reason: str) -> None:
        reason = self._reasons.get(process, reason)
        self._set(ProcessStatus(process, ProcessState.EXITED, exit_code, reason))
        self._advance()

    def _set(self, status: ProcessStatus) -> None:
        self._statuses[status.id] = status
        for queue, job_id in self._watchers.items():
            if job_id == status.id.job_id:
                queue.put_nowait(status)


def _place(process: ProcessId) -> tuple[str, Role, int]:
    return process.job_id, process.role, process.index
