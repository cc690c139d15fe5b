"""The client of all parameter servers of a job."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.checkpoint_files import CheckpointFile
from elasticdl_runtime.convert.parameters import check_wire_dtype, mode_to_json, optimizer_to_json, table_to_message
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_worker.parameters.answers import PartialPull
from elasticdl_worker.parameters.connection import ServerConnection, answers_of, read_header
from elasticdl_worker.parameters.hot_rows import HotRows
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.pulls import ALL_DENSE, NO_DENSE, Moment, Pulls
from elasticdl_worker.parameters.pushes import Following, PushFrames, Stamp
from elasticdl_worker.parameters.rounds import PullOne, follow, pass_on, prepare, pull_of_round
from elasticdl_worker.parameters.splits import Split
from elasticdl_worker.parameters.types import LIMIT, Gradients, Pulled, PushResult
from elasticdl_worker.parameters.waiting import together

_Pull = Callable[[Mapping[str, NDArray[np.int64]], bool, int], Awaitable[Pulled]]
_REMEMBERED_PULLS = 256
_OTHERS_TURN_S = 5.0
"""How long the worker that initialised the first PS may take to initialise another one."""
_POLL_S = 0.1
MESSAGE_BYTES = 256 << 20
"""Pulls and pushes of more rows are cut: gRPC takes messages of 1 GiB at most, and each is in memory twice."""
HOT_ROWS = 1 << 16
NEAR = 256
"""So many updates before the last one pushes go to the first PS first. Others may make some between pull and push."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What each PS was when parameters were pulled."""

    versions: tuple[int, ...]
    generations: tuple[str, ...]


class ParameterClient:
    """Talks to all PS of a job: one RPC per PS and call, all PS in parallel.

    Pulls may run side by side; pushes are sent one after the other.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the present job token.
        worker: the worker's incarnation as its token says it, e.g. ``worker-3.1``.
        wire_dtype: ``float32`` or ``bfloat16`` for rows and their gradients on the wire.
        patience_s: for how long an unreachable PS is tried again.
        hot_rows_staleness: for how many own updates rows that are seen often are kept here; 0 keeps none.
        hot_rows: how many are kept of each table.
        message_bytes: what is larger travels in several messages, or pieces of one; at most 1 GiB.

    Raises:
        InvalidInputError: the wire dtype is unknown.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: Callable[[], str],
        worker: str,
        wire_dtype: str = "float32",
        *,
        patience_s: float = 120.0,
        hot_rows_staleness: int = 0,
        hot_rows: int = HOT_ROWS,
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        self._worker = worker
        self._token = token
        self._patience_s = patience_s
        self._wire_dtype = check_wire_dtype(wire_dtype)
        self._servers = [ServerConnection(i, address, token, patience_s) for i, address in enumerate(addresses)]
        self._pulls = Pulls(self._wire_dtype, patience_s, message_bytes)
        self._place((), ())
        self._mode = UpdateMode()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        self._dense: dict[str, NDArray[Any]] = {}
        self._hot = HotRows(hot_rows_staleness, hot_rows) if hot_rows_staleness else None
        self._message_bytes = message_bytes
        self._sequence = 0
        self._answered = 0
        self._wait_for = 0
        self._pushing = asyncio.Lock()

    async def ensure_model(
        self,
        dense: Mapping[str, NDArray[Any]],
        specs: Sequence[DenseSpec],
        tables: Sequence[TableSpec],
        optimizer: OptimizerSpec,
        mode: UpdateMode,
    ) -> bool:
        """Declares the model, and initialises it unless that was done before.

        The first PS decides between workers that come at once: who initialises it initialises the others.

        Args:
            dense: first values of the dense parameters by name.
            specs: the dense parameters; in the same order and shape in all workers.
            tables: the embedding tables.
            optimizer: the optimizer and its hyper-parameters.
            mode: how updates are made.

        Returns:
            Whether this call initialised the model. If not, pull it.

        Raises:
            InvalidInputError: the PS cannot hold the model, or know the optimizer, or rows would be kept in
                synchronous mode.
            ConflictError: the PS hold a checkpoint of another model.
        """
        if self._hot is not None and not mode.use_async:
            raise InvalidInputError(
                "synchronous training reads every row at its newest version",
                fix="set --hot_rows_staleness 0, or --use_async true",
            )
        self._place(specs, tables)
        self._mode = mode

        def frame(index: int, with_values: bool) -> bytes:
            messages, buffers = self._placement.model(index, dense if with_values else None)
            request = ps_pb2.PushModelRequest(
                dense=messages,
                tables=[table_to_message(table) for table in tables],
                optimizer=optimizer_to_json(optimizer),
                mode=mode_to_json(mode),
            )
            return encode_frame(request.SerializeToString(), buffers)

        first, *others = self._servers
        present = await self._is_initialised(first)
        initialised = (await first.push_model(frame(0, not present))).initialized

        async def follow(server: ServerConnection) -> None:
            there = not initialised and await self._wait_until_initialised(server)
            await server.push_model(frame(server.index, not there))

        await together([follow(server) for server in others])
        return bool(initialised)

    async def pull(self, ids: Mapping[str, NDArray[np.int64]], *, dense: bool = True, pin: int = 0) -> Pulled:
        """Reads rows, and the dense parameters that changed since the last pull.

        Args:
            ids: by table, int64 ``[n]``, unique.
            dense: whether to read dense parameters as well.
            pin: read as of a pin; all dense parameters then.

        Raises:
            UnavailableError: a PS could not be reached, or has no model, for the whole of the patience.
            InvalidInputError: a table or an id is unknown to the PS.
            NotFoundError: there is no such pin.
        """
        if self._hot is None or pin or not ids:
            return await self._pull(ids, dense, pin)
        return await self._pull_cold(self._hot, ids, dense)

    async def push(self, gradients: Gradients, *, version: int, learning_rate: float | None = None) -> PushResult:
        """Applies gradients exactly once, whatever the network does.

        Asynchronous: each PS applies its part at once; the push is accepted if any PS took it (a PS that was
        replaced since the pull refuses its part). Synchronous: all PS keep the gradients, and the first PS counts
        them for the present round, or refuses them as stale. The next pull then waits for the end of the round,
        while enough other workers are on the way with gradients for it.

        Args:
            gradients: of one minibatch, rows merged.
            version: of the pull that they were computed from.
            learning_rate: None for the optimizer's own.

        Raises:
            UnavailableError: a PS could not be reached for the whole of the patience.
            InvalidInputError: a PS cannot apply the gradients (unknown names, wrong shapes, NaN).
        """
        async with self._pushing:
            frames = self._frames.make(gradients, self._stamp(version, learning_rate))
            if not self._mode.use_async:
                answer = await prepare(self._servers, frames, self._push_one)
                answer = answer or await self._push_one(self._servers[0], frames[0])
                if answer.HasField("closed"):
                    await pass_on(self._servers, answer.closed)
                return self._counted(answer, version)
            answers = []
            rest = list(zip(self._servers, frames, strict=True))
            if self._near_limit(version):
                # The first PS decides which update is the last one, so that no other takes more.
                answers = [await self._push_one(*rest.pop(0))]
                if not answers[0].accepted and answers[0].reason == LIMIT:
                    self._answered = self._sequence
                    return PushResult(False, answers[0].version, LIMIT)
            answers += await together([self._push_one(server, frame) for server, frame in rest])
            self._answered = self._sequence
            return _async_result(answers)

    async def push_pull(
        self,
        gradients: Gradients,
        ids: Mapping[str, NDArray[np.int64]],
        *,
        version: int,
        learning_rate: float | None = None,
        dense: bool = True,
    ) -> tuple[PushResult, Pulled | None]:
        """A push, and then a pull for another minibatch, in one message a PS.

        It means what ``push`` followed by ``pull`` means, at half the messages: each PS applies its part of the
        gradients and then reads, so that the pull has them. In synchronous mode only the first PS gets both in one
        message, and nothing is pulled if the push is refused. It is two calls for what is too large for a message.
        Raises what the two raise; if the pull fails, the push may count all the same.

        Args:
            gradients: as for ``push``.
            ids: as for ``pull``.
            version: of the pull that the gradients were computed from.
            learning_rate: None for the optimizer's own.
            dense: whether to pull dense parameters as well.
        """
        streamed = dense and any(server.streams_dense for server in self._servers)
        size = sum(grads.nbytes for _, grads in gradients.rows.values()) + self._placement.rows_bytes(ids)
        if streamed or size > self._message_bytes or self._near_limit(version):
            result = await self.push(gradients, version=version, learning_rate=learning_rate)
            return result, None if result.reason == LIMIT else await self.pull(ids, dense=dense)
        if not self._mode.use_async:
            return await self._push_pull_in_round(gradients, ids, version, learning_rate, dense)
        if self._hot is None or not ids:
            return await self._push_pull(gradients, ids, version, learning_rate, dense)
        results: list[PushResult] = []

        async def both(cold: Mapping[str, NDArray[np.int64]], dense: bool, pin: int) -> Pulled:
            if results:
                return await self._pull(cold, dense, pin)
            result, pulled = await self._push_pull(gradients, cold, version, learning_rate, dense)
            results.append(result)
            return pulled

        pulled = await self._pull_cold(self._hot, ids, dense, both)
        return results[0], pulled

    def _near_limit(self, version: int) -> bool:
        """Whether a gradient on parameters of a version may be the last one, or too late, for several PS at once."""
        stop_at = self._mode.stop_at
        return bool(stop_at) and self._mode.use_async and len(self._servers) > 1 and version + NEAR >= stop_at

    async def update_servers(self, addresses: Sequence[str], generation: str = "") -> None:
        """Takes the addresses of PS that were replaced; the next pull reads everything anew.

        Args:
            addresses: of PS 0, 1, ...; another number of them places parameters anew.
            generation: what the master calls this set of PS; for logs only, each PS tells its own.
        """
        self._forget_rows()
        present, wanted = len(self._servers), len(addresses)
        for server, address in zip(self._servers, addresses, strict=False):
            await server.move(address)
        for server in self._servers[wanted:]:
            await server.close()
        added = [
            ServerConnection(index, addresses[index], self._token, self._patience_s)
            for index in range(present, wanted)
        ]
        self._servers = self._servers[:wanted] + added
        if wanted != present:
            self._place(self._placement.specs, self._placement.tables)
            self._seen.clear()

    async def close(self) -> None:
        """Closes the channels."""
        await asyncio.gather(*(server.close() for server in self._servers))

    async def pull_embedding_vectors(
        self, table: str, ids: NDArray[np.int64], *, pin: int = 0
    ) -> NDArray[np.float32]:
        """Rows of one table, float32 ``[n, dim]``."""
        return (await self.pull({table: ids}, dense=False, pin=pin)).rows[table]

    async def pull_dense_parameters(self, *, pin: int = 0) -> Mapping[str, NDArray[Any]]:
        """The dense parameters that changed since the last pull; all of them at a pin."""
        return (await self.pull({}, pin=pin)).dense

    async def push_embedding_table_infos(self, tables: Sequence[TableSpec]) -> None:
        """Declares further embedding tables on all PS."""
        request = ps_pb2.PushTableInfosRequest(tables=[table_to_message(table) for table in tables])
        frame = encode_frame(request.SerializeToString())
        await together([server.call("PushEmbeddingTableInfos", frame) for server in self._servers])
        self._place(self._placement.specs, (*self._placement.tables, *tables))

    async def pin(self, number: int) -> int:
        """Keeps the present parameters readable on all PS (a master's call); returns the largest version."""
        answers = await together([s.call("Pin", ps_pb2.PinRequest(pin=number)) for s in self._servers])
        return max(int(answer.version) for answer in answers)

    async def unpin(self, number: int) -> None:
        """Forgets a pin on all PS (a master's call)."""
        await together([server.call("Unpin", ps_pb2.UnpinRequest(pin=number)) for server in self._servers])

    async def save(self, directory: str) -> list[CheckpointFile]:
        """Lets all PS write their parts (a master's call)."""
        request = ps_pb2.SaveRequest(directory=directory)
        answers = await together([s.call("Save", request, answer_bytes=1 << 30) for s in self._servers])
        return [CheckpointFile(file.name, file.size, file.sha256) for answer in answers for file in answer.files]

    async def restore(self, directory: str, files: Sequence[CheckpointFile]) -> int:
        """Lets all PS read their parts (a master's call); returns the version."""
        named = [ps_pb2.SavedFile(name=file.name, size=file.size, sha256=file.sha256) for file in files]
        request = ps_pb2.RestoreRequest(directory=directory, files=named)
        answers = await together([s.call("Restore", request, answer_bytes=1 << 30) for s in self._servers])
        return max(int(answer.version) for answer in answers)

    def _place(self, specs: Sequence[DenseSpec], tables: Sequence[TableSpec]) -> None:
        """Places a model on the present PS."""
        self._placement = ModelPlacement(specs, tables, len(self._servers))
        self._frames = PushFrames(self._placement, self._worker, self._wire_dtype)
        for server in self._servers:
            server.dense_bytes = self._placement.dense_bytes(server.index)

    async def _is_initialised(self, server: ServerConnection) -> bool:
        return bool((await server.call("Status", ps_pb2.StatusRequest())).initialized)

    async def _wait_until_initialised(self, server: ServerConnection) -> bool:
        """Gives the worker that won the first PS its time; False if it did not use it."""
        give_up = time.monotonic() + _OTHERS_TURN_S
        while not await self._is_initialised(server):
            if time.monotonic() > give_up:
                return False
            await server.pause(_POLL_S)
        return True

    async def _pull(self, ids: Mapping[str, NDArray[np.int64]], dense: bool, pin: int) -> Pulled:
        placement = self._placement
        splits = placement.split(ids)
        asked = [_asked(splits, index) for index in range(len(self._servers))]
        pull = self._puller(asked, dense)
        parts: Sequence[PartialPull]
        if self._mode.use_async or pin:
            parts = await together([pull(server.index, Moment(pin)) for server in self._servers])
        else:
            parts = await pull_of_round(self._servers, pull, self._wait_for, self._patience_s)
        return self._whole(placement, parts, splits, dense, pin)

    async def _push_pull(
        self,
        gradients: Gradients,
        ids: Mapping[str, NDArray[np.int64]],
        version: int,
        learning_rate: float | None,
        dense: bool,
    ) -> tuple[PushResult, Pulled]:
        async with self._pushing:
            placement, servers = self._placement, self._servers
            splits = placement.split(ids)
            asked = [_asked(splits, index) for index in range(len(servers))]
            following = self._following(splits, dense)
            frames = self._frames.make(gradients, self._stamp(version, learning_rate), following)
            calls = [
                server.begin("PushPull", frame, answer_bytes=server.dense_bytes + placement.rows_bytes(wanted))
                for server, frame, wanted in zip(servers, frames, asked, strict=True)
            ]
            answers = await answers_of(calls)
            self._answered = self._sequence
        pushes: list[ps_pb2.PushGradientsResponse] = []
        parts: list[PartialPull] = []
        for answer, wanted in zip(answers, asked, strict=True):
            pushed, part = _read_both(answer, wanted)
            pushes.append(pushed)
            parts.append(part)
        for index, part in enumerate(parts):
            if not part.initialised:
                parts[index] = await self._puller(asked, dense)(index, Moment())
        return _async_result(pushes), self._whole(placement, parts, splits, dense)

    async def _push_pull_in_round(
        self,
        gradients: Gradients,
        ids: Mapping[str, NDArray[np.int64]],
        version: int,
        learning_rate: float | None,
        dense: bool,
    ) -> tuple[PushResult, Pulled | None]:
        placement, servers = self._placement, self._servers
        splits = placement.split(ids)
        asked = [_asked(splits, index) for index in range(len(servers))]
        pull = self._puller(asked, dense)
        first = PartialPull()
        async with self._pushing:
            following = self._following(splits, dense, wait_for=self._next_version(version), only_first=True)
            frames = self._frames.make(gradients, self._stamp(version, learning_rate), following)
            answer = await prepare(servers, frames, self._push_one)
            if answer is None:
                expected = servers[0].dense_bytes + placement.rows_bytes(asked[0])
                frame = await servers[0].call("PushPull", frames[0], answer_bytes=expected)
                answer, first = _read_both(frame, asked[0])
            result = self._counted(answer, version)
        if not result.accepted:
            return result, None
        if first.pending or not first.initialised:
            parts = await pull_of_round(servers, pull, self._wait_for, self._patience_s)
        else:
            parts = await follow(servers, first, pull, self._patience_s)
        return result, self._whole(placement, parts, splits, dense)

    def _following(self, splits: Mapping[str, Split], dense: bool, **options: Any) -> Following:
        """The pull that goes along with a push; see ``Following`` for the options."""
        known = [server.dense_version if dense else NO_DENSE for server in self._servers]
        return Following(splits, known, [server.generation for server in self._servers], **options)

    def _whole(
        self,
        placement: ModelPlacement,
        parts: Sequence[PartialPull],
        splits: Mapping[str, Split],
        dense: bool,
        pin: int = 0,
    ) -> Pulled:
        """What all PS have answered to a pull, put together; the present is noted, a pin is not."""
        if not pin:
            self._remember(parts, dense)
        arrays = placement.assemble(parts, {} if pin else self._dense) if dense else {}
        return Pulled(max(part.version for part in parts), arrays, placement.merge_rows(splits, parts))

    def _next_version(self, version: int) -> int:
        """The version to wait for after a gradient of a version counts; 0 where older ones may be used as well."""
        return 0 if self._mode.sync_version_tolerance else version + 1

    def _counted(self, answer: ps_pb2.PushGradientsResponse, version: int) -> PushResult:
        """What became of a push in synchronous mode; notes what the next pull is to wait for."""
        self._answered = self._sequence
        self._wait_for = self._next_version(version) if answer.accepted else 0
        return PushResult(answer.accepted, answer.version, answer.reason)

    async def _pull_cold(
        self, hot: HotRows, ids: Mapping[str, NDArray[np.int64]], dense: bool, pull: _Pull | None = None
    ) -> Pulled:
        """Pulls the rows that are not kept here, or too old."""
        pull = pull or self._pull
        epoch, surely = hot.epoch, self._answered
        generations = [server.generation for server in self._servers]
        found = {
            table: hot.find(table, wanted, self._placement.dim(table), self._sequence)
            for table, wanted in ids.items()
        }
        cold = {table: ids[table][known.missing] for table, known in found.items()}
        pulled = await pull(cold, dense, 0)
        replaced = [server.generation for server in self._servers] != generations or hot.epoch != epoch
        if replaced:
            # What is kept may be of a PS that was replaced meanwhile.
            self._forget_rows()
            if any(len(known.missing) < len(known.rows) for known in found.values()):
                whole = await pull(ids, False, 0)
                return Pulled(pulled.version, pulled.dense, whole.rows)
        for table, known in found.items():
            known.rows[known.missing] = pulled.rows[table]
            if not replaced:
                hot.keep(table, cold[table], pulled.rows[table], surely)
        return Pulled(pulled.version, pulled.dense, {table: known.rows for table, known in found.items()})

    def _forget_rows(self) -> None:
        if self._hot is not None:
            self._hot.forget()

    def _puller(self, asked: Sequence[Mapping[str, NDArray[np.int64]]], dense: bool) -> PullOne:
        """What pulls from one PS its part of what is asked for."""
        servers, placement = self._servers, self._placement
        return lambda index, moment: self._pulls.pull(
            servers[index], placement, asked[index], dense=dense, moment=moment
        )

    def _remember(self, parts: Sequence[PartialPull], dense: bool) -> None:
        for server, part in zip(self._servers, parts, strict=True):
            if part.generation != server.generation and not dense:
                server.dense_version = ALL_DENSE  # the dense parameters known are those of another PS
            server.generation = part.generation
            if dense:
                server.dense_version = part.version
        latest = max(part.version for part in parts)
        self._seen[latest] = _Seen(tuple(part.version for part in parts), tuple(part.generation for part in parts))
        self._seen.move_to_end(latest)
        while len(self._seen) > _REMEMBERED_PULLS:
            self._seen.popitem(last=False)

    def _stamp(self, version: int, learning_rate: float | None) -> Stamp:
        """Numbers the next push."""
        self._sequence += 1
        count = len(self._servers)
        seen = self._seen.get(version)
        versions = seen.versions if seen else (version,) * count
        generations = seen.generations if seen else tuple(server.generation for server in self._servers)
        return Stamp(self._sequence, versions, generations, learning_rate)

    async def _push_one(self, server: ServerConnection, frame: bytes) -> ps_pb2.PushGradientsResponse:
        response = ps_pb2.PushGradientsResponse()
        if len(frame) > self._message_bytes:
            answer = await server.push_pieces("PushGradientsInPieces", frame)
        else:
            answer = await server.call("PushGradients", frame)
        read_header(answer, response)
        return response


def _asked(splits: Mapping[str, Split], index: int) -> dict[str, NDArray[np.int64]]:
    """What one PS is asked for."""
    return {table: split.parts[index] for table, split in splits.items()}


def _read_both(
    frame: bytes, asked: Mapping[str, NDArray[np.int64]]
) -> tuple[ps_pb2.PushGradientsResponse, PartialPull]:
    """The answer to a push and a pull in one message."""
    response, part = ps_pb2.PushPullResponse(), PartialPull()
    buffers = read_header(frame, response)
    part.add(response.pull, buffers, asked)
    return response.push, part


def _async_result(answers: Sequence[ps_pb2.PushGradientsResponse]) -> PushResult:
    """What became of a push in asynchronous mode: it counts if any PS took its part."""
    latest = max(answer.version for answer in answers)
    accepted = any(answer.accepted for answer in answers)
    refused = next((answer for answer in answers if not answer.accepted), None)
    return PushResult(accepted, latest, "" if accepted or refused is None else refused.reason)
