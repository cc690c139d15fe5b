"""The request of a pull, and its answer read from the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from elasticdl_ps.ids import IdReader
from elasticdl_ps.rounds import Round
from elasticdl_ps.store.dense import DensePart
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import check_wire_dtype, to_bfloat16
from elasticdl_runtime.rpc.service import CHUNK_BYTES

NO_DENSE = -2
"""``dense_version`` of a caller who wants rows only."""
_ROW_BYTES = 256
"""What it costs to find a row, in bytes that could be copied meanwhile."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull as it was sent.

    Attributes:
        dense_version: dense parameters changed since then are wanted; -1 for all, ``NO_DENSE`` for none.
        pin: number of a pin; 0 for the present.
        dtype: of rows on the wire; empty for float32.
        generation: of the PS that ``dense_version`` is from; at another one all dense parameters are sent.
        wait_for: a version to wait for (synchronous mode, first PS); 0 for none.
        apply: a closed round to apply before (synchronous mode, other PS).
        tables: names of tables, and which buffer has the ids wanted of each.
        buffers: the ids.
    """

    dense_version: int = -1
    pin: int = 0
    dtype: str = ""
    generation: str = ""
    wait_for: int = 0
    apply: Round | None = None
    tables: Sequence[tuple[str, int]] = ()
    buffers: Sequence[memoryview] = field(default=(), repr=False)

    def estimate_cost(self, partition: Partition) -> int:
        """About how many bytes are touched; all dense parameters count, and a row that has to be found as some."""
        cost = partition.dense.value_bytes
        for name, index in self.tables:
            table = partition.tables.get(name)
            if table is not None and 0 <= index < len(self.buffers):
                cost += len(self.buffers[index]) // 8 * (table.dim * 4 + _ROW_BYTES)
        return cost


@dataclass(frozen=True, slots=True)
class DenseRun:
    """A run of elements of a dense parameter.

    Attributes:
        name: of the parameter.
        dtype: of its elements.
        start: the first element.
        stop: the element after the last one.
        version: at which it changed last.
        values: the elements, or their bytes.
    """

    name: str
    dtype: str
    start: int
    stop: int
    version: int
    values: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """The answer to a pull.

    Attributes:
        version: of the partition; what was read is of this version or a later one.
        generation: of the partition.
        initialised: whether there is a model; if not, nothing was read.
        undeclared: whether there is one, but of another job until somebody declares this job's; nothing was read.
        pending: whether nothing was read yet, because it is worth asking again for the version that is waited for.
        round: the round that was closed last (synchronous mode, first PS).
        dense: what was read of dense parameters.
        rows: names of tables with their rows, float32 or (bfloat16) uint16 ``[n, dim]``.
        dtype: of rows.
    """

    version: int
    generation: str
    initialised: bool
    pending: bool = False
    undeclared: bool = False
    round: Round | None = None
    dense: Sequence[DenseRun] = ()
    rows: Sequence[tuple[str, NDArray[np.generic]]] = ()
    dtype: str = "float32"


def describe_state(partition: Partition, pin: int = 0, *, pending: bool = False) -> PullAnswer:
    """The answer to a pull that reads nothing.

    Raises:
        NotFoundError: there is no such pin.
    """
    # The version comes before everything else that is read.
    version = partition.pinned(pin).version if pin else partition.version
    # A pin has what was there, whoever trains on it next.
    undeclared = partition.initialised and not (pin or partition.declared)
    return PullAnswer(version, partition.generation, partition.initialised and not undeclared, pending, undeclared)


def read_parameters(partition: Partition, pull: PullRequest) -> PullAnswer:
    """Reads what a pull asks for.

    Raises:
        InvalidInputError: a table or an id is unknown, or rows cannot be sent as the request says.
        NotFoundError: there is no such pin.
    """
    dtype = check_wire_dtype(pull.dtype)
    answer = describe_state(partition, pull.pin)
    if not answer.initialised:
        return answer
    ids = IdReader(pull.buffers)
    find = partition.pinned(pull.pin).table if pull.pin else partition.table
    wanted = [(find(name), index) for name, index in pull.tables]
    checked = [(table, ids.read(table, index)) for table, index in wanted]
    dense = _read_dense(partition, pull)
    rows = [(table.spec.name, _read_rows(table, some, pull.pin, dtype)) for table, some in checked]
    return replace(answer, dense=dense, rows=rows, dtype=dtype)


def dense_pieces(partition: Partition, pull: PullRequest) -> list[Callable[[], PullAnswer]]:
    """Readers of the answers to a dense pull, each of at most ``CHUNK_BYTES`` of values.

    Raises:
        NotFoundError: there is no such pin.
    """
    base = describe_state(partition, pull.pin)
    makers: list[Callable[[], PullAnswer]] = []
    if pull.pin:
        runs = _pinned_runs(partition, pull.pin)
    elif base.initialised:
        runs = [_run_of(part, part.values) for part in _changed(partition, pull)]
    else:
        runs = []
    for run in runs:
        step = max(1, CHUNK_BYTES // run.values.itemsize)
        for at in range(0, max(1, len(run.values)), step):
            makers.append(_PieceReader(partition, base, run, at, step))
    return makers or [lambda: base]


@dataclass(frozen=True, slots=True)
class _PieceReader:
    """Copies one piece of a run when it is its turn."""

    partition: Partition
    base: PullAnswer
    run: DenseRun
    at: int
    step: int

    def __call__(self) -> PullAnswer:
        piece = self.run.values[self.at : self.at + self.step].view(np.uint8)
        start = self.run.start + self.at
        copied = np.empty_like(piece)
        self.partition.dense.copy([piece], [copied])
        stop = min(self.run.stop, start + self.step)
        return replace(self.base, dense=[replace(self.run, start=start, stop=stop, values=copied)])


def _read_dense(partition: Partition, pull: PullRequest) -> list[DenseRun]:
    if pull.pin and pull.dense_version != NO_DENSE:
        return _pinned_runs(partition, pull.pin)
    parts = _changed(partition, pull)
    copies = [np.empty(part.as_bytes.nbytes, np.uint8) for part in parts]
    runs = [_run_of(part, copy) for part, copy in zip(parts, copies, strict=True)]
    partition.dense.copy([part.as_bytes for part in parts], copies)
    return runs


def _pinned_runs(partition: Partition, pin: int) -> list[DenseRun]:
    dense = partition.pinned(pin).dense
    return [DenseRun(v.spec.name, v.spec.dtype, v.start, v.stop, v.version, v.values) for v in dense]


def _run_of(part: DensePart, values: NDArray[np.generic]) -> DenseRun:
    return DenseRun(part.spec.name, part.spec.dtype, part.start, part.stop, part.version, values)


def _changed(partition: Partition, pull: PullRequest) -> tuple[DensePart, ...]:
    """The dense parameters that a pull of the present is to get."""
    if pull.dense_version == NO_DENSE:
        return ()
    known = pull.generation in ("", partition.generation)
    return partition.dense.changed(pull.dense_version if known else -1)


def _read_rows(table: EmbeddingTable, ids: NDArray[np.int64], pin: int, dtype: str) -> NDArray[np.generic]:
    out = np.empty((len(ids), table.dim), np.float32)
    if pin:
        table.read_pinned(pin, ids, out)
    else:
        table.read(ids, out)
    return to_bfloat16(out) if dtype == "bfloat16" else out
