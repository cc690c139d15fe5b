"""The client of all parameter servers of a job."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.checkpoint_files import CheckpointFile
from elasticdl_runtime.convert.parameters import check_wire_dtype, mode_to_json, optimizer_to_json, table_to_message
from elasticdl_runtime.rpc.framing import allocate_frame, encode_frame
from elasticdl_runtime.rpc.service import CHUNK_BYTES
from elasticdl_worker.parameters.connection import ServerConnection, read_header
from elasticdl_worker.parameters.hot_rows import HotRows
from elasticdl_worker.parameters.layout import Layout, PartialPull, Piece
from elasticdl_worker.parameters.types import Gradients, Pulled, PushResult

T = TypeVar("T")
_Pull = Callable[[Mapping[str, NDArray[np.int64]], bool, int], Awaitable[Pulled]]
_ALL, _NO_DENSE = -1, -2
_REMEMBERED_PULLS = 256
_OTHERS_TURN_S = 5.0
"""How long the worker that initialised the first PS may take to initialise another one."""
_POLL_S = 0.1
MESSAGE_BYTES = 256 << 20
"""Pulls and pushes of more rows are cut: gRPC takes messages of 1 GiB at most, and each is in memory twice."""
HOT_ROWS = 1 << 16


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
        self._layout = Layout((), (), len(self._servers))
        self._mode = UpdateMode()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        self._dense: dict[str, NDArray[Any]] = {}
        self._hot = HotRows(hot_rows_staleness, hot_rows) if hot_rows_staleness else None
        self._message_bytes = message_bytes
        self._row_headers: dict[tuple[str, ...], bytes] = {}
        self._sequence = 0
        self._answered = 0
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
        self._layout = Layout(specs, tables, len(self._servers))
        self._mode = mode
        for server in self._servers:
            server.dense_bytes = self._layout.dense_bytes(server.index)

        def frame(index: int, with_values: bool) -> bytes:
            messages, buffers = self._layout.model(index, dense if with_values else None)
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

        await _together([follow(server) for server in others])
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

    async def push(self, gradients: Gradients, *, version: int, learning_rate: float = 0.0) -> PushResult:
        """Applies gradients exactly once, whatever the network does.

        Asynchronous: each PS applies its part at once; the push is accepted if any PS took it (a PS that was
        replaced since the pull refuses its part). Synchronous: all PS keep the gradients, and the first PS counts
        them for the present round, or refuses them as stale.

        Args:
            gradients: of one minibatch, rows merged.
            version: of the pull that they were computed from.
            learning_rate: 0 for the optimizer's own.

        Raises:
            UnavailableError: a PS could not be reached for the whole of the patience.
            InvalidInputError: a PS cannot apply the gradients (unknown names, wrong shapes, NaN).
        """
        async with self._pushing:
            self._sequence += 1
            frames = self._push_frames(gradients, version, learning_rate)
            answers = await _together(
                [self._push_one(server, frame) for server, frame in zip(self._servers, frames, strict=True)]
            )
            self._answered = self._sequence
            if self._mode.use_async:
                return _async_result(answers)
            refused = next((answer for answer in answers if not answer.accepted), None)
            latest = max(answer.version for answer in answers)
            if refused is not None:
                return PushResult(False, latest, refused.reason)
            if len(self._servers) == 1:
                return PushResult(True, latest)
            return await self._commit(version)

    async def push_pull(
        self,
        gradients: Gradients,
        ids: Mapping[str, NDArray[np.int64]],
        *,
        version: int,
        learning_rate: float = 0.0,
        dense: bool = True,
    ) -> tuple[PushResult, Pulled]:
        """A push, and then a pull for another minibatch, in one message a PS.

        It means what ``push`` followed by ``pull`` means, at half the messages: each PS applies its part of the
        gradients and then reads, so that the pull has them. It is two calls where one will not do: in synchronous
        mode, and for what is too large for a message. Raises what the two raise; if the pull fails, the push may
        count all the same.

        Args:
            gradients: as for ``push``.
            ids: as for ``pull``.
            version: of the pull that the gradients were computed from.
            learning_rate: 0 for the optimizer's own.
            dense: whether to pull dense parameters as well.
        """
        streamed = dense and any(server.dense_bytes > CHUNK_BYTES for server in self._servers)
        size = sum(grads.nbytes for _, grads in gradients.rows.values())
        size += sum(4 * len(wanted) * self._layout.dim(table) for table, wanted in ids.items())
        if not self._mode.use_async or streamed or size > self._message_bytes:
            result = await self.push(gradients, version=version, learning_rate=learning_rate)
            return result, await self.pull(ids, dense=dense)
        results: list[PushResult] = []

        async def both(cold: Mapping[str, NDArray[np.int64]], dense: bool, pin: int) -> Pulled:
            if results:
                return await self._pull(cold, dense, pin)
            result, pulled = await self._push_pull(gradients, cold, version, learning_rate, dense)
            results.append(result)
            return pulled

        if self._hot is None or not ids:
            pulled = await both(ids, dense, 0)
        else:
            pulled = await self._pull_cold(self._hot, ids, dense, both)
        return results[0], pulled

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
            self._layout = Layout(self._layout.specs, self._layout.tables, wanted)
            self._seen.clear()
        for server in self._servers:
            server.dense_bytes = self._layout.dense_bytes(server.index)

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
        await _together([server.call("PushEmbeddingTableInfos", frame) for server in self._servers])
        self._layout = Layout(self._layout.specs, (*self._layout.tables, *tables), len(self._servers))

    async def pin(self, number: int) -> int:
        """Keeps the present parameters readable on all PS (a master's call); returns the largest version."""
        answers = await _together([s.call("Pin", ps_pb2.PinRequest(pin=number)) for s in self._servers])
        return max(int(answer.version) for answer in answers)

    async def unpin(self, number: int) -> None:
        """Forgets a pin on all PS (a master's call)."""
        await _together([server.call("Unpin", ps_pb2.UnpinRequest(pin=number)) for server in self._servers])

    async def save(self, directory: str) -> list[CheckpointFile]:
        """Lets all PS write their parts (a master's call)."""
        request = ps_pb2.SaveRequest(directory=directory)
        answers = await _together([s.call("Save", request, answer_bytes=1 << 30) for s in self._servers])
        return [CheckpointFile(file.name, file.size, file.sha256) for answer in answers for file in answer.files]

    async def restore(self, directory: str, files: Sequence[CheckpointFile]) -> int:
        """Lets all PS read their parts (a master's call); returns the version."""
        named = [ps_pb2.SavedFile(name=file.name, size=file.size, sha256=file.sha256) for file in files]
        request = ps_pb2.RestoreRequest(directory=directory, files=named)
        answers = await _together([s.call("Restore", request, answer_bytes=1 << 30) for s in self._servers])
        return max(int(answer.version) for answer in answers)

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
        layout = self._layout
        splits = {table: layout.split(table, wanted) for table, wanted in ids.items()}
        asked = [{table: split.parts[i] for table, split in splits.items()} for i in range(len(self._servers))]
        parts = list(
            await _together([self._pull_one(server, asked[server.index], dense, pin) for server in self._servers])
        )
        if not self._mode.use_async and not pin:
            await self._align(parts, lambda index: self._pull_one(self._servers[index], asked[index], dense, pin))
        versions = tuple(part.version for part in parts)
        if not pin:
            self._remember(parts, dense)
        arrays = layout.assemble(parts, {} if pin else self._dense) if dense else {}
        return Pulled(max(versions), arrays, layout.merge_rows(splits, parts))

    async def _push_pull(
        self,
        gradients: Gradients,
        ids: Mapping[str, NDArray[np.int64]],
        version: int,
        learning_rate: float,
        dense: bool,
    ) -> tuple[PushResult, Pulled]:
        layout, servers = self._layout, list(self._servers)
        splits = {table: layout.split(table, wanted) for table, wanted in ids.items()}
        asked = [{table: split.parts[i] for table, split in splits.items()} for i in range(len(servers))]
        headers = [
            self._pull_request(server, dense, 0).SerializeToString() + self._rows_header(asked[server.index])
            for server in servers
        ]
        rows = [list(part.values()) for part in asked]
        async with self._pushing:
            self._sequence += 1
            frames = self._push_frames(gradients, version, learning_rate, list(zip(headers, rows, strict=True)))
            calls = [
                self._push_pull_one(server, frames[server.index], asked[server.index], dense) for server in servers
            ]
            answers = await _together(calls)
            self._answered = self._sequence
        result = _async_result([answer for answer, _ in answers])
        parts = [part for _, part in answers]
        self._remember(parts, dense)
        arrays = layout.assemble(parts, self._dense) if dense else {}
        return result, Pulled(max(part.version for part in parts), arrays, layout.merge_rows(splits, parts))

    async def _push_pull_one(
        self, server: ServerConnection, frame: bytes, asked: Mapping[str, NDArray[np.int64]], dense: bool
    ) -> tuple[ps_pb2.PushGradientsResponse, PartialPull]:
        response = ps_pb2.PushPullResponse()
        expected = server.dense_bytes + sum(len(ids) * self._layout.dim(table) * 4 for table, ids in asked.items())
        buffers = read_header(await server.call("PushPull", frame, answer_bytes=expected), response)
        part = PartialPull()
        part.add(response.pull, buffers, asked)
        if not part.initialised:
            part = await self._pull_one(server, asked, dense, 0)
        return response.push, part

    async def _pull_cold(
        self, hot: HotRows, ids: Mapping[str, NDArray[np.int64]], dense: bool, pull: _Pull | None = None
    ) -> Pulled:
        """Pulls the rows that are not kept here, or too old."""
        pull = pull or self._pull
        epoch, surely = hot.epoch, self._answered
        generations = [server.generation for server in self._servers]
        found = {
            table: hot.find(table, wanted, self._layout.dim(table), self._sequence) for table, wanted in ids.items()
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

    async def _pull_one(
        self, server: ServerConnection, asked: Mapping[str, NDArray[np.int64]], dense: bool, pin: int
    ) -> PartialPull:
        """Pulls from one PS, waiting while it has no model (it is being restored)."""
        give_up = time.monotonic() + self._patience_s
        while True:
            part = await self._pull_once(server, asked, dense, pin)
            if part.initialised and not part.torn:
                return part
            if time.monotonic() > give_up:
                trouble = "is updated all the time" if part.torn else "has no model"
                raise UnavailableError(
                    f"PS {server.index} at {server.address} {trouble} after {self._patience_s:.0f} s",
                    fix="pull fewer rows at once"
                    if part.torn
                    else "see the job's events for why it was not restored",
                )
            await server.pause(_POLL_S)

    async def _pull_once(
        self, server: ServerConnection, asked: Mapping[str, NDArray[np.int64]], dense: bool, pin: int
    ) -> PartialPull:
        request = self._pull_request(server, dense, pin)
        part = PartialPull()
        streamed = dense and server.dense_bytes > CHUNK_BYTES
        if streamed:
            for frame in await server.pull_dense(encode_frame(request.SerializeToString())):
                part.take(frame, asked)
            request.dense_version = _NO_DENSE
        groups = self._layout.groups(asked, self._message_bytes)
        for group in groups:
            # Encoded messages may be joined: the fields of both count.
            header = request.SerializeToString() + self._rows_header(group)
            frame = encode_frame(header, list(group.values()))
            expected = sum(len(ids) * self._layout.dim(table) * 4 for table, ids in group.items())
            if request.dense_version != _NO_DENSE:
                expected += server.dense_bytes
            version = part.take(await server.call("Pull", frame, answer_bytes=expected), group)
            part.torn |= version != part.version and not self._mode.use_async and not pin
            if not part.initialised:
                break
            request.dense_version = _NO_DENSE
        if len(groups) > 1:
            part.join()
        return part

    def _pull_request(self, server: ServerConnection, dense: bool, pin: int) -> ps_pb2.PullRequest:
        return ps_pb2.PullRequest(
            dense_version=(_ALL if pin else server.dense_version) if dense else _NO_DENSE,
            pin=pin,
            dtype=self._wire_dtype,
            generation="" if pin else server.generation,
        )

    def _rows_header(self, tables: Mapping[str, Any]) -> bytes:
        """The encoded ``rows`` of a pull, the same for the same tables."""
        names = tuple(tables)
        if names not in self._row_headers:
            rows = [ps_pb2.Rows(table=table, ids=index) for index, table in enumerate(names)]
            self._row_headers[names] = ps_pb2.PullRequest(rows=rows).SerializeToString()
        return self._row_headers[names]

    async def _align(self, parts: list[PartialPull], again: Callable[[int], Awaitable[PartialPull]]) -> None:
        """Pulls again, and helps along, until all PS show one version (synchronous mode)."""
        give_up = time.monotonic() + self._patience_s
        while len({part.version for part in parts}) > 1:
            if time.monotonic() > give_up:
                raise UnavailableError(
                    f"the parameter servers stay at versions {[part.version for part in parts]}",
                    fix="restore all parameter servers from the last checkpoint",
                )
            newest = max(part.version for part in parts)
            behind = [index for index, part in enumerate(parts) if part.version < newest]
            await _together([self._catch_up(index, parts[index].version) for index in behind if index])
            fresh = await _together([again(index) for index in behind])
            for index, part in zip(behind, fresh, strict=True):
                parts[index] = part

    async def _catch_up(self, index: int, version: int) -> None:
        """Passes the rounds that the first PS has closed on to one that has not applied them."""
        response = await self._servers[0].call("ClosedRounds", ps_pb2.ClosedRoundsRequest(since=version))
        for round_ in response.rounds:
            await self._servers[index].call("ApplyRound", ps_pb2.ApplyRoundRequest(round=round_))

    def _remember(self, parts: Sequence[PartialPull], dense: bool) -> None:
        for server, part in zip(self._servers, parts, strict=True):
            if part.generation != server.generation and not dense:
                server.dense_version = _ALL  # the dense parameters known are those of another PS
            server.generation = part.generation
            if dense:
                server.dense_version = part.version
        latest = max(part.version for part in parts)
        self._seen[latest] = _Seen(tuple(part.version for part in parts), tuple(part.generation for part in parts))
        self._seen.move_to_end(latest)
        while len(self._seen) > _REMEMBERED_PULLS:
            self._seen.popitem(last=False)

    def _push_frames(
        self,
        gradients: Gradients,
        version: int,
        learning_rate: float,
        pulls: Sequence[tuple[bytes, list[NDArray[np.int64]]]] = (),
    ) -> list[bytes]:
        """A push for each PS, or, with the encoded request and the ids of a pull for each, both in one frame."""
        seen = self._seen.get(version)
        frames = []
        for index, (names, pieces) in enumerate(self._layout.changes(gradients, self._wire_dtype)):
            request = ps_pb2.PushGradientsRequest(
                worker=self._worker,
                sequence=self._sequence,
                version=seen.versions[index] if seen else version,
                generation=seen.generations[index] if seen else self._servers[index].generation,
                learning_rate=learning_rate,
                commit=not self._mode.use_async and len(self._servers) == 1,
            )
            header = request.SerializeToString() + names
            if pulls:
                pull, ids = pulls[index]
                start = ps_pb2.PushPullRequest(pull_from=len(pieces)).SerializeToString()
                header = start + _nested(1, header) + _nested(2, pull)
                pieces = [*pieces, *map(Piece, ids)]
            frame, places = allocate_frame(header, [piece.nbytes for piece in pieces])
            for piece, place in zip(pieces, places, strict=True):
                piece.write(place)
            frames.append(frame)
        return frames

    async def _push_one(self, server: ServerConnection, frame: bytes) -> ps_pb2.PushGradientsResponse:
        response = ps_pb2.PushGradientsResponse()
        if len(frame) > self._message_bytes:
            answer = await server.push_pieces("PushGradientsInPieces", frame)
        else:
            answer = await server.call("PushGradients", frame)
        read_header(answer, response)
        return response

    async def _commit(self, version: int) -> PushResult:
        member = ps_pb2.Member(worker=self._worker, sequence=self._sequence)
        request = ps_pb2.CommitGradientsRequest(member=member, version=version)
        try:
            answer = await self._servers[0].call("CommitGradients", request)
        except ConflictError:
            # The first PS was replaced between the two calls: the gradient is lost with it.
            return PushResult(False, version, "generation")
        if answer.HasField("closed"):
            closed = ps_pb2.ApplyRoundRequest(round=answer.closed)
            await _together([self._apply_round(server, closed) for server in self._servers[1:]])
        return PushResult(answer.accepted, answer.version, "" if answer.accepted else "stale")

    async def _apply_round(self, server: ServerConnection, request: ps_pb2.ApplyRoundRequest) -> None:
        try:
            await server.call("ApplyRound", request)
        except ConflictError:
            # It is several rounds behind (the next pull brings it along), or was replaced (the master restores it).
            return


def _nested(number: int, message: bytes) -> bytes:
    """An encoded message as a field of another one (protobuf's wire type 2)."""
    prefix, length = bytearray([number << 3 | 2]), len(message)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + message


def _async_result(answers: Sequence[ps_pb2.PushGradientsResponse]) -> PushResult:
    """What became of a push in asynchronous mode: it counts if any PS took its part."""
    latest = max(answer.version for answer in answers)
    accepted = any(answer.accepted for answer in answers)
    refused = next((answer for answer in answers if not answer.accepted), None)
    return PushResult(accepted, latest, "" if accepted or refused is None else refused.reason)


async def _together(calls: Sequence[Awaitable[T]]) -> Sequence[T]:
    """Awaits all, and lets none run on when one fails."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
