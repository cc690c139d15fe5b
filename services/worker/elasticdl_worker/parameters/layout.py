"""What lies on which PS: cutting up what is sent, and putting together what comes back."""

from __future__ import annotations

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

Changes = tuple[list[ps_pb2.Dense], list[ps_pb2.Rows], list[NDArray[Any]]]


@dataclass(slots=True)
class PartialPull:
    """What one PS has answered to a pull.

    Attributes:
        version: its version; of several frames the first's, because that is what has surely arrived.
        generation: its generation.
        initialised: whether it has a model.
        dense: received runs of dense parameters: name, first element, values.
        rows: by table, float32 ``[n, dim]``.
    """

    version: int = -1
    generation: str = ""
    initialised: bool = False
    dense: list[tuple[str, int, NDArray[Any]]] = field(default_factory=list)
    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def take(self, frame: bytes, asked: Mapping[str, NDArray[np.int64]]) -> None:
        """Adds a frame of the answer."""
        response = ps_pb2.PullResponse()
        buffers = read_header(frame, response)
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
            self.rows[entry.table] = rows.reshape(count, -1) if count else rows.reshape(0, 0)


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

    def split_ids(self, ids: Mapping[str, NDArray[np.int64]]) -> list[dict[str, NDArray[np.int64]]]:
        """The ids that each PS holds, in their order."""
        asked: list[dict[str, NDArray[np.int64]]] = [{} for _ in range(self._num_ps)]
        for table, given in ids.items():
            wanted = np.ascontiguousarray(given, np.int64)
            for index, chosen in enumerate(self._owners(table, wanted)):
                asked[index][table] = wanted if chosen is None else wanted[chosen]
        return asked

    def merge_rows(
        self,
        ids: Mapping[str, NDArray[np.int64]],
        asked: Sequence[Mapping[str, NDArray[np.int64]]],
        parts: Sequence[PartialPull],
    ) -> dict[str, NDArray[np.float32]]:
        """Rows of all PS in the order of the ids."""
        merged: dict[str, NDArray[np.float32]] = {}
        for table, wanted in ids.items():
            if self._num_ps == 1 and len(wanted):
                merged[table] = parts[0].rows[table]
                continue
            out = np.empty((len(wanted), self.dim(table)), np.float32)
            for index, chosen in enumerate(self._owners(table, wanted)):
                if len(asked[index][table]):
                    out[slice(None) if chosen is None else chosen] = parts[index].rows[table]
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
        result: list[Changes] = [([], [], []) for _ in range(self._num_ps)]
        for name in gradients.dense:
            flat = self._flat(name, gradients.dense)
            for place in self._slices[name]:
                dense, _, buffers = result[place.ps]
                dense.append(ps_pb2.Dense(name=name, start=place.start, stop=place.stop, buffer=len(buffers)))
                buffers.append(flat[place.start : place.stop])
        for table, (ids, values) in gradients.rows.items():
            if values.shape != (len(ids), self.dim(table)):
                raise InvalidInputError(
                    f"gradients of {table!r} have the shape {values.shape} for {len(ids)} ids",
                    fix=f"give one row of {self.dim(table)} numbers for each id",
                )
            for index, chosen in enumerate(self._owners(table, ids)):
                _, rows, buffers = result[index]
                rows.append(ps_pb2.Rows(table=table, ids=len(buffers), values=len(buffers) + 1, dtype=wire_dtype))
                mine = values if chosen is None else values[chosen]
                buffers.append(np.ascontiguousarray(ids if chosen is None else ids[chosen], np.int64))
                single = np.ascontiguousarray(mine, np.float32)
                buffers.append(to_bfloat16(single) if wire_dtype == "bfloat16" else single)
        return result

    def _owners(self, table: str, ids: NDArray[np.int64]) -> list[NDArray[np.int64] | None]:
        """Positions of the ids that each PS holds; None means all of them."""
        self.dim(table)
        if self._num_ps == 1:
            return [None]
        owner = ps_of_ids(ids, self._num_ps)
        return [np.flatnonzero(owner == index) for index in range(self._num_ps)]

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
