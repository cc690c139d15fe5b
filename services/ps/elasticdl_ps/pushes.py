"""The content of a push, and its checks: from named gradients in buffers to changes that the partition can make.

What becomes of the changes is said in ``updates`` (sender, age, repeats) and, in synchronous mode, in ``rounds``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec
from elasticdl_ps.ids import IdReader
from elasticdl_ps.store.dense import DensePart
from elasticdl_ps.store.merging import Changes, Rows, StateUpdate
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import array_of, check_wire_dtype, from_bfloat16

_ROW_BYTES = 256
"""What it costs to find a row, in bytes that could be copied meanwhile."""


@dataclass(frozen=True, slots=True)
class DenseGradient:
    """The position in a push of the gradient of a dense parameter, or of what is added to state.

    Attributes:
        name: of the parameter.
        start: first element of the slice that it is for.
        stop: the element after its last one.
        buffer: which buffer has the numbers.
        keep: how much of the old value of state is kept; None if it does not say, as for a gradient.
        pulled: which buffer has what the gradient was computed on; None if none has.
    """

    name: str
    start: int
    stop: int
    buffer: int
    keep: float | None = None
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class RowGradients:
    """The position in a push of the gradients of a table.

    Attributes:
        table: its name.
        ids: which buffer has the ids.
        values: which buffer has the gradients.
        dtype: of the gradients on the wire; empty for float32.
        pulled: which buffer has the rows that they were computed on; None if none has.
    """

    table: str
    ids: int
    values: int
    dtype: str = ""
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A push as it was sent.

    Attributes:
        worker: the sender's incarnation, e.g. ``worker-3.1``.
        sequence: grows by one with each push of a worker.
        version: of the parameters that the gradients were computed on.
        generation: of the PS that was pulled from; empty if none was.
        learning_rates: of each of the optimizer's groups; none for its own.
        records: how many records the gradients are of.
        steps: of how many minibatches they are the sum.
        task: epoch and index of the training task whose records they are; None if of none.
        dense: dense parameters.
        rows: tables.
        buffers: what the others refer to.
        weight: of the gradients in a round; infinite where they add up; None for the records.
    """

    worker: str
    sequence: int
    version: int
    generation: str = ""
    learning_rates: tuple[float, ...] = ()
    records: int = 0
    steps: int = 1
    task: tuple[int, int] | None = None
    dense: Sequence[DenseGradient] = ()
    rows: Sequence[RowGradients] = ()
    buffers: Sequence[memoryview] = field(default=(), repr=False)
    weight: float | None = None

    def estimate_cost(self) -> int:
        """About how many bytes are touched; a row that has to be found counts as some."""
        count = len(self.buffers)
        ids = sum(len(self.buffers[entry.ids]) for entry in self.rows if 0 <= entry.ids < count) // 8
        return sum(map(len, self.buffers)) + ids * _ROW_BYTES


def check_learning_rates(rates: Sequence[float]) -> None:
    """Refuses learning rates that cannot be meant.

    Raises:
        InvalidInputError: one is negative, infinite or not a number.
    """
    rate = next((rate for rate in rates if not 0.0 <= rate < float("inf")), None)
    if rate is not None:
        raise InvalidInputError(f"the learning rate {rate} cannot be meant", fix="send a number >= 0")


def read_changes(partition: Partition, push: PushRequest) -> Changes:
    """The changes of a push, checked.

    Args:
        partition: what the changes are for; it has a model.
        push: the push.

    Raises:
        InvalidInputError: a name is unknown or comes twice, a slice is not the one that is here, an id comes twice or
            cannot be, a size disagrees, or a number is not finite.
    """
    if push.records < 1 and not partition.mode.use_async:
        raise InvalidInputError(
            f"a gradient of {push.records} records cannot count in a round", fix="say how many records it is of"
        )
    if push.weight is not None and not push.weight >= 0.0:
        raise InvalidInputError(f"a gradient cannot weigh {push.weight}", fix="send a number >= 0, or none")
    reader = _Reader(partition, push.buffers)
    for gradient in push.dense:
        reader.read_dense(gradient)
    for gradients in push.rows:
        reader.read_rows(gradients)
    return Changes(
        reader.dense,
        reader.rows,
        reader.state,
        push.records,
        reader.pulled_dense,
        reader.pulled_rows,
        push.task,
        max(1, push.steps),
        push.weight,
    )


class _Reader:
    """Reads the parts of one push and gathers the changes."""

    def __init__(self, partition: Partition, buffers: Sequence[memoryview]) -> None:
        self.dense: dict[str, NDArray[np.generic]] = {}
        self.state: dict[str, StateUpdate] = {}
        self.rows: dict[str, Rows] = {}
        self.pulled_dense: dict[str, NDArray[np.generic]] = {}
        self.pulled_rows: dict[str, NDArray[np.float32]] = {}
        self._partition = partition
        self._buffers = buffers
        self._ids = IdReader(buffers)
        self._compensates = bool(partition.mode.delay_compensation)

    def read_dense(self, gradient: DenseGradient) -> None:
        """Reads the gradient of a dense parameter, or a change of state."""
        name, what = gradient.name, f"the gradient of {gradient.name!r}"
        if name in self.dense or name in self.state:
            raise InvalidInputError(f"{what} comes twice", fix="send it once")
        part = _part_of(self._partition, gradient, what)
        if part.spec.kind is DenseKind.STATE:
            keep = _checked_keep(gradient.keep, part.spec)
            # What is taken as it is may be infinite, as a smallest value is before the first one.
            taken = keep == 0 or math.isinf(keep)
            numbers = self._numbers(gradient.buffer, part.spec.dtype, part.size, what, infinite=taken)
            self.state[name] = StateUpdate(keep, numbers)
            return
        self.dense[name] = self._numbers(gradient.buffer, "float32", part.size, what)
        if self._compensates:
            self.pulled_dense[name] = self._numbers(_stated(gradient.pulled, what), "float32", part.size, what)

    def read_rows(self, gradients: RowGradients) -> None:
        """Reads the gradients of a table."""
        name, what = gradients.table, f"the gradients of the table {gradients.table!r}"
        if name in self.rows:
            raise InvalidInputError(f"gradients of the table {name!r} come twice", fix="send them merged")
        dtype = check_wire_dtype(gradients.dtype)
        table = self._partition.table(name)
        ids = self._ids.read(table, gradients.ids)
        if self._ids.has_duplicates(self._partition.kernels):
            raise InvalidInputError(f"{what} name an id twice", fix="add up the gradients of equal ids first")
        self.rows[name] = ids, self._vectors(table, gradients.values, len(ids), dtype, what)
        if self._compensates:
            pulled = _stated(gradients.pulled, what)
            self.pulled_rows[name] = self._vectors(table, pulled, len(ids), dtype, what)

    def _numbers(
        self, index: int, dtype: str, size: int, what: str, *, infinite: bool = False
    ) -> NDArray[np.generic]:
        values = array_of(self._buffers, index, dtype, size, what)
        if infinite:  # and no numbers, where a worker knows that they were none before
            return values
        if dtype == "float32":
            self._require_finite(values, what)
        else:
            require_finite(values, what)
        return values

    def _vectors(self, table: EmbeddingTable, index: int, count: int, dtype: str, what: str) -> NDArray[np.float32]:
        size = count * table.dim
        found: NDArray[np.float32]
        if dtype == "bfloat16":
            found = from_bfloat16(array_of(self._buffers, index, "uint16", size, what))
        else:
            found = array_of(self._buffers, index, "float32", size, what)
        self._require_finite(found, what)
        return found.reshape(count, table.dim)

    def _require_finite(self, values: NDArray[np.float32], what: str) -> None:
        if not self._partition.kernels.all_finite(values.view(np.uint32)):
            raise _not_finite(what)


def require_finite(values: NDArray[np.generic], what: str) -> None:
    """Refuses floating-point numbers among which one is infinite or not a number.

    Raises:
        InvalidInputError: one is.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _not_finite(what)


def _part_of(partition: Partition, gradient: DenseGradient, what: str) -> DensePart:
    part = partition.dense.part(gradient.name)
    if part is None or (part.start, part.stop) != (gradient.start, gradient.stop):
        held = "nothing" if part is None else f"[{part.start}, {part.stop})"
        raise InvalidInputError(
            f"{what} is for [{gradient.start}, {gradient.stop}), of which this PS holds {held}",
            fix="place parameters as place_dense does",
        )
    return part


def _checked_keep(keep: float | None, spec: DenseSpec) -> float:
    """The fraction of the old value that a change of state keeps.

    Raises:
        InvalidInputError: it does not say, or the state's dtype cannot be changed so.
    """
    kind = np.dtype(spec.dtype).kind
    selects = keep is not None and math.isinf(keep)
    allowed = selects or (keep is not None and 0 <= keep <= 1)
    if kind != "f":
        allowed = allowed and (selects or keep == 0 or (keep == 1 and kind != "b"))
    if keep is None or not allowed:
        said = "nothing" if keep is None else keep
        raise InvalidInputError(
            f"a change of {spec.name!r} ({spec.dtype}) says {said} about what is kept of the old value",
            fix="send keep: 0 to 1 for floating-point numbers, 0 or 1 for integers, 0 for booleans; infinite for the "
            "larger, minus infinite for the smaller value",
        )
    return keep


def _stated(pulled: int | None, what: str) -> int:
    if pulled is None:
        raise InvalidInputError(
            f"{what} come without what they were computed on",
            fix="with delay_compensation, send the pulled parameters along",
        )
    return pulled


def _not_finite(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} has NaN or infinite numbers", fix="lower the learning rate, clip gradients, or check the input data"
    )
