"""Serves the PS protocol: checks the caller, translates messages, calls the parts that do the work.

One thread makes all updates (so rounds and sequence numbers need no lock of their own), others serve pulls, one more
reads and writes checkpoints. The event loop moves messages, and while no thread has anything to do it does short
pushes and pulls itself, because to hand one over costs as much as the work (see ``training_calls``).
"""
# ruff: noqa: N802 (methods are named as the RPCs of ps.proto)

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

import numpy as np
import structlog

from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.meters import MeterKey
from elasticdl_core.model import DenseSpec, TableSpec, UpdateMode
from elasticdl_core.path_policy import is_url
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps import codec
from elasticdl_ps.checkpoint import lay_out, load_partition, save_partition
from elasticdl_ps.gateway import Pserver
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.pulls import dense_pieces
from elasticdl_ps.store.partition import Partition, PartitionSnapshot
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_ps.store.tally import Tally
from elasticdl_ps.threads import Threads
from elasticdl_ps.training_calls import AnswerFrame, TrainingCalls
from elasticdl_runtime.checkpoint_files import CheckpointFile, PartHeader
from elasticdl_runtime.convert.parameters import (
    dense_to_json,
    mode_to_json,
    optimizer_to_json,
    table_to_json,
)
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import to_its_end
from elasticdl_runtime.rpc.framing import Frame, FrameBytes
from elasticdl_runtime.tokens import Claims

SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
_CUT_LIFE_S = 300.0
"""For how long a cut waits for its save, which follows at once."""
_log = structlog.get_logger(__name__)


class ParameterServer:
    """Serves one partition.

    Args:
        partition: the parameters.
        index: the number of this PS.
        num_ps: how many the job has.

    Attributes:
        published: serves the protocol that ElasticDL published.
    """

    def __init__(self, partition: Partition, index: int, num_ps: int) -> None:
        self._partition = partition
        partition.num_ps = num_ps
        self._index = index
        self._num_ps = num_ps
        self._threads = Threads()
        self._cut: PartitionSnapshot | None = None
        self._restored_from: tuple[str, list[CheckpointFile]] | None = None
        self._cut_ends: asyncio.TimerHandle | None = None
        self._training = TrainingCalls(partition, index, self._threads)
        self.published = Pserver(partition, num_ps, self._training, self._threads)
        self._calls: dict[int, Callable[[FrameBytes, Claims], AnswerFrame | Awaitable[AnswerFrame]]] = {
            ps_pb2.STEP_PULL: self._training.pull,
            ps_pb2.STEP_PUSH: self._training.push,
            ps_pb2.STEP_PUSH_PULL: self._training.push_pull,
        }

    def stop(self) -> None:
        """Lets nobody wait for others any more."""
        self._training.stop()
        if self._cut_ends is not None:
            self._cut_ends.cancel()

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        self._threads.close()

    async def Status(self, request: ps_pb2.StatusRequest, caller: Claims) -> ps_pb2.StatusResponse:
        """The status of the PS and of its partition."""
        _require_member(caller)
        partition = self._partition
        tables = list(partition.tables.values())
        return ps_pb2.StatusResponse(
            index=self._index,
            num_ps=self._num_ps,
            initialized=partition.initialised,
            version=partition.version,
            generation=partition.generation,
            rows=partition.rows,
            bytes=partition.nbytes,
            tables=[codec.table_status(table) for table in tables],
            updates=self._training.updates.made,
            rejected=self._training.updates.rejected,
            mode=mode_to_json(partition.mode),
            records=partition.tally.records,
            cpu_s=time.process_time(),
            model=_present_model(partition) if request.model and partition.initialised and partition.declared else "",
        )

    def meters(self) -> dict[MeterKey, float | None]:
        """The numbers that are shown to whoever watches this process."""
        partition, updates = self._partition, self._training.updates
        return {
            ("elasticdl_ps_rows", ""): partition.rows,
            ("elasticdl_ps_bytes", ""): partition.nbytes,
            ("elasticdl_ps_model_version", ""): partition.version,
            ("elasticdl_ps_updates_total", ""): updates.made,
            ("elasticdl_ps_updates_rejected_total", ""): updates.rejected,
            ("elasticdl_ps_records", ""): partition.tally.records,
            ("elasticdl_ps_initialized", ""): partition.initialised,
        }

    async def PushModel(self, chunks: AsyncIterator[bytes], caller: Claims) -> Frame:
        """Initialises the partition, or confirms the model after a restore."""
        _require_member(caller)
        frame = await self._joined(chunks)
        return await self._threads.write(lambda: self._push_model(frame, guest=caller.is_guest))

    async def Pull(self, frame: bytes, caller: Claims) -> AnswerFrame:
        """Reads rows and changed dense parameters."""
        return await self._call(ps_pb2.STEP_PULL, frame, caller)

    async def PullDenseParameters(self, frame: bytes, caller: Claims) -> AsyncGenerator[Frame]:
        """Reads changed dense parameters, in frames of bounded size."""
        _require_member(caller)
        pull = codec.read_pull(frame)
        if not await self._training.prepare_pull(pull, caller):
            yield codec.pull_frame(self._training.answer_pending())
            return
        for piece in await self._threads.read(lambda: dense_pieces(self._partition, pull)):
            yield codec.pull_frame(await self._threads.read(piece))

    async def PushGradients(self, frame: bytes, caller: Claims) -> AnswerFrame:
        """Applies a gradient (asynchronous mode), or keeps it for a round or counts it (synchronous mode)."""
        return await self._call(ps_pb2.STEP_PUSH, frame, caller)

    async def PushGradientsInPieces(self, chunks: AsyncIterator[bytes], caller: Claims) -> AnswerFrame:
        """``PushGradients`` of a frame that is too large for one message; nothing is applied before all is there."""
        _require_member(caller)
        return await self._call(ps_pb2.STEP_PUSH, await self._joined(chunks), caller)

    async def PushPull(self, frame: bytes, caller: Claims) -> AnswerFrame:
        """A push and a pull, in one message and one thread."""
        return await self._call(ps_pb2.STEP_PUSH_PULL, frame, caller)

    def Steps(self, step: int, frame: FrameBytes, caller: Claims) -> AnswerFrame | Awaitable[AnswerFrame]:
        """One of the three calls of a training step."""
        _require_member(caller)
        call = self._calls.get(step)
        if call is None:
            raise InvalidInputError(f"there is no step {step}", fix="send what ps.proto describes")
        return call(frame, caller)

    async def ApplyRound(self, request: ps_pb2.ApplyRoundRequest, caller: Claims) -> ps_pb2.ApplyRoundResponse:
        """Applies a round that the first PS has closed."""
        _require_member(caller)
        return ps_pb2.ApplyRoundResponse(
            version=await self._training.apply_round(codec.round_from_message(request.round))
        )

    async def ClosedRounds(self, request: ps_pb2.ClosedRoundsRequest, caller: Claims) -> ps_pb2.ClosedRoundsResponse:
        """The rounds closed since a version."""
        _require_member(caller)
        self._training.require_first()
        rounds = await self._threads.write(lambda: self._training.updates.rounds.closed_since(request.since))
        return ps_pb2.ClosedRoundsResponse(rounds=[codec.round_to_message(round_) for round_ in rounds])

    async def FlushRound(self, request: ps_pb2.FlushRoundRequest, caller: Claims) -> ps_pb2.FlushRoundResponse:
        """Closes the present round with what it has."""
        caller.require(Role.MASTER)
        self._training.require_first()
        answer = await self._threads.write(self._training.updates.flush)
        closed = None if answer.closed is None else codec.round_to_message(answer.closed)
        return ps_pb2.FlushRoundResponse(version=answer.version, closed=closed)

    async def HoldRounds(self, request: ps_pb2.HoldRoundsRequest, caller: Claims) -> ps_pb2.HoldRoundsResponse:
        """Lets no round end for a while, or none begin."""
        caller.require(Role.MASTER)
        held = await self._training.hold_rounds(request.seconds, between_rounds=request.between_rounds)
        return ps_pb2.HoldRoundsResponse(version=held.version, open=held.open, expected=held.expected)

    async def ReleaseRounds(
        self, request: ps_pb2.ReleaseRoundsRequest, caller: Claims
    ) -> ps_pb2.ReleaseRoundsResponse:
        """Lets rounds end again."""
        caller.require(Role.MASTER)
        self._training.release_rounds()
        return ps_pb2.ReleaseRoundsResponse()

    async def Cut(self, request: ps_pb2.CutRequest, caller: Claims) -> ps_pb2.CutResponse:
        """Takes the copy that the next ``Save`` is to write."""
        caller.require(Role.MASTER)
        await to_its_end(self._make_cut(request.version))
        return ps_pb2.CutResponse()

    async def Pin(self, request: ps_pb2.PinRequest, caller: Claims) -> ps_pb2.PinResponse:
        """Keeps the present parameters readable."""
        caller.require(Role.MASTER)
        version = request.version if request.HasField("version") else None
        pinned = await self._threads.write(lambda: self._partition.pin(request.pin, version))
        return ps_pb2.PinResponse(version=pinned)

    async def Unpin(self, request: ps_pb2.UnpinRequest, caller: Claims) -> ps_pb2.UnpinResponse:
        """Forgets a pin."""
        caller.require(Role.MASTER)
        await self._threads.write(lambda: self._partition.unpin(request.pin))
        return ps_pb2.UnpinResponse()

    async def Save(self, request: ps_pb2.SaveRequest, caller: Claims) -> ps_pb2.SaveResponse:
        """Writes this partition to a file."""
        caller.require(Role.MASTER)
        _require_absolute(request.directory)
        cut, self._cut = self._cut, None
        if cut is not None and not request.cut:
            self._partition.release(cut)  # what is written now is later than that
            cut = None
        if request.cut and cut is None:
            raise ConflictError("there is no cut to write", fix="cut all parameter servers again")
        failpoint("ps.before_save")
        version, header, file = await self._threads.save(
            lambda: save_partition(self._partition, request.directory, self._index, self._num_ps, cut),
        )
        _log.info("saved", directory=request.directory, file=file.name, bytes=file.size, version=version)
        failpoint("ps.after_save")
        saved = ps_pb2.SavedFile(name=file.name, size=file.size, sha256=file.sha256)
        return ps_pb2.SaveResponse(version=version, files=[saved], model=_saved_model(header))

    async def Tally(self, request: ps_pb2.TallyRequest, caller: Claims) -> ps_pb2.TallyResponse:
        """The numbers of each training task's records that are in this partition."""
        caller.require(Role.MASTER)
        tally = await self._threads.write(self._partition.tally.copy)
        return ps_pb2.TallyResponse(complete=tally.complete, counts=tally.numbers().ravel().tolist())

    async def Restore(self, request: ps_pb2.RestoreRequest, caller: Claims) -> ps_pb2.RestoreResponse:
        """Takes this PS's part of a checkpoint."""
        caller.require(Role.MASTER)
        _require_absolute(request.directory)
        _require_names(request.files)
        files = [CheckpointFile(file.name, file.size, file.sha256) for file in request.files]
        loaded = await self._threads.save(
            lambda: load_partition(self._partition.kernels, request.directory, files, self._index, self._num_ps),
        )
        failpoint("ps.after_load")
        if request.other_job:
            loaded.tally, loaded.declared = Tally(), False
        # The limit is the present job's, which may have started from a checkpoint of another one.
        loaded.mode = replace(loaded.mode, stop_at=request.stop_at)
        # First: a model that is pushed meanwhile is laid out by these files as soon as their content is here.
        self._restored_from = request.directory, files
        await self._threads.write(lambda: self._become(loaded))
        failpoint("ps.after_restore")
        _log.info("restored", directory=request.directory, rows=self._partition.rows, version=self._partition.version)
        return ps_pb2.RestoreResponse(version=self._partition.version, rows=self._partition.rows)

    async def _joined(self, chunks: AsyncIterator[bytes]) -> bytes:
        """A frame of its pieces; gigabytes are joined by a thread, while the event loop says that this PS lives."""
        pieces = [piece async for piece in chunks]
        return pieces[0] if len(pieces) == 1 else await self._threads.read(lambda: b"".join(pieces))

    def _push_model(self, frame: bytes, *, guest: bool) -> Frame:
        model, mode = codec.read_model(frame), self._partition.mode
        if self._restored_from is not None and model.names and not (self._partition.declared or guest):
            lay_out(self._partition, *self._restored_from, model.dense, model.names)
        initialised = self._partition.push_model(model.dense, model.tables, model.optimizer, model.mode, guest=guest)
        if initialised:
            warm_up_updates(self._partition)
            _log.info("initialised", dense=len(model.dense), tables=len(model.tables))
            failpoint("ps.after_model_pushed")
        if initialised or self._partition.mode != mode:
            self._training.updates.rounds.reset()
        return codec.model_frame(initialised=initialised, version=self._partition.version)

    async def _call(self, step: int, frame: bytes, caller: Claims) -> AnswerFrame:
        answer = self.Steps(step, frame, caller)
        return answer if isinstance(answer, Frame | bytes) else await answer

    async def _make_cut(self, version: int) -> None:
        await self._threads.write(lambda: self._take_cut(version))
        if self._cut_ends is not None:
            self._cut_ends.cancel()
        self._cut_ends = asyncio.get_running_loop().call_later(_CUT_LIFE_S, self._end_cut, self._cut)

    def _take_cut(self, version: int) -> None:
        if self._cut is not None:
            self._partition.release(self._cut)
            self._cut = None
        self._cut = self._partition.snapshot(version)

    def _end_cut(self, cut: PartitionSnapshot | None) -> None:
        """Lets a cut go that no save has come for: whoever ordered it may be gone, and every update adds to it."""
        if cut is not None and self._cut is cut:
            self._cut = None
            self._threads.write(lambda: self._partition.release(cut))
            _log.warning("a cut was not saved", version=cut.version, fix="cut all parameter servers again")

    def _become(self, loaded: Partition) -> None:
        self._cut = None
        self._partition.become(loaded)
        self._training.reset()


def warm_up_updates(partition: Partition) -> None:
    """Compiles, or loads from the cache, the optimizer's kernel, so that no first push waits for it."""
    table = EmbeddingTable(TableSpec("warm-up", 4), partition.optimizer, partition.kernels)
    grads = np.frombuffer(bytes(32), np.float32).reshape(2, 4)
    table.update(np.frombuffer(np.arange(2).tobytes(), np.int64), grads, partition.optimizer.numbers(1))


def _require_member(caller: Claims) -> None:
    caller.require(Role.WORKER, Role.MASTER)


def _require_absolute(directory: str) -> None:
    if not (directory.startswith("/") or is_url(directory)) or "\0" in directory:
        raise InvalidInputError(
            f"{directory!r} is not an absolute path", fix="send the checkpoint's absolute path, or its URL"
        )


def _require_names(files: Iterable[ps_pb2.SavedFile]) -> None:
    for file in files:
        if "\0" in file.name:
            raise InvalidInputError(f"{file.name!r} is no name of a file", fix="send the names that Save gave")


def _present_model(partition: Partition) -> str:
    tables = [table.spec for table in list(partition.tables.values())]
    return _model_json(partition.dense.specs, tables, partition.optimizer, partition.mode)


def _saved_model(header: PartHeader) -> str:
    dense, tables = [part.spec for part in header.dense], [part.spec for part in header.tables]
    return _model_json(dense, tables, Optimizer(header.optimizer), header.mode)


def _model_json(
    dense: Iterable[DenseSpec], tables: Iterable[TableSpec], optimizer: Optimizer, mode: UpdateMode
) -> str:
    return json.dumps(
        {
            "dense": [dense_to_json(spec) for spec in dense],
            "tables": [table_to_json(spec) for spec in tables],
            "optimizer": json.loads(optimizer_to_json(optimizer.spec)),
            "slots": list(optimizer.slots),
            "mode": json.loads(mode_to_json(mode)),
        }
    )
