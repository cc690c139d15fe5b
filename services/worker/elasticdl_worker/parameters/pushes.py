"""Pushes: a minibatch's gradients cut into one message for each parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.convert.parameters import to_bfloat16
from elasticdl_worker.parameters.codec import DensePush, OutgoingPush, RowsPush
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.splits import Split, distinct
from elasticdl_worker.parameters.types import Gradients

_BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class PushStamp:
    """The facts of one push beside its gradients.

    Attributes:
        sequence: its number.
        versions: for each PS the version that the gradients were computed on.
        generations: for each PS the generation that was pulled from.
        learning_rates: of each of the optimizer's groups; none for its own.
    """

    sequence: int
    versions: Sequence[int]
    generations: Sequence[str]
    learning_rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Dense:
    """A dense gradient or change of state, flat, with what it was computed on if that goes along."""

    name: str
    values: NDArray[np.generic]
    keep: float | None = None
    pulled: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The gradients of one table, with what they were computed on if that goes along."""

    table: str
    split: Split
    values: NDArray[np.float32]
    pulled: NDArray[np.float32] | None = None


class PushBuilder:
    """Cuts gradients into pushes. Tables with the same ids share one buffer of them.

    Args:
        placement: where everything lies.
        worker: the worker's incarnation.
        wire_dtype: of the rows' gradients.
    """

    def __init__(self, placement: ModelPlacement, worker: str, wire_dtype: str) -> None:
        self._placement = placement
        self._worker = worker
        self._wire_dtype = wire_dtype

    def build(self, gradients: Gradients, stamp: PushStamp) -> list[OutgoingPush]:
        """A push for each PS.

        Raises:
            InvalidInputError: a name is unknown or a size disagrees.
        """
        dense, rows = self._flatten_dense(gradients), self._check_rows(gradients)
        shared, numbers = distinct({part.table: part.split for part in rows})
        return [
            self._push_to(index, gradients, stamp, dense, [*zip(rows, numbers, strict=True)], shared)
            for index in range(self._placement.num_ps)
        ]

    def _flatten_dense(self, gradients: Gradients) -> list[_Dense]:
        flatten, origin = self._placement.flatten, gradients.origin
        dense = []
        for name, value in gradients.dense.items():
            pulled = None if origin is None else flatten(name, origin.dense.get(name))
            dense.append(_Dense(name, flatten(name, value), pulled=pulled))
        changes = gradients.state.items()
        return dense + [_Dense(name, flatten(name, change.add), change.keep) for name, change in changes]

    def _check_rows(self, gradients: Gradients) -> list[_Rows]:
        splits = self._placement.split({table: ids for table, (ids, _) in gradients.rows.items()})
        origin = None if gradients.origin is None else gradients.origin.rows
        return [
            _Rows(
                table,
                splits[table],
                self._check_shape(table, len(ids), values),
                None if origin is None else self._check_shape(table, len(ids), origin[table]),
            )
            for table, (ids, values) in gradients.rows.items()
        ]

    def _check_shape(self, table: str, count: int, values: NDArray[np.float32]) -> NDArray[np.float32]:
        dim = self._placement.dim(table)
        if values.shape != (count, dim):
            raise InvalidInputError(
                f"gradients of {table!r} have the shape {values.shape} for {count} ids",
                fix=f"give one row of {dim} numbers for each id",
            )
        return np.ascontiguousarray(values, np.float32)

    def _push_to(
        self,
        index: int,
        gradients: Gradients,
        stamp: PushStamp,
        dense: Sequence[_Dense],
        rows: Sequence[tuple[_Rows, int]],
        shared: Sequence[Split],
    ) -> OutgoingPush:
        """The push to one PS; each table comes with the number of its ids among those that are shared."""
        buffers: list[NDArray[np.generic]] = [split.parts[index] for split in shared]

        def place(values: NDArray[np.generic]) -> int:
            buffers.append(values)
            return len(buffers) - 1

        slices = []
        for part in dense:
            for run in self._placement.slices_on(part.name, index):
                pulled = None if part.pulled is None else place(part.pulled[run.start : run.stop])
                values = place(part.values[run.start : run.stop])
                slices.append(DensePush(part.name, run.start, run.stop, values, part.keep, pulled))
        tables = []
        for table, number in rows:
            chosen = table.split.chosen[index]
            pulled = None if table.pulled is None else place(self._pack(table.pulled, chosen))
            tables.append(RowsPush(table.table, number, place(self._pack(table.values, chosen)), pulled))
        return OutgoingPush(
            self._worker,
            stamp.sequence,
            stamp.versions[index],
            stamp.generations[index],
            stamp.learning_rates,
            gradients.records,
            gradients.steps,
            gradients.task,
            slices,
            tables,
            self._wire_dtype,
            buffers,
            gradients.weight,
        )

    def _pack(self, values: NDArray[np.float32], chosen: NDArray[np.intp] | None) -> NDArray[np.generic]:
        """A table's rows for one PS, in the dtype of the wire."""
        # Positions are right by construction; any other mode checks them first.
        part = values if chosen is None else np.take(values, chosen, axis=0, mode="clip")
        return to_bfloat16(part) if self._wire_dtype == _BFLOAT16 else part
