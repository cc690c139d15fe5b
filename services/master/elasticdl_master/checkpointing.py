"""Carries out what the machine wants of the parameter servers: polls, restores, pins, saves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.checkpoint_manifest import Manifest, Provenance
from elasticdl_core.errors import ConflictError, ElasticDLError, FencedError, UnavailableError
from elasticdl_master.api import ApiClient, ApiFailedError
from elasticdl_master.model_holder import ModelHolder, ServerStatus
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.machine import JobMachine
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.items import Items
from elasticdl_runtime.retry import Attempts

_POLL_S = 1.0
_POLL_STARTING_S = 0.2
_BACKOFF = Backoff(0.1, 2.0)
_log = structlog.get_logger(__name__)
Tell = Callable[[ev.Event], Awaitable[None]]


class ServerOperations:
    """Carries out the instructions about PS, one after the other; saves go on beside them.

    What was asked of PS that have since been lost is dropped: the machine asks anew.

    Args:
        machine: decides; read for the PS' generation and incarnations.
        holder: has the model.
        directory: where checkpoints go.
        api: where manifests are committed.
        tell: takes events.
        provenance: what a manifest says of the job and its code.
    """

    def __init__(
        self,
        machine: JobMachine,
        holder: ModelHolder,
        directory: CheckpointDirectory,
        api: ApiClient,
        tell: Tell,
        provenance: Provenance,
    ) -> None:
        self._machine = machine
        self._holder = holder
        self._directory = directory
        self._api = api
        self._tell = tell
        self._provenance = provenance
        self._wanted: asyncio.Queue[tuple[do.Instruction, int]] = asyncio.Queue()
        self._items = Items("orders of the parameter servers", backoff=_BACKOFF)
        self._put_off: dict[do.Instruction, asyncio.TimerHandle] = {}
        self._saves: asyncio.Queue[tuple[do.Save, int]] = asyncio.Queue()
        self._used: dict[str, tuple[float, float]] = {}
        self._first_seen: dict[str, tuple[int, int]] = {}
        self._unwanted: list[Manifest] = []
        self._prunes = Items("old checkpoints")

    def carry_out(self, instruction: do.Instruction) -> None:
        """Takes an instruction about the PS."""
        generation = self._machine.servers.generation
        if isinstance(instruction, do.Save):
            self._holder.note_save()
            self._saves.put_nowait((instruction, generation))
        else:
            self._wanted.put_nowait((instruction, generation))

    async def poll(self) -> None:
        """Asks every PS how it is, until cancelled."""
        while True:
            await asyncio.gather(*(self._poll(index) for index in range(len(self._holder.addresses))))
            await asyncio.sleep(_POLL_S if self._machine.servers.initialized else _POLL_STARTING_S)

    async def run(self) -> None:
        """Carries out instructions until cancelled.

        Raises:
            FencedError: a newer master took over.
        """
        while True:
            instruction, generation = await self._wanted.get()
            if isinstance(instruction, do.Unpin) and (pin := self._put_off.pop(do.Pin(instruction.number), None)):
                pin.cancel()
            async for _ in Attempts(_BACKOFF):
                if generation != self._machine.servers.generation:
                    break
                try:
                    await self._carry_out(instruction)
                    self._items.keep(self._put_off)
                    break
                except FencedError:
                    raise
                except ElasticDLError as error:
                    if isinstance(instruction, do.RestoreServers) and not isinstance(error, UnavailableError):
                        directory = instruction.manifest["directory"]
                        await self._tell(ev.RestoreFailed(directory, error.message, error.fix))
                        break
                    if not isinstance(error, UnavailableError):
                        self._again_later(instruction, generation, error)
                        break
                    _log.warning("the PS did not", wanted=type(instruction).__name__, error=error.message)

    def _again_later(self, instruction: do.Instruction, generation: int, error: ElasticDLError) -> None:
        """Tries again what was refused, ever later, and keeps nothing else waiting."""

        def come_back() -> None:
            self._put_off.pop(instruction, None)
            self._wanted.put_nowait((instruction, generation))

        pause_s = self._items.put_off(instruction, error)
        self._put_off[instruction] = asyncio.get_running_loop().call_later(pause_s, come_back)

    async def run_saves(self) -> None:
        """Writes checkpoints until cancelled.

        Raises:
            FencedError: a newer master took over.
        """
        while True:
            save, generation = await self._saves.get()
            try:
                manifest = await self._save(save, generation)
            except FencedError:
                raise
            except (ElasticDLError, OSError) as error:
                message = error.message if isinstance(error, ElasticDLError) else str(error)
                _log.warning("no checkpoint", error=message)
                self._holder.end_save()  # before the machine is told, which may order the next one at once
                await self._tell(ev.SaveFailed(save.kind, message))
            else:
                self._holder.end_save()  # before the machine is told, which may order the next one at once
                _log.info("checkpoint", version=manifest["version"], directory=manifest["directory"])
                await self._tell(ev.Saved(save.kind, manifest))

    async def prune(self, manifest: Manifest) -> None:
        """Removes a checkpoint, and those that could not be removed before; one that cannot be now stays until later.

        Raises:
            FencedError: a newer master took over.
            UnavailableError: the api is away.
        """
        if manifest not in self._unwanted:
            self._unwanted.append(manifest)
        for unwanted in list(self._unwanted):
            directory = unwanted["directory"]
            if self._prunes.is_put_off(directory):
                continue
            try:
                await self._remove(unwanted)
            except FencedError:
                raise
            except (ElasticDLError, OSError) as error:
                if isinstance(error, UnavailableError) and not isinstance(error, ApiFailedError):
                    raise
                self._prunes.put_off(directory, error)
            else:
                self._prunes.went_well(directory)
        self._prunes.keep(unwanted["directory"] for unwanted in self._unwanted)

    async def _remove(self, unwanted: Manifest) -> None:
        """Removes a checkpoint's entry, then its files, unless another job begins with it."""
        try:
            await self._api.forget_checkpoint(int(unwanted["version"]), unwanted["directory"])
        except ConflictError as error:
            _log.info("a checkpoint stays for now", directory=unwanted["directory"], reason=error.message)
            return
        failpoint("master.after_entry_forgotten")
        await asyncio.to_thread(self._directory.prune, unwanted)
        self._unwanted.remove(unwanted)

    @property
    def _has_rounds(self) -> bool:
        """Whether training is synchronous, so that all PS have one version."""
        return not self._machine.spec.use_async

    async def _poll(self, index: int) -> None:
        server = self._machine.servers.servers[index]
        incarnation = server.incarnation
        try:
            status = await self._holder.status(index)
        except ElasticDLError:
            await self._tell(ev.ServerSilent(index, incarnation))
            return
        if server.incarnation != incarnation:
            return  # replaced while the call was under way: nobody knows which of the two has answered
        # An old process may answer at the address of the new one while it is dying.
        first = self._first_seen.setdefault(status.generation, (index, incarnation))
        if first == (index, incarnation):
            await self._tell(
                ev.ServerSeen(
                    index,
                    incarnation,
                    status.initialized,
                    status.version,
                    rows=status.rows,
                    bytes=status.bytes,
                    records=status.records,
                    load=self._load(status),
                )
            )

    def _load(self, status: ServerStatus) -> float:
        """The number of processors that a PS kept busy since it was asked last."""
        now = time.monotonic()
        at, used = self._used.get(status.generation, (now, status.cpu_s))
        self._used[status.generation] = (now, status.cpu_s)
        return round(max(status.cpu_s - used, 0.0) / (now - at), 3) if now > at else 0.0

    async def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.RestoreServers(manifest):
                failpoint("master.before_restore")
                mine = manifest.get("job_id") == self._provenance["job_id"]
                version = await self._holder.restore(
                    manifest, other_job=not mine, stop_at=self._machine.gate.step_limit
                )
                failpoint("master.after_restore")
                await self._tell(ev.ServersRestored(manifest["directory"], version))
            case do.Pin(number):
                version = await self._holder.pin(number, one_version=self._has_rounds)
                await self._tell(ev.Pinned(number, version))
            case do.Unpin(number):
                await self._holder.unpin(number)
            case do.ReadTallies():
                await self._tell(ev.TalliesRead(await self._holder.tallies()))
            case do.FlushRound(epoch):
                await self._holder.flush()
                await self._tell(ev.RoundFlushed(epoch))
            case _:
                raise TypeError(f"{instruction} is not about the PS")

    async def _save(self, save: do.Save, generation: int) -> Manifest:
        directory = await asyncio.to_thread(self._directory.prepare, self._machine.version.present)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(asyncio.to_thread, self._directory.abandon, directory)
            manifest = await self._write(save, directory)
            await self._commit(manifest, generation, undo)
        return manifest

    async def _write(self, save: do.Save, directory: str) -> Manifest:
        parts = await self._holder.save(directory, one_version=self._has_rounds)
        if parts.ended:
            save = self._machine.epochs.advanced(save, parts.ended)
        description, book = self._machine.gate.description, self._machine.checkpoints.book
        kind, best = book.marked_as(save, parts.version)
        manifest: Manifest = {
            **self._provenance,
            "version": parts.version,
            "directory": directory,
            "kind": kind,
            "created_at": time.time(),
            "num_ps": len({file["ps"] for file in parts.files}),
            "files": list(parts.files),
            "model": _json(parts.model),
            "training_epoch": save.training_epoch,
            "records_done": save.records_done,
            "done": save.done,
            "start_version": self._machine.version.start,
            "columns": self._machine.plans.columns or [],
            "layers": description.get("layers", {}) if description else {},
            "best": best,
        }
        failpoint("master.after_parts_saved")
        await asyncio.to_thread(commit_manifest, manifest)
        failpoint("master.after_manifest_written")
        return manifest

    async def _commit(self, manifest: Manifest, generation: int, undo: contextlib.AsyncExitStack) -> None:
        async for _ in Attempts(_BACKOFF):
            if generation != self._machine.servers.generation:
                raise UnavailableError("a PS was lost while the checkpoint was being committed", fix="it is repeated")
            # From here on the api may have it, whether its answer comes or not; who goes by the api needs the files.
            kept = undo.pop_all()
            try:
                await self._api.commit_checkpoint(manifest)
                failpoint("master.after_checkpoint_committed")
                return
            except UnavailableError as error:
                _log.warning("the api is away", wanted="commit", error=error.message)
            except ElasticDLError:
                await kept.aclose()
                raise


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
