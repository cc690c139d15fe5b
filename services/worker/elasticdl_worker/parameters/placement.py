"""Placement on PS: cutting up what is sent, and putting together what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, TableSpec
from elasticdl_runtime.partition import DenseSlice, place_dense
from elasticdl_worker.parameters.codec import ModelSlice
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.splits import Split, Splits


@dataclass(frozen=True, slots=True)
class PlacedDense:
    """A dense parameter and where it lies.

    Attributes:
        spec: the parameter.
        size: its number of elements.
        dtype: of its values and gradients on the wire.
        slices: which PS hold which elements, in order.
    """

    spec: DenseSpec
    size: int
    dtype: np.dtype[Any]
    slices: list[DenseSlice]


class ModelPlacement:
    """The placement of a model on a number of PS.

    Args:
        specs: the dense parameters.
        tables: the embedding tables.
        num_ps: how many PS.
    """

    def __init__(self, specs: Sequence[DenseSpec], tables: Sequence[TableSpec], num_ps: int) -> None:
        self.specs = tuple(specs)
        self.tables = tuple(tables)
        self.num_ps = num_ps
        self._dims = {table.name: table.dim for table in tables}
        self._dense = {spec.name: PlacedDense(spec, spec.size, _wire_dtype(spec), []) for spec in specs}
        for place in place_dense(self.specs, num_ps):
            self._dense[place.name].slices.append(place)
        self._splits = Splits(num_ps)

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

    def rows_bytes(self, ids: Mapping[str, NDArray[np.int64]]) -> int:
        """Size of the rows of ids, as float32."""
        return sum(4 * len(wanted) * self.dim(table) for table, wanted in ids.items())

    def dense_bytes(self, index: int) -> int:
        """Size of the dense parameters on one PS."""
        return sum(
            (place.stop - place.start) * np.dtype(dense.spec.dtype).itemsize
            for dense in self._dense.values()
            for place in dense.slices
            if place.ps == index
        )

    def model_slices(self, index: int, values: Mapping[str, NDArray[Any]] | None) -> list[ModelSlice]:
        """One PS's slices of a model with their values, or declared only.

        Raises:
            InvalidInputError: a value is missing or of another size.
        """
        slices = []
        for name, dense in self._dense.items():
            for run in self.slices_on(name, index):
                part = None if values is None else self.flatten(name, values.get(name))[run.start : run.stop]
                slices.append(ModelSlice(dense.spec, run.start, run.stop, part))
        return slices

    def split(self, ids: Mapping[str, NDArray[np.int64]]) -> dict[str, Split]:
        """Cuts the ids of tables over the PS.

        Raises:
            InvalidInputError: a table was not declared.
        """
        for table in ids:
            self.dim(table)
        return self._splits.cut_all(ids)

    def group(self, asked: Mapping[str, NDArray[np.int64]], limit: int) -> list[dict[str, NDArray[np.int64]]]:
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
            if self.num_ps == 1 and len(split.ids):
                merged[table] = parts[0].rows[table]
                continue
            dim = self._dims[table]
            out = np.empty((len(split.ids), dim), np.float32)
            for chosen, ids, part in zip(split.chosen, split.parts, parts, strict=True):
                if chosen is None or not len(ids):
                    continue
                if dim == 1:  # numpy is several times faster at single numbers than at rows of one number
                    out.reshape(-1)[chosen] = part.rows[table].reshape(-1)
                else:
                    out[chosen] = part.rows[table]
            merged[table] = out
        return merged

    def assemble(self, parts: Sequence[PartialPull], known: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Whole dense parameters of which something was received; ``known`` has the other parts, and is updated."""
        whole: dict[str, NDArray[Any]] = {}
        runs: dict[str, list[tuple[int, NDArray[Any]]]] = {}
        for part in parts:
            for name, start, values in part.dense:
                dense = self._dense.get(name)
                if dense is None:
                    raise InvalidInputError(
                        f"the parameter servers hold {name!r}, which the model does not have",
                        fix="restore a checkpoint of this model",
                    )
                if len(dense.slices) == 1 and len(values) == dense.size:
                    whole[name] = values.reshape(dense.spec.shape)
                else:
                    runs.setdefault(name, []).append((start, values))
        for name, received in runs.items():
            spec = self._dense[name].spec
            before = known.get(name)
            flat = np.empty(spec.size, np.dtype(spec.dtype)) if before is None else before.copy()
            for start, values in received:
                flat[start : start + len(values)] = values
            known[name] = flat
            whole[name] = flat.reshape(spec.shape)
        return whole

    def slices_on(self, name: str, index: int) -> list[DenseSlice]:
        """The slices of a dense parameter on one PS.

        Raises:
            InvalidInputError: the model does not have it.
        """
        return [run for run in self._placed(name).slices if run.ps == index]

    def flatten(self, name: str, value: NDArray[Any] | None) -> NDArray[Any]:
        """A value or gradient of a dense parameter as it travels: C-contiguous, one-dimensional.

        Raises:
            InvalidInputError: the model does not have the parameter, or the value is missing or of another size.
        """
        if value is None:
            raise InvalidInputError(
                f"the dense parameter {name!r} is without a value",
                fix="name parameters as the model's specification does",
            )
        dense = self._placed(name)
        flat: NDArray[Any] = np.ascontiguousarray(value, dense.dtype).reshape(-1)
        if len(flat) != dense.size:
            raise InvalidInputError(
                f"the dense parameter {name!r} has {len(flat)} numbers, not {dense.size}",
                fix="give it the shape that the model's specification says",
            )
        return flat

    def _placed(self, name: str) -> PlacedDense:
        if name not in self._dense:
            raise InvalidInputError(
                f"the dense parameter {name!r} is not in the model",
                fix="name parameters as the model's specification does",
            )
        return self._dense[name]


def _wire_dtype(spec: DenseSpec) -> np.dtype[Any]:
    return np.dtype(spec.dtype if spec.kind is DenseKind.STATE else np.float32)
