"""What lies on which PS: cutting up what is sent, and putting together what comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, TableSpec
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.convert.parameters import array_of, dense_to_message, from_bfloat16, to_bfloat16
from elasticdl_runtime.partition import DenseSlice, place_dense, ps_of_ids
from elasticdl_worker.parameters.connection import read_header
from elasticdl_worker.parameters.types import Gradients

_REMEMBERED_SPLITS = 4
_REMEMBERED_HEADERS = 64


@dataclass(frozen=True, slots=True)
class Split:
    """Ids cut over the PS.

    Attributes:
        ids: the ids, int64 ``[n]``.
        chosen: for each PS the positions of its ids; None means all of them.
        parts: for each PS its ids.
    """

    ids: NDArray[np.int64]
    chosen: list[NDArray[np.intp] | None]
    parts: list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A buffer of a push: a whole array, or the chosen rows of one, which are copied straight into the frame."""

    values: NDArray[Any]
    chosen: NDArray[np.intp] | None = None
    as_bfloat16: bool = False

    @property
    def nbytes(self) -> int:
        """Length of the buffer."""
        rows = len(self.values) if self.chosen is None else len(self.chosen)
        size = rows * self.values[0].size * self.values.itemsize if rows else 0
        return size // 2 if self.as_bfloat16 else size

    def write(self, place: NDArray[np.uint8]) -> None:
        """Fills the buffer."""
        if not len(place):
            return
        if self.chosen is None and not self.as_bfloat16:
            place[:] = self.values.reshape(-1).view(np.uint8)
        elif self.as_bfloat16 or self.chosen is None:
            rows = self.values if self.chosen is None else self.values[self.chosen]
            to_bfloat16(rows, place.view(np.uint16).reshape(rows.shape))
        else:
            out = place.view(self.values.dtype).reshape(len(place) // self.values[0].nbytes, -1)
            # Positions are right by construction; any other mode copies once more.
            np.take(self.values, self.chosen, axis=0, out=out, mode="clip")


Changes = tuple[bytes, list[Piece]]
"""The encoded ``dense`` and ``rows`` of a push, and its buffers."""


@dataclass(slots=True)
class PartialPull:
    """What one PS has answered to a pull.

    Attributes:
        version: its version; of several frames the first's, because that is what has surely arrived.
        generation: its generation.
        initialised: whether it has a model.
        dense: received runs of dense parameters: name, first element, values.
        rows: by table, float32 ``[n, dim]``.
        torn: whether frames are of different versions where they must not be (synchronous mode).
    """

    torn: bool = False
    version: int = -1
    generation: str = ""
    initialised: bool = False
    dense: list[tuple[str, int, NDArray[Any]]] = field(default_factory=list)
    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    _earlier: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)

    def take(self, frame: bytes, asked: Mapping[str, NDArray[np.int64]]) -> int:
        """Adds a frame of the answer, which has rows for the ids ``asked``; returns its version."""
        response = ps_pb2.PullResponse()
        buffers = read_header(frame, response)
        return self.add(response, buffers, asked)

    def add(
        self, response: ps_pb2.PullResponse, buffers: list[memoryview], asked: Mapping[str, NDArray[np.int64]]
    ) -> int:
        """Adds a decoded answer; returns its version."""
        if self.version < 0:
            self.version = response.version
        self.generation, self.initialised = response.generation, response.initialized
        for part in response.dense:
            values = array_of(buffers, part.buffer, part.dtype, part.stop - part.start, part.name)
            self.dense.append((part.name, part.start, values))
        for entry in response.rows:
            count = len(asked[entry.table])
            if entry.dtype == "bfloat16":
                rows = from_bfloat16(np.frombuffer(buffers[entry.values], np.uint16))
            else:
                rows = np.frombuffer(buffers[entry.values], np.float32)
            if entry.table in self.rows:
                self._earlier.setdefault(entry.table, []).append(self.rows[entry.table])
            self.rows[entry.table] = rows.reshape(count, -1) if count else rows.reshape(0, 0)
        version: int = response.version
        return version

    def join(self) -> None:
        """Puts rows that came in several frames together."""
        for table, earlier in self._earlier.items():
            self.rows[table] = np.concatenate([*earlier, self.rows[table]])
        self._earlier.clear()


class Layout:
    """The placement of a model on a number of PS.

    Args:
        specs: the dense parameters.
        tables: the embedding tables.
        num_ps: how many PS.
    """

    def __init__(self, specs: Sequence[DenseSpec], tables: Sequence[TableSpec], num_ps: int) -> None:
        self.specs = tuple(specs)
        self.tables = tuple(tables)
        self._num_ps = num_ps
        self._spec = {spec.name: spec for spec in specs}
        self._dims = {table.name: table.dim for table in tables}
        self._slices: dict[str, list[DenseSlice]] = {spec.name: [] for spec in specs}
        for place in place_dense(self.specs, num_ps):
            self._slices[place.name].append(place)
        self._splits: deque[Split] = deque(maxlen=_REMEMBERED_SPLITS)
        self._headers: dict[tuple[Any, ...], list[bytes]] = {}

    def dim(self, table: str) -> int:
        """Length of a table's vectors.

        Raises:
            InvalidInputError: the table was not declared.
        """
        if table not in self._dims:
            raise InvalidInputError(
                f"the model has no embedding table {table!r}", fix=f"declare it; there are {sorted(self._dims)}"
            )
        return self._dims[table]

    def dense_bytes(self, index: int) -> int:
        """Size of the dense parameters on one PS."""
        return sum(
            (place.stop - place.start) * np.dtype(self._spec[place.name].dtype).itemsize
            for places in self._slices.values()
            for place in places
            if place.ps == index
        )

    def model(
        self, index: int, values: Mapping[str, NDArray[Any]] | None
    ) -> tuple[list[ps_pb2.Dense], list[NDArray[Any]]]:
        """One PS's slices of a model with their values, or declared only.

        Raises:
            InvalidInputError: a value is missing or of another size.
        """
        messages: list[ps_pb2.Dense] = []
        buffers: list[NDArray[Any]] = []
        for name, places in self._slices.items():
            for place in (place for place in places if place.ps == index):
                buffer = -1
                if values is not None:
                    buffer = len(buffers)
                    buffers.append(self._flat(name, values)[place.start : place.stop])
                messages.append(dense_to_message(self._spec[name], place.start, place.stop, buffer))
        return messages, buffers

    def split(self, table: str, ids: NDArray[np.int64]) -> Split:
        """Cuts a table's ids over the PS; for ids that were cut lately, as those of another table, it is known."""
        self.dim(table)
        wanted = np.ascontiguousarray(ids, np.int64)
        if self._num_ps == 1:
            return Split(wanted, [None], [wanted])
        for split in self._splits:
            if split.ids is wanted or np.array_equal(split.ids, wanted):
                return split
        owner = ps_of_ids(wanted, self._num_ps)
        chosen: list[NDArray[np.intp] | None] = [np.flatnonzero(owner == index) for index in range(self._num_ps)]
        # A copy: the caller's array may be another one tomorrow.
        split = Split(wanted.copy(), chosen, [wanted[part] for part in chosen])
        self._splits.appendleft(split)
        return split

    def groups(self, asked: Mapping[str, NDArray[np.int64]], limit: int) -> list[dict[str, NDArray[np.int64]]]:
        """Cuts what one PS is asked for into requests of at most ``limit`` bytes (or one row) with their answers."""
        if sum(len(ids) * (8 + 4 * self.dim(table)) for table, ids in asked.items()) <= limit:
            return [dict(asked)]
        groups: list[dict[str, NDArray[np.int64]]] = [{}]
        room = limit
        for table, ids in asked.items():
            size = 8 + 4 * self.dim(table)
            at = 0
            while at < len(ids):
                if room < size and groups[-1]:
                    groups.append({})
                    room = limit
                stop = min(len(ids), at + max(1, room // size))
                groups[-1][table] = ids[at:stop]
                room -= (stop - at) * size
                at = stop
        return groups

    def merge_rows(self, splits: Mapping[str, Split], parts: Sequence[PartialPull]) -> dict[str, NDArray[np.float32]]:
        """Rows of all PS in the order of the ids."""
        merged: dict[str, NDArray[np.float32]] = {}
        for table, split in splits.items():
            if self._num_ps == 1 and len(split.ids):
                merged[table] = parts[0].rows[table]
                continue
            out = np.empty((len(split.ids), self.dim(table)), np.float32)
            for chosen, ids, part in zip(split.chosen, split.parts, parts, strict=True):
                if chosen is not None and len(ids):
                    out[chosen] = part.rows[table]
            merged[table] = out
        return merged

    def assemble(self, parts: Sequence[PartialPull], known: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Whole dense parameters of which something was received; ``known`` has the other parts, and is updated."""
        received: dict[str, list[tuple[int, NDArray[Any]]]] = {}
        for part in parts:
            for name, start, values in part.dense:
                received.setdefault(name, []).append((start, values))
        whole: dict[str, NDArray[Any]] = {}
        for name, runs in received.items():
            spec = self._spec.get(name)
            if spec is None:
                raise InvalidInputError(
                    f"the parameter servers hold {name!r}, which the model does not have",
                    fix="restore a checkpoint of this model",
                )
            if len(runs) == 1 and len(runs[0][1]) == spec.size:
                flat = runs[0][1]
            else:
                before = known.get(name)
                flat = np.empty(spec.size, np.dtype(spec.dtype)) if before is None else before.copy()
                for start, values in runs:
                    flat[start : start + len(values)] = values
            if len(self._slices[name]) > 1:
                known[name] = flat
            whole[name] = flat.reshape(spec.shape)
        return whole

    def changes(self, gradients: Gradients, wire_dtype: str) -> list[Changes]:
        """Each PS's part of the gradients.

        Raises:
            InvalidInputError: a name is unknown or a size disagrees.
        """
        pieces: list[list[Piece]] = [[] for _ in range(self._num_ps)]
        for name in gradients.dense:
            flat = self._flat(name, gradients.dense)
            for place in self._slices[name]:
                pieces[place.ps].append(Piece(flat[place.start : place.stop]))
        for table, (ids, values) in gradients.rows.items():
            if values.shape != (len(ids), self.dim(table)):
                raise InvalidInputError(
                    f"gradients of {table!r} have the shape {values.shape} for {len(ids)} ids",
                    fix=f"give one row of {self.dim(table)} numbers for each id",
                )
            single = np.ascontiguousarray(values, np.float32)
            split = self.split(table, ids)
            for mine, chosen, part in zip(pieces, split.chosen, split.parts, strict=True):
                mine += [Piece(part), Piece(single, chosen, wire_dtype == "bfloat16")]
        key = (wire_dtype, *gradients.dense, None, *gradients.rows)
        if key not in self._headers:
            if len(self._headers) > _REMEMBERED_HEADERS:
                self._headers.clear()
            self._headers[key] = [self._header(index, gradients, wire_dtype) for index in range(self._num_ps)]
        return list(zip(self._headers[key], pieces, strict=True))

    def _header(self, index: int, gradients: Gradients, wire_dtype: str) -> bytes:
        """The names and places of what ``changes`` sends to one PS, encoded: the same at every step."""
        request = ps_pb2.PushGradientsRequest()
        buffers = 0
        for name in gradients.dense:
            for place in self._slices[name]:
                if place.ps == index:
                    request.dense.add(name=name, start=place.start, stop=place.stop, buffer=buffers)
                    buffers += 1
        for table in gradients.rows:
            request.rows.add(table=table, ids=buffers, values=buffers + 1, dtype=wire_dtype)
            buffers += 2
        return request.SerializeToString()

    def _flat(self, name: str, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        spec = self._spec.get(name)
        if spec is None or name not in values:
            raise InvalidInputError(
                f"the dense parameter {name!r} is {'not in the model' if spec is None else 'without a value'}",
                fix="name parameters as the model's specification does",
            )
        dtype = np.dtype(spec.dtype if spec.kind is DenseKind.STATE else np.float32)
        flat = np.ascontiguousarray(values[name], dtype).reshape(-1)
        if len(flat) != spec.size:
            raise InvalidInputError(
                f"the dense parameter {name!r} has {len(flat)} numbers, not {spec.size}",
                fix="give it the shape that the model's specification says",
            )
        return flat
