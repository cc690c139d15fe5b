"""A group of workers as the holder of its job's model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from elasticdl_core.checkpoint_manifest import Manifest, ManifestFile
from elasticdl_core.errors import ConflictError, DataError, UnavailableError
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.task import TaskId, lease_order
from elasticdl_master.group_calls import Share
from elasticdl_master.group_service import GroupService
from elasticdl_master.handed_in_shares import HandedInShares
from elasticdl_master.model_holder import SavedParts, ServerStatus
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.tally import Tallied
from elasticdl_runtime.lifecycle import wait_for_event
from elasticdl_runtime.rpc.deadlines import deadline_for_files

_DEADLINE_S = 60.0
_SAVE_S = 1800.0
_STEP_S = 0.05
Tell = Callable[[ev.Event], Awaitable[None]]


class GroupControl:
    """Commands the group of a job.

    Args:
        machine: decides.
        group_service: answers the members.
        tell: takes events.
        job_id: the job.
        handed_in: where members write their shares of a checkpoint; None if they may write into the checkpoint.
    """

    def __init__(
        self,
        machine: JobMachine,
        group_service: GroupService,
        tell: Tell,
        job_id: str,
        handed_in: HandedInShares | None = None,
    ) -> None:
        self._handed_in = handed_in
        self.addresses = ["group"]
        self._machine = machine
        self._group_service = group_service
        self._tell = tell
        self._job_id = job_id
        self._orders = 0
        self._wanted: asyncio.Queue[do.Instruction] = asyncio.Queue()

    # -- its life --------------------------------------------------------------------------------------------------

    def carry_out(self, instruction: do.Instruction) -> None:
        """Takes an instruction about the life of the group."""
        self._wanted.put_nowait(instruction)

    async def run(self) -> None:
        """Carries out what becomes of the group, until cancelled."""
        while True:
            match await self._wanted.get():
                case do.LaunchServer():
                    self._forget()
                    await self._tell(ev.ProcessChanged(self._process(ProcessState.RUNNING)))
                case do.TerminateServer():
                    await self._tell(ev.GroupVoided())
                    await self._tell(ev.ProcessChanged(self._process(ProcessState.EXITED)))
                case do.LoseGroup():
                    await self._tell(ev.ProcessChanged(self._process(ProcessState.EXITED)))

    async def status(self, index: int) -> ServerStatus:
        """Says how the group is; one that begins with the job's initial values may do so."""
        group, servers = self._machine.group, self._machine.servers
        if self._incarnation < 0:
            raise UnavailableError("there is no group", fix="it is formed")
        if servers.ready and not group.established:
            await self._tell(ev.GroupAllowed())
        report = self._group_service.report
        version = report.version if report is not None else self._machine.version.start
        size = report.bytes if report is not None else 0
        records = self._machine.epochs.accounts.rows_of(self._machine.epochs.records_done)
        return ServerStatus(group.established, version, 0, size, f"group-{self._incarnation}", records)

    async def restore(self, manifest: Manifest, *, other_job: bool = False, stop_at: int = 0) -> int:
        """Founds the group on a checkpoint; returns the version.

        Raises:
            DataError: the checkpoint cannot be used.
        """
        await self._tell(ev.GroupVoided())
        self._forget()
        self._group_service.foundation = {
            "directory": manifest["directory"],
            "files": [dict(file) for file in manifest["files"]],
            "other_job": other_job,
        }
        await self._tell(ev.GroupAllowed())
        incarnation = self._incarnation
        while not self._machine.group.established:
            if self._group_service.refused:
                raise DataError(self._group_service.refused, fix=self._group_service.refused_fix)
            if incarnation != self._incarnation:
                raise UnavailableError("the group was lost while it was restored", fix="it is tried again")
            await self._next_word()
        return int(manifest["version"])

    # -- what it holds ---------------------------------------------------------------------------------------------

    async def tallies(self) -> list[Tallied]:
        """The numbers of each training task's records that are in the model."""
        self._group_service.tally, self._group_service.tally_wanted = None, True
        self._group_service.refresh()
        await self._until(lambda: self._group_service.tally is not None, _DEADLINE_S, "tell what is in the model")
        assert self._group_service.tally is not None
        return [self._group_service.tally]

    async def pin(self, number: int, *, one_version: bool = False) -> int:
        """Has the members pause between two steps; returns the version."""
        self._group_service.pin = number
        self._group_service.refresh()

        def paused() -> bool:
            return self._group_service.report is not None and self._group_service.report.pinned == number

        await self._until(paused, _SAVE_S, "pause")
        assert self._group_service.report is not None
        return self._group_service.report.version

    async def unpin(self, number: int) -> None:
        """Has the members go on."""
        if self._group_service.pin == number:
            self._group_service.pin = 0
            self._group_service.refresh()

    async def flush(self) -> None:
        """Does nothing: every step is whole."""

    def note_save(self) -> None:
        """A checkpoint was ordered: what is held now may be in it. They are written in the order of their notes."""
        held = self._machine.workers.group_leases
        self._group_service.noted.append({str(lease.token): lease.task for lease in held})

    def end_save(self) -> None:
        """The oldest order is over, whether it was written or not."""
        self._group_service.noted.popleft()

    async def save(self, directory: str, *, one_version: bool = False) -> SavedParts:
        """Has each member write a share of the model into a directory, as it is between two steps.

        It is the checkpoint of the oldest order.

        Raises:
            UnavailableError: the group changed meanwhile.
            ConflictError: a member could not write.
        """
        group_service, orders = self._group_service, self._machine.group.orders
        self._orders += 1
        number = self._machine.setup.epoch * 1_000_000 + self._orders
        group_service.shares.clear()
        handed_in = self._handed_in
        folder = directory if handed_in is None else str(handed_in.folder(Path(directory)))
        group_service.save = {"order": number, "directory": folder, "generation": orders.generation}
        group_service.refresh()
        try:
            size = group_service.report.bytes if group_service.report is not None else 0
            patience_s = deadline_for_files(_SAVE_S, size)
            await self._until(lambda: self._check_shares(orders.generation), patience_s, "write a checkpoint")
            shares = [group_service.shares[rank] for rank in sorted(group_service.shares)]
            if handed_in is not None:
                await asyncio.to_thread(handed_in.take, shares, Path(directory))
        finally:
            group_service.save = None
            group_service.refresh()
            if handed_in is not None:
                await asyncio.to_thread(handed_in.remove, Path(directory))
        return self._parts(shares)

    async def close(self) -> None:
        """Does nothing: members call, they are not called."""

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _incarnation(self) -> int:
        """As which PS the group goes now: a master that takes over finds one that an earlier master launched."""
        return self._machine.servers.servers[0].incarnation

    def _process(self, state: ProcessState) -> ProcessStatus:
        reason = "group_lost" if state is ProcessState.EXITED else ""
        return ProcessStatus(ProcessId(self._job_id, Role.PS, 0, self._incarnation), state, None, reason)

    def _forget(self) -> None:
        group_service = self._group_service
        group_service.report, group_service.foundation, group_service.pin = None, None, 0
        group_service.refused = group_service.refused_fix = ""

    def _check_shares(self, generation: int) -> bool:
        """Whether all members have written their shares.

        Raises:
            ConflictError: one cannot write.
            UnavailableError: the group is another one by now.
        """
        shares = self._group_service.shares
        for share in shares.values():
            if share.trouble:
                raise ConflictError(f"a member cannot write its share: {share.trouble}", fix="see its log")
        if self._machine.group.orders.generation != generation:
            raise UnavailableError("the group changed while a checkpoint was written", fix="it is repeated")
        return bool(shares) and len(shares) == next(iter(shares.values())).size

    def _parts(self, shares: Sequence[Share]) -> SavedParts:
        files: list[ManifestFile] = [
            {"name": share.name, "size": share.bytes, "sha256": share.sha256, "ps": share.rank} for share in shares
        ]
        metadata = shares[0].metadata
        if metadata is None:
            raise ConflictError("a member wrote no metadata of its model", fix="use this version's worker")
        return SavedParts(shares[0].version, files, shares[0].model, self._ended_in(metadata))

    def _ended_in(self, metadata: ReplicaMetadata) -> list[TaskId]:
        """The tasks, and fronts of tasks, that are in a model beside those that were done before."""
        schedule, last = metadata.schedule, lease_order(metadata.schedule.last)
        unfinished = {entry.token for entry in schedule.entries}
        known = {token: task for token, task in self._group_service.noted[0].items() if lease_order(token) <= last}
        known |= {end.token: end.task.front_until(end.position) for end in metadata.ended.values()}
        ended = [task for token, task in known.items() if token not in unfinished]
        front = metadata.front()
        return [task for task in (*ended, *([front] if front else ())) if task.records]

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        incarnation = self._incarnation
        end = asyncio.get_running_loop().time() + seconds
        while not condition():
            if incarnation != self._incarnation or not self._machine.group.established:
                raise UnavailableError(f"the group was lost before it could {what}", fix="it is tried again")
            if asyncio.get_running_loop().time() > end:
                raise UnavailableError(f"the group did not {what} within {seconds:.0f} s", fix="it is tried again")
            await self._next_word()

    async def _next_word(self) -> None:
        """Waits until a member says something, or a moment."""
        self._group_service.heard.clear()
        await wait_for_event(self._group_service.heard, _STEP_S)
