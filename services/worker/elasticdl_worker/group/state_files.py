"""The state of a replica in the files of a checkpoint, and on its way to another member."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import DataError
from elasticdl_core.model import DenseKind, DenseSpec, TableSpec, UpdateMode
from elasticdl_runtime.checkpoint_files import (
    CheckpointFile,
    DensePiece,
    DenseSection,
    PartHeader,
    PartWriter,
    TableSection,
    dense_steps_of,
    empty_records,
    open_parts,
    place_piece,
)
from elasticdl_runtime.convert.parameters import dense_to_json, mode_to_json, optimizer_to_json, table_to_json
from elasticdl_runtime.partition import place_dense
from elasticdl_worker.group.replica import ModelLayout, ReplicaState

Tally = Mapping[tuple[int, int], int]


_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class TableRows:
    """An embedding table that one process holds, as parameter servers write it.

    Attributes:
        spec: the table.
        ids: of its rows, int64 ``[n]``.
        records: the rows, each followed by its slots, float32 ``[n, dim * (1 + slots)]``.
        steps: how many updates the table had, as the optimizer counts.
    """

    spec: TableSpec
    ids: NDArray[np.int64]
    records: NDArray[np.float32]
    steps: int


class CheckpointPart:
    """One member's share of a checkpoint: a copy of its part of the state, ready to be written.

    Args:
        layout: of the model.
        state: of the replica, as it is now; what is to be written is copied.
        rank: which share.
        size: how many there are.
        tally: rows in the model by (epoch, index) of their task.
        tables: of a process that is alone; members of groups hold none.

    Attributes:
        header: of the file.
        layers: what names of layers stand for in the module.
    """

    def __init__(
        self,
        layout: ModelLayout,
        state: ReplicaState,
        rank: int,
        size: int,
        tally: Tally,
        tables: Sequence[TableRows] = (),
    ) -> None:
        specs = {spec.name: spec for spec in layout.dense}
        mine = [place for place in place_dense(list(layout.dense), size) if place.ps == rank]
        self.header = PartHeader(
            index=rank,
            num_ps=size,
            version=state.version,
            optimizer=layout.optimizer,
            slots=layout.slots,
            mode=UpdateMode(),
            dense=tuple(
                DenseSection(specs[one.name], one.start, one.stop, state.steps.get(one.name)) for one in mine
            ),
            tables=tuple(TableSection(one.spec, len(one.ids), one.steps) for one in tables),
            tally=_tally_text(tally),
            replica=_extra_text(state.extra),
        )
        self.layers = dict(layout.layers)
        self._tables = tables
        self._records = [_record(section, state) for section in self.header.dense]

    def write(self, directory: str | Path) -> CheckpointFile:
        """Writes the share; it is fsynced and renamed.

        Raises:
            OSError: the disk does not allow it.
            ElasticDLError: the store does not.
        """
        name = f"ps-{self.header.index:05d}-of-{self.header.num_ps:05d}.ckpt"
        with PartWriter(directory, name, self.header) as writer:
            for section, record in enumerate(self._records):
                writer.write_dense(section, record)
            for number, table in enumerate(self._tables):
                for at in range(0, len(table.ids), _ROWS_AT_ONCE):
                    rows = slice(at, at + _ROWS_AT_ONCE)
                    writer.write_rows(number, table.ids[rows], table.records[rows])
            return writer.finish()

    def describe(self) -> str:
        """Describes the model as a parameter server would: JSON."""
        header = self.header
        return json.dumps(
            {
                "dense": [dense_to_json(section.spec) for section in header.dense],
                "tables": [table_to_json(section.spec) for section in header.tables],
                "optimizer": json.loads(optimizer_to_json(header.optimizer)),
                "slots": list(header.slots),
                "mode": json.loads(mode_to_json(header.mode)),
            }
        )


def read_state(directory: str, files: Sequence[CheckpointFile], layout: ModelLayout) -> tuple[ReplicaState, Tally]:
    """Reads a checkpoint of a group, or of parameter servers, whoever and however many wrote it.

    Raises:
        DataError: it is damaged, or not of this model: it has tables, or other parameters.
    """
    specs = {spec.name: spec for spec in layout.dense}
    readers = open_parts(directory, files)
    try:
        first = readers[0].header
        found = {section.spec.name: section.spec for reader in readers for section in reader.header.dense}
        if any(reader.header.tables for reader in readers):
            raise DataError(
                f"the checkpoint in {directory} has embedding tables",
                fix="go on with ParameterServerStrategy, which holds tables",
            )
        _check_same(directory, found, specs)
        records = empty_records(found.values(), len(first.slots))
        for reader in readers:
            for block in reader.blocks():
                assert isinstance(block, DensePiece)
                place_piece(records[block.section.spec.name], block)
        same = first.slots == layout.slots
        # What else the optimizer remembers is of the parameters that were trained, in their order.
        in_order = (
            same
            and first.optimizer.name == layout.optimizer.name
            and _trained(found.values()) == _trained(layout.dense)
        )
        # Below, `[n, ...]` is an array also where a parameter is a single number, and `[n]` would be that number.
        state = ReplicaState(
            max(reader.header.version for reader in readers),
            {name: whole[0, ...] for name, whole in records.items()},
            {
                name: [whole[slot, ...] for slot in range(1, len(whole))]
                for name, whole in records.items()
                if same and len(whole) > 1
            },
            extra_of(first.replica) if in_order else {},
            dense_steps_of([reader.header for reader in readers]) if same else {},
        )
        return state, _tally_of(first.tally)
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def _check_same(directory: str, there: Mapping[str, DenseSpec], here: Mapping[str, DenseSpec]) -> None:
    """Refuses the parameters of another model, by the name of one that differs."""
    for name in sorted(there.keys() | here.keys()):
        if name not in here:
            differs = f"it has the parameter {name!r}, which the model does not have"
        elif name not in there:
            differs = f"it has no parameter {name!r}, which the model has"
        elif there[name].shape != here[name].shape:
            differs = f"{name!r} is {there[name].shape} there and {here[name].shape} in the model"
        else:
            continue
        raise DataError(f"the checkpoint in {directory} is of another model: {differs}", fix="give one of this model")


def _trained(specs: Iterable[DenseSpec]) -> set[str]:
    return {spec.name for spec in specs if spec.kind is DenseKind.TRAINABLE}


def pack_state(state: ReplicaState) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """A state as a note and buffers."""
    buffers: list[NDArray[Any]] = []

    def put(array: NDArray[Any]) -> list[Any]:
        buffers.append(np.ascontiguousarray(array))
        return [array.dtype.str, list(array.shape)]  # its own shape: a scalar would become one of length 1

    note = {
        "version": state.version,
        "values": [[name, put(array)] for name, array in state.values.items()],
        "slots": [[name, [put(array) for array in arrays]] for name, arrays in state.slots.items()],
        "extra": [[name, put(array)] for name, array in state.extra.items()],
        "steps": dict(state.steps),
    }
    return note, buffers


def unpack_state(note: Mapping[str, Any], buffers: Sequence[NDArray[np.uint8]]) -> ReplicaState:
    """Reads what ``pack_state`` made."""
    rest = iter(buffers)

    def take(kind: Sequence[Any]) -> NDArray[Any]:
        array: NDArray[Any] = next(rest).view(np.dtype(kind[0])).reshape(kind[1])
        return array

    return ReplicaState(
        int(note["version"]),
        {name: take(kind) for name, kind in note["values"]},
        {name: [take(kind) for kind in kinds] for name, kinds in note["slots"]},
        {name: take(kind) for name, kind in note["extra"]},
        {name: int(steps) for name, steps in note["steps"].items()},
    )


def _record(section: DenseSection, state: ReplicaState) -> NDArray[Any]:
    arrays = [state.values[section.spec.name]]
    if section.spec.kind is not DenseKind.STATE:
        arrays += state.slots[section.spec.name]
    dtype = np.dtype(section.spec.dtype)
    pieces = [np.asarray(array, dtype).reshape(-1)[section.start : section.stop] for array in arrays]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)


def _tally_text(tally: Tally) -> str:
    rows = np.array([(*task, count) for task, count in sorted(tally.items())], np.int64).reshape(-1, 3)
    return "1:" + base64.b64encode(zlib.compress(rows.T.astype("<i8").tobytes())).decode()


def _tally_of(text: str) -> Tally:
    if not text:
        return {}
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(text[2:])), "<i8").reshape(3, -1)
    return {(int(epoch), int(index)): int(count) for epoch, index, count in numbers.T}


def _extra_text(extra: Mapping[str, NDArray[Any]]) -> str:
    """The rest of a replica's state, which is small: each array as dtype, shape and bytes."""
    if not extra:
        return ""
    return json.dumps(
        [[name, a.dtype.str, list(a.shape), base64.b64encode(a.tobytes()).decode()] for name, a in extra.items()]
    )


def extra_of(text: str) -> dict[str, NDArray[Any]]:
    """The text that a replica wrote into the header of its share."""
    found: dict[str, NDArray[Any]] = {}
    for name, dtype, shape, data in json.loads(text) if text else ():
        found[str(name)] = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    return found
