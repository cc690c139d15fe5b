"""Saving a partition into a file, and making a partition from the files of any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError, DataError, PermissionDeniedError, UnavailableError
from elasticdl_core.model import DenseKind
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.dense import DenseStore, check_specs
from elasticdl_ps.store.partition import DenseInit, Partition, PartitionSnapshot, other_model
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_ps.store.tally import Tally
from elasticdl_runtime.checkpoint_files import (
    CheckpointFile,
    DensePiece,
    DenseSection,
    PartHeader,
    PartReader,
    PartWriter,
    RowsBlock,
    TableSection,
    dense_specs_of,
    dense_steps_of,
    open_parts,
    table_specs_of,
    table_steps_of,
)
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.partition import DenseSlice, place_dense, ps_of_ids


def save_partition(
    partition: Partition, directory: str, index: int, num_ps: int, snapshot: PartitionSnapshot | None = None
) -> tuple[int, PartHeader, CheckpointFile]:
    """Writes a partition as it is now, or as it was at a cut, while updates go on.

    Args:
        partition: the partition.
        directory: of the checkpoint; made if missing.
        index: the number of this PS.
        num_ps: how many there are.
        snapshot: the cut, which is released in the end; None cuts now.

    Returns:
        The version, the header, and the file, which is fsynced and renamed.

    Raises:
        ConflictError: there is no model, a checkpoint is being written, or the disk or the store takes no more.
    """
    snapshot = snapshot or partition.snapshot()
    failpoint("ps.after_snapshot")
    try:
        header = _header(snapshot, index, num_ps)
        with PartWriter(directory, f"ps-{index:05d}-of-{num_ps:05d}.ckpt", header) as writer:
            for section, value in enumerate(snapshot.dense):
                writer.write_dense(section, value.values)
            for number, table in enumerate(snapshot.tables):
                for ids, records in table.pinned_blocks(snapshot.pin):
                    writer.write_rows(number, ids, records)
            return snapshot.version, header, writer.finish()
    except OSError as error:
        raise ConflictError(
            f"cannot write the checkpoint in {directory}: {error.strerror or error}",
            fix="free space there, or choose another --checkpoint_dir",
        ) from None
    except (UnavailableError, PermissionDeniedError, DataError) as error:  # of a store, which this PS has asked again
        raise ConflictError(error.message, fix=error.fix) from None
    finally:
        partition.release(snapshot)


def load_partition(
    kernels: KernelSet, directory: str, files: Sequence[CheckpointFile], index: int, num_ps: int
) -> Partition:
    """Makes the partition of one PS from a checkpoint, whatever the number of PS that wrote it.

    Args:
        kernels: the kernels.
        directory: of the checkpoint.
        files: all of its files.
        index: the number of this PS.
        num_ps: how many there are now.

    Raises:
        DataError: a file is missing, truncated or altered; the message names it.
    """
    readers = open_parts(directory, files)
    try:
        return _Loader(kernels, readers, index, num_ps).load()
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def lay_out(
    partition: Partition,
    directory: str,
    files: Sequence[CheckpointFile],
    slices: Sequence[DenseInit],
    names: Sequence[str],
) -> None:
    """Gives a restored partition the slices that a worker declares, if the checkpoint's model has others.

    They are where a job that begins with another job's checkpoint has norm constraints that the other one had not, or
    lacks some: what has a norm is not cut, and what else lies where follows from that.

    Args:
        partition: restored from the checkpoint; nobody has read or changed anything since.
        directory: of the checkpoint.
        files: all of its files.
        slices: what this PS is to hold.
        names: of all dense parameters of the model.

    Raises:
        DataError: a file is missing, truncated or altered; the message names it.
        ConflictError: the checkpoint is of another model.
        InvalidInputError: a slice cannot be held.
    """
    if {(one.spec.name, one.start, one.stop) for one in slices} == partition.dense.slices:
        return
    check_specs((one.spec, one.start, one.stop) for one in slices)
    readers = open_parts(directory, files)
    try:
        there = {spec.name: spec.shape for spec in dense_specs_of([reader.header for reader in readers])}
        wanted = {one.spec.name: one.spec.shape for one in slices}
        for name in sorted(there.keys() - set(names)):
            raise other_model(f"dense parameter {name!r}", None, there[name])
        for name in sorted(wanted):
            if there.get(name) != wanted[name]:
                raise other_model(f"dense parameter {name!r}", wanted[name], there.get(name))
        # Numbers of PS say which rows are whose, and these stay.
        places = [DenseSlice(one.spec.name, one.start, one.stop, 0) for one in slices]
        partition.dense = _Loader(partition.kernels, readers, 0, partition.num_ps, places).load_dense()
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


class _Loader:
    def __init__(
        self,
        kernels: KernelSet,
        readers: Sequence[PartReader],
        index: int,
        num_ps: int,
        places: Sequence[DenseSlice] | None = None,
    ) -> None:
        self._readers = readers
        self._headers = [reader.header for reader in readers]
        self._index = index
        self._num_ps = num_ps
        first = self._headers[0]
        self._slots = len(first.slots)
        self._partition = Partition(kernels)
        self._partition.optimizer = Optimizer(first.optimizer)
        self._partition.mode = first.mode
        self._partition.declared = all(header.declared for header in self._headers)
        mine = self._headers[index] if len(self._headers) == num_ps else first
        self._partition.tally = Tally.from_text(mine.tally)
        self._partition.version = max(header.version for header in self._headers)
        self._steps, self._table_steps = dense_steps_of(self._headers), table_steps_of(self._headers)
        self._partition.iterations = max([*self._steps.values(), *self._table_steps.values()], default=0)
        specs = dense_specs_of(self._headers)
        self._specs = {spec.name: spec for spec in specs}
        if places is None:
            places = [place for place in place_dense(specs, num_ps) if place.ps == index]
        self._places = {place.name: place for place in places}
        self._records = {name: self._empty_record(place) for name, place in self._places.items()}

    def load(self) -> Partition:
        partition = self._partition
        optimizer = partition.optimizer
        partition.tables = {
            spec.name: EmbeddingTable(spec, optimizer, partition.kernels) for spec in table_specs_of(self._headers)
        }
        for name, table in partition.tables.items():
            table.steps = self._table_steps[name]
        for reader in self._readers:
            for block in reader.blocks():
                if isinstance(block, RowsBlock):
                    mine = ps_of_ids(block.ids, self._num_ps) == self._index
                    table = partition.tables[block.section.spec.name]
                    table.load(block.ids[mine], np.ascontiguousarray(block.records[mine]))
                elif block.section.spec.name in self._places:
                    self._take(block)
        partition.dense = self._dense()
        return partition

    def load_dense(self) -> DenseStore:
        """The dense parameters alone."""
        for reader in self._readers:
            for block in reader.blocks():
                if isinstance(block, DensePiece) and block.section.spec.name in self._places:
                    self._take(block)
        return self._dense()

    def _dense(self) -> DenseStore:
        dense = DenseStore(self._partition.optimizer, self._partition.kernels)
        for name, place in self._places.items():
            values, steps = self._records[name], self._steps.get(name, 0)
            dense.add(self._specs[name], place.start, place.stop, values, self._partition.version, steps)
        return dense

    def _empty_record(self, place: DenseSlice) -> NDArray[Any]:
        spec = self._specs[place.name]
        parts = 1 if spec.kind is DenseKind.STATE else 1 + self._slots
        return np.zeros(parts * (place.stop - place.start), np.dtype(spec.dtype))

    def _take(self, piece: DensePiece) -> None:
        """Copies what belongs here: a piece may span values and slots of a slice, each placed by its element."""
        section = piece.section
        size = section.stop - section.start
        place, record = self._places[section.spec.name], self._records[section.spec.name]
        mine = place.stop - place.start
        at = piece.start
        while size and at < piece.start + len(piece.values):
            part, offset = divmod(at, size)
            run = min(size - offset, piece.start + len(piece.values) - at)
            low = max(section.start + offset, place.start)
            high = min(section.start + offset + run, place.stop)
            if low < high:
                source = at - piece.start + low - (section.start + offset)
                target = part * mine + low - place.start
                record[target : target + high - low] = piece.values[source : source + high - low]
            at += run


def _header(snapshot: PartitionSnapshot, index: int, num_ps: int) -> PartHeader:
    def steps(own: int) -> int:
        return own if snapshot.optimizer.counts_parameters else snapshot.iterations

    return PartHeader(
        index=index,
        num_ps=num_ps,
        version=snapshot.version,
        optimizer=snapshot.optimizer.spec,
        slots=tuple(snapshot.optimizer.slots),
        mode=snapshot.mode,
        declared=snapshot.declared,
        tally=snapshot.tally.to_text(),
        dense=tuple(DenseSection(one.spec, one.start, one.stop, steps(one.steps)) for one in snapshot.dense),
        tables=tuple(
            TableSection(table.spec, table.pinned_rows(snapshot.pin), steps(own))
            for table, own in zip(snapshot.tables, snapshot.table_steps, strict=True)
        ),
    )
