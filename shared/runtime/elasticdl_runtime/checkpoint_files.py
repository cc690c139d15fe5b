"""The files of a checkpoint: one for each parameter server, read by any number of them, or whole.

A file is a header and blocks; numbers are little-endian:

    8 bytes      magic "EDLCKPT1"
    8 bytes      H: length of the header
    4 bytes      CRC-32 of the header
    H bytes      the header: JSON, see ``PartHeader``
    blocks       each 24 bytes, then its payload:
                 "EBLK", section (4), payload bytes (8), elements or rows (4), CRC-32 of the payload (4)
    24 bytes     "EEND", number of blocks (4), zeros

Section ``i`` is the header's ``i``-th dense slice, or, counting on, its tables. A dense section is the record of the
slice (the values and then, if trained, slot after slot), in pieces. A block of a table is ``n`` int64 ids and then
``n`` records of float32: the vector and then slot after slot.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import DataError
from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.path_policy import is_url, join_place
from elasticdl_runtime import durable
from elasticdl_runtime.convert.parameters import (
    dense_from_json,
    dense_to_json,
    mode_from_json,
    mode_to_json,
    optimizer_from_json,
    optimizer_to_json,
    table_from_json,
    table_to_json,
)
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.object_store import ObjectStore, scratch_file

_MAGIC = b"EDLCKPT1"
_FRONT = struct.Struct("<8sQI")
_BLOCK = struct.Struct("<4sIQII")
_BLOCK_MAGIC, _END_MAGIC = b"EBLK", b"EEND"
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file as the manifest names it.

    Attributes:
        name: relative to the checkpoint's directory, without folders.
        size: in bytes.
        sha256: 64 hex digits.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DenseSection:
    """A slice ``[start, stop)`` of a flattened dense parameter.

    Attributes:
        spec: the parameter.
        start: the first element.
        stop: the element after the last one.
        steps: how many updates its slots are of, as the optimizer counts; None in files that do not say.
    """

    spec: DenseSpec
    start: int
    stop: int
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class TableSection:
    """A part of an embedding table with a number of rows, and how many updates it had, as with dense parameters."""

    spec: TableSpec
    rows: int
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The header of one file.

    Attributes:
        index: the PS that wrote it.
        num_ps: how many PS wrote the checkpoint.
        version: updates that the PS had applied.
        optimizer: the optimizer.
        slots: names of its slots, in their order in records.
        mode: how updates were made.
        dense: the dense slices.
        tables: the tables.
        tally: how many records of each task it contains, as the PS writes it; empty if that is not known.
        replica: what a member of a group keeps besides, in its own words; empty where there is nothing.
        declared: whether optimizer, mode and specifications are those of the job that wrote it. They are another
            job's where it began with that one's checkpoint and no worker had declared its model when it was saved.
    """

    index: int
    num_ps: int
    version: int
    optimizer: OptimizerSpec
    slots: tuple[str, ...]
    mode: UpdateMode
    dense: tuple[DenseSection, ...]
    tables: tuple[TableSection, ...]
    tally: str = ""
    replica: str = ""
    declared: bool = True

    def width(self, table: TableSpec) -> int:
        """Numbers in one record of a table."""
        return table.dim * (1 + len(self.slots))

    def to_json(self) -> str:
        """The header as it is written."""
        return json.dumps(
            {
                "index": self.index,
                "num_ps": self.num_ps,
                "version": self.version,
                "optimizer": optimizer_to_json(self.optimizer),
                "slots": list(self.slots),
                "mode": mode_to_json(self.mode),
                "dense": [
                    {**dense_to_json(s.spec), "start": s.start, "stop": s.stop, "steps": s.steps} for s in self.dense
                ],
                "tables": [{**table_to_json(s.spec), "rows": s.rows, "steps": s.steps} for s in self.tables],
                "tally": self.tally,
                "replica": self.replica,
                "declared": self.declared,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> PartHeader:
        """Reads what ``to_json`` wrote."""
        data = json.loads(text)
        return cls(
            index=int(data["index"]),
            num_ps=int(data["num_ps"]),
            version=int(data["version"]),
            optimizer=optimizer_from_json(data["optimizer"]),
            slots=tuple(str(name) for name in data["slots"]),
            mode=mode_from_json(data["mode"]),
            dense=tuple(
                DenseSection(dense_from_json(d), int(d["start"]), int(d["stop"]), _count(d.get("steps")))
                for d in data["dense"]
            ),
            tables=tuple(
                TableSection(table_from_json(d), int(d["rows"]), _count(d.get("steps"))) for d in data["tables"]
            ),
            tally=str(data.get("tally", "")),
            replica=str(data.get("replica", "")),
            declared=bool(data.get("declared", True)),
        )


@dataclass(frozen=True, slots=True)
class DensePiece:
    """A run of elements of a dense section's record, beginning at element ``start`` of it."""

    section: DenseSection
    start: int
    values: NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """Rows of a table: ids ``[n]`` and records ``[n, width]`` with slots."""

    section: TableSection
    ids: NDArray[np.int64]
    records: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """A whole checkpoint; the optimizer's slots are there if they were asked for.

    Attributes:
        version: the model version: the largest of the parts'.
        optimizer: the optimizer.
        mode: how updates were made.
        dense_specs: the dense parameters, by name.
        table_specs: the tables, by name.
        dense: values of each dense parameter, in its shape and dtype.
        tables: of each table the ids, ascending, int64 ``[n]``, and their vectors, float32 ``[n, dim]``.
        slots: names of the optimizer's slots.
        dense_slots: of each trained parameter its slots, in its shape.
        row_slots: of each table the slots of its ids, each float32 ``[n, dim]``.
        replica: what a member of a group keeps besides, in its own words.
        steps: how many updates the slots of each trained parameter are of.
        row_steps: the same of each table.
    """

    version: int
    optimizer: OptimizerSpec
    mode: UpdateMode
    dense_specs: Mapping[str, DenseSpec]
    table_specs: Mapping[str, TableSpec]
    dense: Mapping[str, NDArray[Any]]
    tables: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
    slots: tuple[str, ...] = ()
    dense_slots: Mapping[str, Sequence[NDArray[Any]]] = field(default_factory=dict)
    row_slots: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)
    replica: str = ""
    steps: Mapping[str, int] = field(default_factory=dict)
    row_steps: Mapping[str, int] = field(default_factory=dict)


class PartWriter:
    """Writes one file under a temporary name; ``finish`` makes it durable and gives it its name, or puts it.

    Args:
        directory: of the checkpoint; made if missing. May be a URL.
        name: of the file.
        header: what will be written, in this order.
    """

    def __init__(self, directory: str | Path, name: str, header: PartHeader) -> None:
        self._done = contextlib.ExitStack()
        self._name = name
        self._directory = str(directory)
        if is_url(self._directory):
            self._temporary = self._done.enter_context(scratch_file())
        else:
            durable.make_folder(Path(directory))
            self._temporary = Path(directory, f".{name}.tmp")
        self._hash = hashlib.sha256()
        self._size = 0
        self._blocks = 0
        self._dense = len(header.dense)
        self._file: BinaryIO = self._temporary.open("wb")
        text = header.to_json().encode()
        self._write(_FRONT.pack(_MAGIC, len(text), zlib.crc32(text)))
        self._write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
        self._done.close()

    def write_dense(self, section: int, record: NDArray[Any]) -> None:
        """Writes the record of the header's dense section ``section``."""
        flat = np.ascontiguousarray(record).reshape(-1)
        step = max(1, _PIECE_BYTES // flat.itemsize)
        for at in range(0, len(flat), step):
            piece = flat[at : at + step]
            self._block(section, len(piece), [piece])

    def write_rows(self, table: int, ids: NDArray[np.int64], records: NDArray[np.float32]) -> None:
        """Writes some rows of the header's table ``table``."""
        self._block(self._dense + table, len(ids), [ids, records])

    def finish(self) -> CheckpointFile:
        """Ends the file and makes it durable."""
        self._write(_BLOCK.pack(_END_MAGIC, self._blocks, 0, 0, 0))
        self._file.close()
        stored = is_url(self._directory)
        if not stored:
            durable.sync_tree(self._temporary)
        failpoint("ps.before_rename")
        if stored:
            ObjectStore(self._directory).put(self._name, self._temporary)
        else:
            durable.move(self._temporary, Path(self._directory, self._name))
        return CheckpointFile(self._name, self._size, self._hash.hexdigest())

    def _block(self, section: int, count: int, arrays: Sequence[NDArray[Any]]) -> None:
        payload = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        crc = 0
        for part in payload:
            crc = zlib.crc32(part.data, crc)
        self._write(_BLOCK.pack(_BLOCK_MAGIC, section, sum(map(len, payload)), count, crc))
        for part in payload:
            self._write(part.data)
        self._blocks += 1

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)


class PartReader:
    """Reads one file, checking everything on the way.

    Args:
        directory: of the checkpoint.
        file: as the manifest names it.

    Attributes:
        header: what the file holds.

    Raises:
        DataError: the file is missing, has another size, or its header is damaged.
        UnavailableError: the store that it is in does not answer.
    """

    def __init__(self, directory: str | Path, file: CheckpointFile) -> None:
        self.path = _join(str(directory), file.name)
        self._expected = file
        self._hash = hashlib.sha256()
        try:
            store = ObjectStore(str(directory)) if is_url(self.path) else None
            size = Path(self.path).stat().st_size if store is None else store.size(file.name)
            if size != file.size:
                raise _damaged(self.path, f"it has {size} bytes, not {file.size}")
            self._file = _opened(self.path) if store is None else store.open(file.name)
        except OSError as error:
            raise _damaged(self.path, error.strerror or str(error)) from None
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def blocks(self) -> Iterator[DensePiece | RowsBlock]:
        """All blocks in their order; to be exhausted, because the checksum of the whole comes last.

        Raises:
            DataError: the file is damaged.
        """
        sections = len(self.header.dense) + len(self.header.tables)
        done = [0] * sections
        blocks = 0
        while True:
            magic, section, length, count, crc = _BLOCK.unpack(self._take(_BLOCK.size))
            if magic == _END_MAGIC:
                break
            if magic != _BLOCK_MAGIC or section >= sections or length > self._expected.size:
                raise _damaged(self.path, f"block {blocks} has a damaged front")
            payload = self._take(length)
            if zlib.crc32(payload) != crc:
                raise _damaged(self.path, f"block {blocks} has a wrong checksum")
            yield self._decode(section, count, payload, done[section])
            done[section] += count
            blocks += 1
        self._check_end(blocks, section, done)

    def _check_end(self, blocks: int, claimed: int, done: Sequence[int]) -> None:
        header = self.header
        wanted = [_record_size(s, len(header.slots)) for s in header.dense] + [s.rows for s in header.tables]
        if blocks != claimed or list(done) != wanted or self._file.read(1):
            raise _damaged(self.path, "blocks are missing or too many")
        if self._hash.hexdigest() != self._expected.sha256:
            raise _damaged(self.path, "its SHA-256 is not the manifest's")

    def _decode(self, section: int, count: int, payload: bytes, before: int) -> DensePiece | RowsBlock:
        header = self.header
        if section < len(header.dense):
            dense = header.dense[section]
            values = np.frombuffer(payload, np.dtype(dense.spec.dtype))
            if len(values) != count:
                raise _damaged(self.path, f"a block of {dense.spec.name!r} has a wrong length")
            return DensePiece(dense, before, values)
        table = header.tables[section - len(header.dense)]
        width = header.width(table.spec)
        if len(payload) != count * (8 + 4 * width):
            raise _damaged(self.path, f"a block of {table.spec.name!r} has a wrong length")
        ids = np.frombuffer(payload, np.int64, count)
        records = np.frombuffer(payload, np.float32, count * width, offset=8 * count)
        return RowsBlock(table, ids, records.reshape(count, width))

    def _read_header(self) -> PartHeader:
        magic, length, crc = _FRONT.unpack(self._take(_FRONT.size))
        if magic != _MAGIC or length > self._expected.size:
            raise _damaged(self.path, "it does not begin as a checkpoint file")
        text = self._take(length)
        if zlib.crc32(text) != crc:
            raise _damaged(self.path, "its header has a wrong checksum")
        try:
            return PartHeader.from_json(text.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(self.path, f"its header cannot be read: {error!r}") from None

    def _take(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) != length:
            raise _damaged(self.path, "it ends too early")
        self._hash.update(data)
        return data


def open_parts(directory: str | Path, files: Sequence[CheckpointFile]) -> list[PartReader]:
    """Opens all files of a checkpoint, by the index of their PS; close each.

    Raises:
        DataError: a file is missing or damaged, or they are not the parts of one checkpoint.
    """
    readers: list[PartReader] = []
    try:
        for file in files:
            readers.append(PartReader(directory, file))
        readers.sort(key=lambda reader: reader.header.index)
        found = [reader.header.index for reader in readers]
        wanted = readers[0].header.num_ps if readers else 1
        if found != list(range(wanted)):
            raise DataError(
                f"the checkpoint in {directory} has the parts {found} of {wanted}",
                fix="give all files of one checkpoint, or use an earlier one",
            )
        versions = [reader.header.version for reader in readers]
        if len(set(versions)) > 1 and not readers[0].header.mode.use_async:
            raise DataError(
                f"the parts of the checkpoint in {directory} are of the versions {versions}, and synchronous training"
                " has but one",
                fix="use an earlier one",
            )
    except BaseException:
        for reader in readers:
            reader.__exit__(None, None, None)
        raise
    return readers


def dense_specs_of(headers: Sequence[PartHeader]) -> list[DenseSpec]:
    """The dense parameters of all parts, by name, each once."""
    found = {section.spec.name: section.spec for header in headers for section in header.dense}
    return [found[name] for name in sorted(found)]


def table_specs_of(headers: Sequence[PartHeader]) -> list[TableSpec]:
    """The tables of all parts, by name, each once."""
    found = {section.spec.name: section.spec for header in headers for section in header.tables}
    return [found[name] for name in sorted(found)]


def dense_steps_of(headers: Sequence[PartHeader]) -> dict[str, int]:
    """The number of updates of each trained parameter's slots: the version, where a file does not say."""
    sections = [(header, section) for header in headers for section in header.dense]
    return _steps_of((header, s) for header, s in sections if s.spec.kind is DenseKind.TRAINABLE)


def table_steps_of(headers: Sequence[PartHeader]) -> dict[str, int]:
    """The number of updates of each table: the version, where a file does not say."""
    return _steps_of((header, section) for header in headers for section in header.tables)


def _steps_of(sections: Iterable[tuple[PartHeader, DenseSection | TableSection]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for header, section in sections:
        steps = header.version if section.steps is None else section.steps
        found[section.spec.name] = max(steps, found.get(section.spec.name, 0))
    return found


def _count(found: Any) -> int | None:
    return None if found is None else int(found)


def read_checkpoint(
    directory: str | Path, files: Sequence[CheckpointFile], *, with_slots: bool = False
) -> CheckpointContent:
    """Reads a whole checkpoint into memory.

    Args:
        directory: where the files are.
        files: all of them, as the manifest names them.
        with_slots: whether with the optimizer's slots.

    Raises:
        DataError: a file is missing, truncated or altered; the message names it.
    """
    readers = open_parts(directory, files)
    try:
        headers = [reader.header for reader in readers]
        dense_specs, table_specs = dense_specs_of(headers), table_specs_of(headers)
        first = headers[0]
        slots = len(first.slots) if with_slots else 0
        dense = empty_records(dense_specs, slots)
        found: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float32]]]] = {s.name: [] for s in table_specs}
        for reader in readers:
            for block in reader.blocks():
                if isinstance(block, RowsBlock):
                    width = block.section.spec.dim * (1 + slots)
                    found[block.section.spec.name].append((block.ids, block.records[:, :width]))
                else:
                    place_piece(dense[block.section.spec.name], block)
        rows = {spec.name: _sorted_rows(found[spec.name], spec.dim * (1 + slots)) for spec in table_specs}
        parts = {spec.name: np.split(rows[spec.name][1], 1 + slots, axis=1) for spec in table_specs}
        return CheckpointContent(
            version=max(header.version for header in headers),
            optimizer=first.optimizer,
            mode=first.mode,
            dense_specs={spec.name: spec for spec in dense_specs},
            table_specs={spec.name: spec for spec in table_specs},
            dense={name: whole[0, ...] for name, whole in dense.items()},
            tables={name: (ids, parts[name][0]) for name, (ids, _) in rows.items()},
            slots=first.slots,
            dense_slots={name: [one[...] for one in whole[1:]] for name, whole in dense.items() if slots},
            row_slots={name: several[1:] for name, several in parts.items() if slots},
            replica=first.replica,
            steps=dense_steps_of(headers),
            row_steps=table_steps_of(headers),
        )
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def empty_records(specs: Iterable[DenseSpec], slots: int) -> dict[str, NDArray[Any]]:
    """Room for dense parameters by name: values and, of trained ones, so many slots, each ``[n, *shape]``."""
    return {
        spec.name: np.zeros((1 + slots * (spec.kind is DenseKind.TRAINABLE), *spec.shape), np.dtype(spec.dtype))
        for spec in specs
    }


def place_piece(record: NDArray[Any], piece: DensePiece) -> None:
    """Puts a piece where it belongs: it may span the values and the slots of its slice.

    Args:
        record: of the parameter, as ``empty_records`` gives it; slots that it has no room for are left out.
        piece: of the parameter.
    """
    section = piece.section
    target = record.reshape(len(record), section.spec.size)
    size, at, taken = section.stop - section.start, piece.start, 0
    while taken < len(piece.values):
        part, offset = divmod(at, size)
        if part >= len(target):  # a piece may begin in any slot
            return
        run = min(size - offset, len(piece.values) - taken)
        start = section.start + offset
        target[part, start : start + run] = piece.values[taken : taken + run]
        at, taken = at + run, taken + run


def _sorted_rows(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]], dim: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    values = np.concatenate([np.empty((0, dim), np.float32), *(part[1] for part in parts)])
    order = np.argsort(ids)
    return ids[order], values[order]


def _record_size(section: DenseSection, slots: int) -> int:
    size = section.stop - section.start
    return size if section.spec.kind is DenseKind.STATE else size * (1 + slots)


def _join(directory: str, name: str) -> str:
    if not name or name in {".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise DataError(f"{name!r} is not the name of a checkpoint file", fix="use the names of the manifest")
    return join_place(directory, name)


def _opened(path: str) -> BinaryIO:
    return Path(path).open("rb")


def _damaged(path: str, what: str) -> DataError:
    return DataError(f"the checkpoint file {path} cannot be used: {what}", fix="use an earlier checkpoint")
