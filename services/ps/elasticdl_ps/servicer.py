"""The PS protocol's door: validates, hands over to the store, answers.

One thread makes all updates (so rounds and sequence numbers need no lock of their own), others serve pulls, one more
reads and writes checkpoints. The event loop moves messages, and while no thread has anything to do it does short
pushes and pulls itself, because to hand one over costs as much as the work.
"""
# ruff: noqa: N802 (methods are named as the RPCs of ps.proto)

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError, InvalidInputError, PermissionDeniedError
from elasticdl_core.model import DenseSpec, TableSpec
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps import wire
from elasticdl_ps.checkpoint import load_partition, save_partition
from elasticdl_ps.forms import Forms, PullMessage, PushMessage
from elasticdl_ps.round_ends import RoundEnds
from elasticdl_ps.rounds import Answer, Incarnations, Member, Round, Rounds
from elasticdl_ps.store.partition import Changes, Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.checkpoint_files import CheckpointFile, PartHeader
from elasticdl_runtime.convert.parameters import (
    dense_to_json,
    dense_to_message,
    mode_from_json,
    mode_to_json,
    optimizer_from_json,
    optimizer_to_json,
    table_from_message,
    table_to_json,
)
from elasticdl_runtime.rpc.framing import allocate_frame
from elasticdl_runtime.rpc.service import CHUNK_BYTES
from elasticdl_runtime.tokens import Claims

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_READERS = 4
_SHORT = 4 << 20
"""The cost up to which the event loop does pushes and pulls itself: about a millisecond."""


class ParameterServer:
    """Serves one partition.

    Args:
        partition: the parameters.
        index: the number of this PS.
        num_ps: how many the job has.
    """

    def __init__(self, partition: Partition, index: int, num_ps: int) -> None:
        self._partition = partition
        partition.num_ps = num_ps
        self._index = index
        self._num_ps = num_ps
        self._incarnations = Incarnations()
        self._rounds = Rounds(partition)
        self._ends = RoundEnds(self._rounds)
        self._forms = Forms(partition)
        self._answers: dict[str, tuple[int, Answer]] = {}
        self._rejected = 0
        self._updates = 0
        self._running = 0
        self._gradient_cost = math.inf
        self._writer = ThreadPoolExecutor(1, "update")
        self._readers = ThreadPoolExecutor(_READERS, "pull")
        self._files = ThreadPoolExecutor(1, "checkpoint")

    def stop(self) -> None:
        """Lets nobody wait for others any more."""
        self._ends.stop()

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        for pool in (self._readers, self._writer, self._files):
            pool.shutdown(wait=True, cancel_futures=True)

    async def Status(self, request: ps_pb2.StatusRequest, caller: Claims) -> ps_pb2.StatusResponse:
        """What the PS is and holds."""
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
            tables=[wire.table_status(table) for table in tables],
            updates=self._updates,
            rejected=self._rejected,
            mode=mode_to_json(partition.mode),
        )

    async def PushModel(self, chunks: AsyncIterator[bytes], caller: Claims) -> bytes:
        """Initialises the partition, or confirms the model after a restore."""
        _require_member(caller)
        frame = await _joined(chunks)
        return await self._write(lambda: self._push_model(frame))

    async def PushEmbeddingTableInfos(self, frame: bytes, caller: Claims) -> bytes:
        """Declares embedding tables."""
        _require_member(caller)
        request = ps_pb2.PushTableInfosRequest()
        wire.read_frame(frame, request)
        tables = [table_from_message(message) for message in request.tables]
        await self._write(lambda: self._partition.push_tables(tables))
        return wire.header_frame(ps_pb2.Empty())

    async def Pull(self, frame: bytes, caller: Claims) -> bytes:
        """Reads rows and changed dense parameters."""
        _require_member(caller)
        if not self._partition.mode.use_async:
            pull = self._forms.read_pull(frame)
            if not await self._is_due(pull.request, caller):
                return wire.header_frame(self._pending(ps_pb2.PullResponse()))
        if self._is_free(frame):
            pull = self._forms.read_pull(frame)
            if pull.cost(self._partition) <= _SHORT:
                return self._pull(pull, ps_pb2.PullResponse())
        return await self._read(lambda: self._pull(self._forms.read_pull(frame), ps_pb2.PullResponse()))

    async def PullEmbeddingVectors(self, frame: bytes, caller: Claims) -> bytes:
        """Reads rows."""
        _require_member(caller)
        return await self._read(lambda: self._pull_rows(frame))

    async def PullDenseParameters(self, frame: bytes, caller: Claims) -> AsyncIterator[bytes]:
        """Reads changed dense parameters, in frames of bounded size."""
        _require_member(caller)
        request = ps_pb2.PullRequest()
        wire.read_frame(frame, request)
        if not await self._is_due(request, caller):
            yield wire.header_frame(self._pending(ps_pb2.PullResponse()))
            return
        for piece in await self._read(lambda: self._dense_pieces(request)):
            yield await self._read(piece)

    async def PushGradients(self, frame: bytes, caller: Claims) -> bytes:
        """Applies a gradient (asynchronous mode), or keeps it for a round or counts it (synchronous mode)."""
        _require_member(caller)
        if self._is_free(frame):
            push = self._forms.read_push(frame)
            if self._cost(push) <= _SHORT:
                return self._answered(self._take(push, caller), caller)
        return await self._push(frame, caller)

    async def PushGradientsInPieces(self, chunks: AsyncIterator[bytes], caller: Claims) -> bytes:
        """``PushGradients`` of a frame that is too large for one message; nothing is applied before all is there."""
        _require_member(caller)
        return await self._push(await _joined(chunks), caller)

    async def PushPull(self, frame: bytes, caller: Claims) -> bytes:
        """A push and a pull, in one message and one thread."""
        _require_member(caller)
        if not self._partition.mode.use_async:
            return await self._push_pull_in_round(frame, caller)
        if self._is_free(frame):
            push, pull = self._forms.read_push_pull(frame)
            if push.cost() + pull.cost(self._partition) <= _SHORT:
                return self._push_pull(push, pull, caller)
        return await self._write(lambda: self._push_pull(*self._forms.read_push_pull(frame), caller))

    async def ApplyRound(self, request: ps_pb2.ApplyRoundRequest, caller: Claims) -> ps_pb2.ApplyRoundResponse:
        """Applies a round that the first PS has closed."""
        _require_member(caller)
        return ps_pb2.ApplyRoundResponse(version=await self._apply_soon(wire.round_from_message(request.round)))

    async def ClosedRounds(self, request: ps_pb2.ClosedRoundsRequest, caller: Claims) -> ps_pb2.ClosedRoundsResponse:
        """The rounds closed since a version."""
        _require_member(caller)
        self._require_first()
        rounds = await self._write(lambda: self._rounds.closed_since(request.since))
        return ps_pb2.ClosedRoundsResponse(rounds=[wire.round_to_message(round_) for round_ in rounds])

    async def FlushRound(self, request: ps_pb2.FlushRoundRequest, caller: Claims) -> ps_pb2.FlushRoundResponse:
        """Closes the present round with what it has."""
        caller.require(Role.MASTER)
        self._require_first()
        answer = await self._write(self._flush)
        self._ends.look()
        closed = None if answer.closed is None else wire.round_to_message(answer.closed)
        return ps_pb2.FlushRoundResponse(version=answer.version, closed=closed)

    async def Pin(self, request: ps_pb2.PinRequest, caller: Claims) -> ps_pb2.PinResponse:
        """Keeps the present parameters readable."""
        caller.require(Role.MASTER)
        return ps_pb2.PinResponse(version=await self._write(lambda: self._partition.pin(request.pin)))

    async def Unpin(self, request: ps_pb2.UnpinRequest, caller: Claims) -> ps_pb2.UnpinResponse:
        """Forgets a pin."""
        caller.require(Role.MASTER)
        await self._write(lambda: self._partition.unpin(request.pin))
        return ps_pb2.UnpinResponse()

    async def Save(self, request: ps_pb2.SaveRequest, caller: Claims) -> ps_pb2.SaveResponse:
        """Writes this partition to a file."""
        caller.require(Role.MASTER)
        _require_absolute(request.directory)
        version, header, file = await self._in(
            self._files,
            lambda: save_partition(self._partition, request.directory, self._index, self._num_ps),
        )
        _log.info("saved", directory=request.directory, file=file.name, bytes=file.size, version=version)
        saved = ps_pb2.SavedFile(name=file.name, size=file.size, sha256=file.sha256)
        return ps_pb2.SaveResponse(version=version, files=[saved], model=_model_json(header))

    async def Restore(self, request: ps_pb2.RestoreRequest, caller: Claims) -> ps_pb2.RestoreResponse:
        """Takes this PS's part of a checkpoint."""
        caller.require(Role.MASTER)
        _require_absolute(request.directory)
        files = [CheckpointFile(file.name, file.size, file.sha256) for file in request.files]
        loaded = await self._in(
            self._files,
            lambda: load_partition(self._partition.kernels, request.directory, files, self._index, self._num_ps),
        )
        await self._write(lambda: self._become(loaded))
        self._ends.look()
        _log.info("restored", directory=request.directory, rows=self._partition.rows, version=self._partition.version)
        return ps_pb2.RestoreResponse(version=self._partition.version, rows=self._partition.rows)

    def _push_model(self, frame: bytes) -> bytes:
        request = ps_pb2.PushModelRequest()
        buffers = wire.read_frame(frame, request)
        tables: list[TableSpec] = [table_from_message(message) for message in request.tables]
        mode = self._partition.mode
        initialised = self._partition.push_model(
            wire.read_dense_inits(request.dense, buffers),
            tables,
            optimizer_from_json(request.optimizer),
            mode_from_json(request.mode),
        )
        if initialised:
            warm_up_updates(self._partition)
            _log.info("initialised", dense=len(request.dense), tables=len(tables))
        if initialised or self._partition.mode != mode:
            self._rounds.reset()
        self._forms.forget()
        return wire.header_frame(ps_pb2.PushModelResponse(initialized=initialised, version=self._partition.version))

    async def _push_pull_in_round(self, frame: bytes, caller: Claims) -> bytes:
        """In synchronous mode a pull comes after the end of the round that the push counts for."""
        self._require_first()
        push, pull = self._forms.read_push_pull(frame)
        _refuse_pin(pull)
        if self._is_free(frame) and self._cost(push) <= _SHORT:
            answer = self._take(push, caller)
        else:
            answer = await self._write(lambda: self._take(self._forms.read_push_pull(frame)[0], caller))
        response = ps_pb2.PushPullResponse(push=wire.answer_message(answer))
        self._ends.pushed(caller.owner)
        if not answer.accepted:
            return wire.header_frame(response)
        if not await self._is_due(pull.request, caller):
            self._pending(response.pull)
            return wire.header_frame(response)
        # What names stand for may have changed while this waited.
        if self._is_free(frame):
            _, pull = self._forms.read_push_pull(frame)
            if pull.cost(self._partition) <= _SHORT:
                return self._pull(pull, response)
        return await self._read(lambda: self._pull(self._forms.read_push_pull(frame)[1], response))

    async def _is_due(self, request: ps_pb2.PullRequest, caller: Claims) -> bool:
        """Brings this PS to the version that a pull in synchronous mode is for; False if it is to be asked again."""
        if self._partition.mode.use_async or request.pin:
            return True
        if request.HasField("apply"):
            round_ = wire.round_from_message(request.apply)
            if round_.number == self._partition.version:
                # A PS that lost a gradient of the round was replaced: the master restores it.
                with contextlib.suppress(ConflictError):
                    await self._apply_soon(round_)
        if self._index == 0 and caller.role is Role.WORKER:
            if await self._ends.wait(caller.owner, request.wait_for):
                return False
            self._ends.pulled(caller.owner)
        return True

    def _pending(self, response: ps_pb2.PullResponse) -> ps_pb2.PullResponse:
        partition = self._partition
        response.version, response.generation = partition.version, partition.generation
        response.initialized, response.pending = partition.initialised, True
        return response

    async def _apply_soon(self, round_: Round) -> int:
        if not self._running and len(round_.members) * self._gradient_cost <= _SHORT:
            return self._apply(round_)
        return await self._write(lambda: self._apply(round_))

    async def _push(self, frame: bytes, caller: Claims) -> bytes:
        return self._answered(await self._write(lambda: self._take(self._forms.read_push(frame), caller)), caller)

    def _answered(self, answer: Answer, caller: Claims) -> bytes:
        """The frame of an answer to a push; in synchronous mode others may be waiting for what it did."""
        if not self._partition.mode.use_async and self._index == 0:
            self._ends.pushed(caller.owner)
        return wire.header_frame(wire.answer_message(answer))

    def _cost(self, push: PushMessage) -> float:
        """What a push takes with all that it brings about."""
        cost = push.cost()
        mode = self._partition.mode
        if mode.use_async:
            return cost
        self._gradient_cost = cost
        return cost * mode.grads_to_wait if self._index == 0 and self._rounds.missing <= 1 else cost

    def _pull_rows(self, frame: bytes) -> bytes:
        pull = self._forms.read_pull(frame)
        pull.request.dense_version = wire.NO_DENSE
        return self._pull(pull, ps_pb2.PullResponse())

    def _pull(self, pull: PullMessage, answer: ps_pb2.PullResponse | ps_pb2.PushPullResponse) -> bytes:
        if self._partition.mode.use_async or pull.request.pin:
            return self._answer(pull, answer)
        # In synchronous mode a pull sees one version, not the half of an update.
        with self._partition.lock():
            if self._rounds.last is not None:
                response = answer if isinstance(answer, ps_pb2.PullResponse) else answer.pull
                response.round.CopyFrom(wire.round_to_message(self._rounds.last))
            return self._answer(pull, answer)

    def _answer(self, pull: PullMessage, answer: ps_pb2.PullResponse | ps_pb2.PushPullResponse) -> bytes:
        wire.begin_answer(
            self._partition, pull.request, answer if isinstance(answer, ps_pb2.PullResponse) else answer.pull
        )
        if not self._partition.initialised:
            return wire.header_frame(answer)
        form = pull.form or self._forms.learn_pull(pull.request, pull.header)
        return wire.pull_frame(self._partition, pull.request, form, pull.buffers, answer)

    def _dense_pieces(self, request: ps_pb2.PullRequest) -> list[Callable[[], bytes]]:
        """Makers of the frames of a dense pull, each of at most ``CHUNK_BYTES`` of values."""
        partition = self._partition
        version = partition.pinned_version(request.pin) if request.pin else partition.version
        base = ps_pb2.PullResponse(
            version=version, generation=partition.generation, initialized=partition.initialised
        )
        values: list[tuple[DenseSpec, int, int, Any]] = []
        if request.pin:
            values = [(v.spec, v.start, v.version, v.values) for v in partition.dense.read_pinned(request.pin)]
        elif partition.initialised:
            known = request.generation in ("", partition.generation)
            parts = partition.dense.changed(request.dense_version if known else -1)
            values = [(part.spec, part.start, part.version, part.values) for part in parts]
        makers: list[Callable[[], bytes]] = []
        for spec, start, changed, array in values:
            step = max(1, CHUNK_BYTES // array.itemsize)
            for at in range(0, max(1, len(array)), step):
                piece = array[at : at + step]
                header = ps_pb2.PullResponse()
                header.CopyFrom(base)
                header.dense.append(dense_to_message(spec, start + at, start + at + len(piece), 0, changed))
                makers.append(partial(self._dense_frame, header, piece))
        return makers or [lambda: wire.header_frame(base)]

    def _dense_frame(self, header: ps_pb2.PullResponse, piece: NDArray[Any]) -> bytes:
        frame, (place,) = allocate_frame(header.SerializeToString(), [piece.nbytes])
        self._partition.dense.copy([piece.view(np.uint8)], [place])
        return frame

    def _push_pull(self, push: PushMessage, pull: PullMessage, caller: Claims) -> bytes:
        _refuse_pin(pull)
        answer = self._take(push, caller)
        return self._answer(pull, ps_pb2.PushPullResponse(push=wire.answer_message(answer)))

    def _take(self, push: PushMessage, caller: Claims) -> Answer:
        partition, request = self._partition, push.request
        _require_own(request.worker, caller)
        wire.check_learning_rate(request.learning_rate)
        self._note(request.worker)
        if request.generation and request.generation != partition.generation:
            self._rejected += 1
            return Answer(False, partition.version, "generation")
        partition.require_initialised()
        if partition.mode.use_async:
            answer = self._apply_now(push)
        else:
            member = Member(request.worker, request.sequence)
            answer = self._rounds.prepare(member, self._changes(push), request.version, request.learning_rate)
            self._rejected += not answer.accepted
            if answer.accepted and self._index == 0:
                answer = self._commit(member, request.version)
        return answer

    def _apply_now(self, push: PushMessage) -> Answer:
        partition, request = self._partition, push.request
        sequence, last = self._answers.get(request.worker, (-1, None))
        if last is not None and request.sequence <= sequence:
            return Answer(last.accepted, partition.version, last.reason, replay=True)
        changes = self._changes(push)
        rate = request.learning_rate
        staleness = partition.version - request.version
        if partition.mode.lr_staleness_modulation and staleness > 1:
            rate = (rate or partition.optimizer.learning_rate) / staleness
        answer = Answer(True, partition.apply([changes], rate))
        self._updates += 1
        self._answers[request.worker] = (request.sequence, answer)
        return answer

    def _changes(self, push: PushMessage) -> Changes:
        form = push.form or self._forms.learn_push(push.request, push.header)
        return wire.read_changes(self._partition, form, push.frame, push.buffers)

    def _commit(self, member: Member, version: int) -> Answer:
        before = self._partition.version
        answer = self._rounds.commit(member, version)
        self._updates += self._partition.version - before
        self._rejected += not answer.accepted
        return answer

    def _flush(self) -> Answer:
        before = self._partition.version
        answer = self._rounds.flush()
        self._updates += self._partition.version - before
        return answer

    def _apply(self, round_: Round) -> int:
        before = self._partition.version
        version = self._rounds.apply(round_)
        self._updates += version - before
        return version

    def _become(self, loaded: Partition) -> None:
        self._partition.become(loaded)
        self._rounds.reset()
        self._answers = {}
        self._forms.forget()

    def _note(self, worker: str) -> None:
        replaced = self._incarnations.check(worker)
        if replaced is not None:
            self._answers.pop(replaced, None)
            self._rounds.forget(replaced)

    def _require_first(self) -> None:
        if self._index != 0:
            raise InvalidInputError(
                f"PS {self._index} does not decide on rounds", fix="send this to the first parameter server"
            )

    def _is_free(self, frame: bytes) -> bool:
        """Whether the event loop may do a push or a pull itself, if that is short: sooner than a thread would get it.

        That is so while nothing else runs: then it waits for no lock, and comes after all that came before it. Row
        policies may have more to do than a message says, and so they are left to threads.
        """
        return not self._running and len(frame) <= _SHORT and not self._partition.mode.rows.active

    async def _write(self, work: Callable[[], T]) -> T:
        return await self._in(self._writer, work)

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._in(self._readers, work)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        self._running += 1
        done = asyncio.get_running_loop().run_in_executor(pool, work)
        done.add_done_callback(self._has_run)
        # Shielded: a caller who goes away must not leave an update half counted.
        return await asyncio.shield(done)

    def _has_run(self, _: asyncio.Future[Any]) -> None:
        self._running -= 1


def warm_up_updates(partition: Partition) -> None:
    """Compiles, or loads from the cache, the optimizer's kernel, so that no first push waits for it."""
    table = EmbeddingTable(TableSpec("warm-up", 4), partition.optimizer, partition.kernels)
    grads = np.frombuffer(bytes(32), np.float32).reshape(2, 4)
    table.update(np.frombuffer(np.arange(2).tobytes(), np.int64), grads, partition.optimizer.numbers(1))


async def _joined(chunks: AsyncIterator[bytes]) -> bytes:
    pieces = [piece async for piece in chunks]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _require_member(caller: Claims) -> None:
    caller.require(Role.WORKER, Role.MASTER)


def _require_own(worker: str, caller: Claims) -> None:
    """A worker pushes in its own name only."""
    if caller.role is Role.WORKER and worker != caller.owner:
        raise PermissionDeniedError(
            f"{caller.owner} may not push as {worker!r}", fix="push under the token's own name"
        )


def _refuse_pin(pull: PullMessage) -> None:
    if pull.request.pin:
        raise InvalidInputError("a pull that goes along with a push has no pin", fix="send PushGradients, then Pull")


def _require_absolute(directory: str) -> None:
    if not directory.startswith("/"):
        raise InvalidInputError(f"{directory!r} is not an absolute path", fix="send the checkpoint's absolute path")


def _model_json(header: PartHeader) -> str:
    return json.dumps(
        {
            "dense": [dense_to_json(section.spec) for section in header.dense],
            "tables": [table_to_json(section.spec) for section in header.tables],
            "optimizer": json.loads(optimizer_to_json(header.optimizer)),
            "slots": list(header.slots),
            "mode": json.loads(mode_to_json(header.mode)),
        }
    )
