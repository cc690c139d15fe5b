"""The parameter servers of a job as one: what every mode of training needs of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.rpc.framing import Frame
from elasticdl_worker.parameters.codec import (
    ALL_DENSE,
    OutgoingPull,
    OutgoingPush,
    PushReply,
    model_frame,
    push_frame,
    read_push_reply,
)
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.pulls import Puller, PullMoment
from elasticdl_worker.parameters.pushes import PushBuilder, PushStamp
from elasticdl_worker.parameters.splits import Split, distinct
from elasticdl_worker.parameters.types import Gradients, PulledParameters, Rates
from elasticdl_worker.parameters.waiting import together

_REMEMBERED_PULLS = 256
Ids = Mapping[str, NDArray[np.int64]]
"""By table, the ids wanted, int64 ``[n]``."""


@dataclass(frozen=True, slots=True)
class _SeenServer:
    """The state of each PS when parameters were pulled."""

    versions: tuple[int, ...]
    generations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Ids that are wanted, cut over the PS.

    Attributes:
        splits: by table.
        parts: for each PS, by table, its ids.
    """

    splits: Mapping[str, Split]
    parts: Sequence[Ids]


class ServerGroup:
    """All PS of a job, with what this worker has seen of them and sent to them.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the present job token.
        worker: the worker's incarnation as its token says it.
        wire_dtype: of rows and their gradients on the wire.
        patience_s: for how long an unreachable PS is tried again.
        message_bytes: what is larger travels in several messages, or pieces of one.
        credentials: what to show under TLS; those of this process by default.

    Attributes:
        servers: the connections.
        placement: what of the model lies where.
        patience_s: as given.
        message_bytes: as given.
        pushing: held while a push is under way: they are sent one after the other.
        sequence: number of the last push.
        answered: number of the last push that was answered by all PS.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: Callable[[], str],
        worker: str,
        wire_dtype: str,
        patience_s: float,
        message_bytes: int,
        credentials: RpcCredentials | None = None,
    ) -> None:
        self.patience_s = patience_s
        self.message_bytes = message_bytes
        self.pushing = asyncio.Lock()
        self.sequence = 0
        self.answered = 0
        self._token = token
        self._credentials = credentials
        self.servers = [self._connect(index, address) for index, address in enumerate(addresses)]
        self._worker = worker
        self._wire_dtype = wire_dtype
        self._puller = Puller(wire_dtype, patience_s, message_bytes, self._declare_again)
        self._declared = OptimizerSpec("sgd"), UpdateMode()
        self._seen: OrderedDict[int, _SeenServer] = OrderedDict()
        self._dense: dict[str, NDArray[np.generic]] = {}
        self.place((), ())

    @property
    def generations(self) -> list[str]:
        """The generation of each PS, as last seen."""
        return [server.generation for server in self.servers]

    def place(self, specs: Sequence[DenseSpec], tables: Sequence[TableSpec]) -> None:
        """Places a model on the present PS."""
        self.placement = ModelPlacement(specs, tables, len(self.servers))
        self._builder = PushBuilder(self.placement, self._worker, self._wire_dtype)
        for server in self.servers:
            server.dense_bytes = self.placement.dense_bytes(server.index)

    def note_rules(self, optimizer: OptimizerSpec, mode: UpdateMode) -> None:
        """Notes what becomes of gradients, to declare the model that was placed with."""
        self._declared = optimizer, mode

    def model_frame(self, index: int, values: Mapping[str, NDArray[Any]] | None) -> Frame:
        """The model as it is declared to one PS; without values, for one that has them."""
        place = self.placement
        names = [spec.name for spec in place.specs]
        return model_frame(place.model_slices(index, values), names, place.tables, *self._declared)

    async def _declare_again(self, server: ServerConnection) -> bool:
        """Declares the model to a PS that was restored from another job's checkpoint; whether it has taken it."""
        try:
            await server.push_model(self.model_frame(server.index, None))
        except ConflictError:
            if await server.is_initialised():
                raise
            return False  # it was replaced meanwhile, and the master restores it
        return True

    def forget(self) -> None:
        """Forgets what was pulled: the next pull reads all dense parameters."""
        self._dense, self._seen = {}, OrderedDict()
        for server in self.servers:
            server.generation, server.dense_version = "", ALL_DENSE

    async def move(self, addresses: Sequence[str]) -> None:
        """Takes the addresses of PS that were replaced; another number of them places the model anew."""
        present, wanted = len(self.servers), len(addresses)
        for server, address in zip(self.servers, addresses, strict=False):
            await server.move(address)
        for server in self.servers[wanted:]:
            await server.close()
        added = [self._connect(index, addresses[index]) for index in range(present, wanted)]
        self.servers = self.servers[:wanted] + added
        if wanted != present:
            self.place(self.placement.specs, self.placement.tables)
            self._seen.clear()

    def _connect(self, index: int, address: str) -> ServerConnection:
        return ServerConnection(index, address, self._token, self.patience_s, self._credentials)

    async def close(self) -> None:
        """Closes the channels."""
        await asyncio.gather(*(server.close() for server in self.servers))

    def cut(self, ids: Ids) -> WantedRows:
        """Cuts ids over the PS.

        Raises:
            InvalidInputError: a table was not declared.
        """
        splits = self.placement.split(ids)
        parts = [{table: split.parts[index] for table, split in splits.items()} for index in range(len(self.servers))]
        return WantedRows(splits, parts)

    async def pull_all(self, ids: Ids, *, dense: bool, pin: int = 0) -> PulledParameters:
        """Pulls from all PS side by side, each at whatever version it is."""
        wanted = self.cut(ids)
        pull = self.puller_of(wanted, dense=dense)
        parts = await together([pull(server.index, PullMoment(pin)) for server in self.servers])
        return self.assemble(parts, wanted, dense=dense, pin=pin)

    def puller_of(self, wanted: WantedRows, *, dense: bool) -> Callable[[int, PullMoment], Awaitable[PartialPull]]:
        """The function that pulls from one PS its part of what is wanted."""
        servers, placement = self.servers, self.placement
        return lambda index, moment: self._puller.pull(
            servers[index], placement, wanted.parts[index], dense=dense, moment=moment
        )

    def pull_along(self, wanted: WantedRows, index: int, moment: PullMoment, *, dense: bool) -> OutgoingPull:
        """The pull that goes along with a push to one PS; tables with the same ids share one buffer of them."""
        shared, numbers = distinct(wanted.splits)
        tables = list(zip(wanted.splits, numbers, strict=True))
        ids = [split.parts[index] for split in shared]
        return self._puller.prepare(self.servers[index], moment, ids, tables, dense=dense)

    def assemble(
        self, parts: Sequence[PartialPull], wanted: WantedRows, *, dense: bool, pin: int = 0
    ) -> PulledParameters:
        """Assembles the answers of all PS to a pull; the present is noted, a pin is not."""
        if not pin:
            self._remember(parts, dense)
        arrays = self.placement.assemble(parts, {} if pin else self._dense) if dense else {}
        return PulledParameters(
            max(part.version for part in parts), arrays, self.placement.merge_rows(wanted.splits, parts)
        )

    def build_pushes(self, gradients: Gradients, version: int, rates: Rates) -> list[OutgoingPush]:
        """The next push, for each PS."""
        self.sequence += 1
        count, seen = len(self.servers), self._seen.get(version)
        versions = seen.versions if seen else (version,) * count
        generations = seen.generations if seen else self.generations
        return self._builder.build(gradients, PushStamp(self.sequence, versions, generations, rates))

    async def push_to(self, server: ServerConnection, push: OutgoingPush) -> PushReply:
        """Sends a push to one PS."""
        frame = push_frame(push)
        if frame.nbytes > self.message_bytes:
            return read_push_reply(await server.push_pieces("PushGradientsInPieces", frame.encode()))
        return read_push_reply(await server.call("PushGradients", frame))

    def fits_one_message(self, gradients: Gradients, ids: Ids, *, dense: bool) -> bool:
        """Whether a push and the pull after it may travel in one message to each PS."""
        if (dense or gradients.dense) and any(server.streams_dense for server in self.servers):
            return False
        pushed = sum(grads.nbytes for _, grads in gradients.rows.values())
        return pushed + self.placement.rows_bytes(ids) <= self.message_bytes

    def _remember(self, parts: Sequence[PartialPull], dense: bool) -> None:
        for server, part in zip(self.servers, parts, strict=True):
            if part.generation != server.generation and not dense:
                server.dense_version = ALL_DENSE  # the dense parameters known are those of another PS
            server.generation = part.generation
            if dense:
                server.dense_version = part.version
        latest = max(part.version for part in parts)
        self._seen[latest] = _SeenServer(
            tuple(part.version for part in parts), tuple(part.generation for part in parts)
        )
        self._seen.move_to_end(latest)
        while len(self._seen) > _REMEMBERED_PULLS:
            self._seen.popitem(last=False)
