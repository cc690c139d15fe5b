"""What is wrong with a checkpoint's file is found while it is read, and said with the place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from elasticdl_core.errors import DataError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.checkpoint_files import (
    CheckpointFile,
    DenseSection,
    PartHeader,
    PartReader,
    PartWriter,
    RowsBlock,
    TableSection,
)

pytestmark = pytest.mark.unit
HEADER = PartHeader(
    index=0,
    num_ps=1,
    version=7,
    optimizer=OptimizerSpec("sgd", {"learning_rate": 0.5}),
    slots=(),
    mode=UpdateMode(),
    dense=(DenseSection(DenseSpec("w", (4,)), 0, 4),),
    tables=(TableSection(TableSpec("t", 2), 3),),
)
VALUES = np.arange(4, dtype=np.float32)
IDS = np.array([-5, 3, 9])
VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def written(tmp_path: Path) -> CheckpointFile:
    with PartWriter(tmp_path, "part", HEADER) as writer:
        writer.write_dense(0, VALUES)
        writer.write_rows(0, IDS, VECTORS)
        return writer.finish()


def read(folder: Path, file: CheckpointFile) -> list[object]:
    with PartReader(folder, file) as reader:
        return list(reader.blocks())


def test_what_was_written_is_read(tmp_path: Path, written: CheckpointFile) -> None:
    dense, rows = read(tmp_path, written)
    np.testing.assert_array_equal(dense.values, VALUES)  # type: ignore[attr-defined]
    assert isinstance(rows, RowsBlock)
    np.testing.assert_array_equal(rows.ids, IDS)
    np.testing.assert_array_equal(rows.records, VECTORS)
    assert (tmp_path / "part").stat().st_size == written.size


def test_a_flipped_bit_is_found_in_its_block(tmp_path: Path, written: CheckpointFile) -> None:
    path = tmp_path / "part"
    whole = path.read_bytes()
    at = whole.index(VECTORS.tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DataError, match="block 1 has a wrong checksum"):
        read(tmp_path, written)


def test_a_sound_file_of_another_checkpoint_is_not_taken_for_this_one(
    tmp_path: Path, written: CheckpointFile
) -> None:
    other = dataclasses.replace(written, sha256="0" * 64)
    with pytest.raises(DataError, match="SHA-256"):
        read(tmp_path, other)


@pytest.mark.parametrize("at", [0, 10, 40])
def test_a_damaged_front_is_found_before_anything_is_read(tmp_path: Path, written: CheckpointFile, at: int) -> None:
    path = tmp_path / "part"
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DataError):
        PartReader(tmp_path, written)


@pytest.mark.slow
def test_a_header_of_any_length_is_read(tmp_path: Path) -> None:
    header = dataclasses.replace(HEADER, dense=(), tables=(), replica="x" * (257 << 20))
    with PartWriter(tmp_path, "part", header) as writer:
        file = writer.finish()
    with PartReader(tmp_path, file) as reader:
        assert len(reader.header.replica) == 257 << 20
        assert not list(reader.blocks())
