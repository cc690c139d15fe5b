"""Parameters larger than a piece of a checkpoint's file are saved, read and restored, by any number of servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_ps.checkpoint import load_partition, save_partition
from elasticdl_ps.kernels import KernelSet, load_kernels
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime import checkpoint_files
from elasticdl_runtime.checkpoint_files import CheckpointFile, open_parts, read_checkpoint
from elasticdl_runtime.partition import place_dense
from elasticdl_worker.group.replica import ModelLayout
from elasticdl_worker.group.state_files import CheckpointPart, read_state

pytestmark = pytest.mark.unit
PIECE = checkpoint_files._PIECE_BYTES
SMALL = 64
"""Bytes of a piece in most tests: 16 numbers of float32."""
OPTIMIZERS = {
    0: OptimizerSpec("sgd", {"learning_rate": 0.1}),
    1: OptimizerSpec("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    2: OptimizerSpec("adam", {"learning_rate": 0.1}),
    3: OptimizerSpec("adam", {"learning_rate": 0.1, "amsgrad": True}),
}
Model = Mapping[str, Sequence[NDArray[Any]]]
"""By name the values and slots of a parameter."""


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    return load_kernels()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "_PIECE_BYTES", SMALL)
    monkeypatch.setattr("elasticdl_runtime.partition._SPLIT_ELEMENTS", 12)


def around(bound: int) -> Iterator[int]:
    """One less, as many and one more than each of some multiples of a bound."""
    for times in (1, 2, 3):
        yield from (times * bound - 1, times * bound, times * bound + 1)


def make_model(specs: Sequence[DenseSpec], slots: int) -> Model:
    """No two numbers alike."""
    at, model = 1, {}
    for spec in specs:
        parts = []
        for _ in range(1 + (slots if spec.kind is DenseKind.TRAINABLE else 0)):
            parts.append(np.arange(at, at + spec.size).astype(spec.dtype).reshape(spec.shape))
            at += spec.size
        model[spec.name] = parts
    return model


def save(
    kernels: KernelSet, folder: Path, specs: Sequence[DenseSpec], model: Model, slots: int, servers: int
) -> list[CheckpointFile]:
    """What so many servers write that hold the model."""
    files = []
    for index in range(servers):
        partition = Partition(kernels, servers)
        mine = [place for place in place_dense(specs, servers) if place.ps == index]
        by_name = {spec.name: spec for spec in specs}
        partition.push_model(
            [
                DenseInit(by_name[p.name], p.start, p.stop, model[p.name][0].reshape(-1)[p.start : p.stop])
                for p in mine
            ],
            [],
            OPTIMIZERS[slots],
            UpdateMode(),
        )
        for place in mine:
            part = partition.dense.part(place.name)
            assert part is not None
            flat = [array.reshape(-1)[place.start : place.stop] for array in model[place.name]]
            assert part.record.size == sum(map(len, flat))
            part.record[0] = np.concatenate(flat)
        files.append(save_partition(partition, str(folder), index, servers)[2])
    return files


def assert_restored(
    kernels: KernelSet, folder: Path, files: Sequence[CheckpointFile], model: Model, servers: int
) -> None:
    """The model is the same on so many servers, slots too."""
    for index in range(servers):
        dense = load_partition(kernels, str(folder), files, index, servers).dense
        for spec in dense.specs:
            part = dense.part(spec.name)
            assert part is not None
            whole = np.stack([array.reshape(-1) for array in model[spec.name]])
            np.testing.assert_array_equal(part.record[0], whole[:, part.start : part.stop].reshape(-1))


def assert_read(folder: Path, files: Sequence[CheckpointFile], model: Model, slots: int) -> None:
    """It is the same to whoever reads it whole: exports and evaluations, local training, groups."""
    plain, whole = read_checkpoint(folder, files), read_checkpoint(folder, files, with_slots=True)
    state, _ = read_state(str(folder), files, layout_of(folder, files))
    assert plain.dense.keys() == whole.dense.keys() == state.values.keys() == model.keys()
    for name, (value, *several) in model.items():
        for found in (plain.dense[name], whole.dense[name], state.values[name]):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)
        assert not plain.dense_slots.get(name)
        for slots_read in (whole.dense_slots.get(name, ()), state.slots.get(name, ())):
            assert len(slots_read) == len(several)
            for one, other in zip(slots_read, several, strict=True):
                np.testing.assert_array_equal(one, other)


def layout_of(folder: Path, files: Sequence[CheckpointFile]) -> ModelLayout:
    header = read_checkpoint(folder, files)
    specs = [header.dense_specs[name] for name in sorted(header.dense_specs)]
    return ModelLayout(tuple(specs), header.optimizer, header.slots)


@pytest.mark.parametrize("slots", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_parameters_around_the_bound_of_a_piece_survive(
    kernels: KernelSet, tmp_path: Path, small_pieces: None, slots: int, servers: int
) -> None:
    trained = [DenseSpec(f"w{size}", (size,)) for size in around(SMALL // 4)]
    # A record's parts may end at a piece's end, too, and slices are some servers' thirds and halves.
    trained += [DenseSpec(f"r{size}", (size,)) for size in range(1, SMALL // 4)]
    trained += [DenseSpec(f"s{size}", (size, servers)) for size in around(SMALL // 4)]
    state = [DenseSpec(f"d{size}", (size,), "float64", DenseKind.STATE) for size in around(SMALL // 8)]
    specs = [*trained, *state, DenseSpec("empty", (0, 3)), DenseSpec("one", ())]
    model = make_model(specs, slots)
    files = save(kernels, tmp_path, specs, model, slots, servers)
    assert_read(tmp_path, files, model, slots)
    for others in (1, 2, 5):
        assert_restored(kernels, tmp_path, files, model, others)


def test_shares_of_a_group_around_the_bound_of_a_piece_survive(
    kernels: KernelSet, tmp_path: Path, small_pieces: None
) -> None:
    specs = [DenseSpec(f"w{size}", (size,)) for size in around(SMALL // 4)]
    model = make_model(specs, 2)
    layout_files = save(kernels, tmp_path / "servers", specs, model, 2, 1)
    layout = layout_of(tmp_path / "servers", layout_files)
    state, _ = read_state(str(tmp_path / "servers"), layout_files, layout)
    files = [CheckpointPart(layout, state, rank, 3, {}).write(tmp_path / "group") for rank in range(3)]
    assert_read(tmp_path / "group", files, model, 2)
    assert_restored(kernels, tmp_path / "group", files, model, 2)


def check_one(kernels: KernelSet, folder: Path, shape: tuple[int, ...], servers: int, others: Sequence[int]) -> None:
    specs = [DenseSpec("kernel", shape), DenseSpec("bias", shape[-1:])]
    model = make_model(specs, 2)
    files = save(kernels, folder, specs, model, 2, servers)
    with_pieces = open_parts(folder, files)
    for reader in with_pieces:
        with reader:
            assert sum(1 for _ in reader.blocks()) > 2
    assert_read(folder, files, model, 2)
    for number in others:
        assert_restored(kernels, folder, files, model, number)


def test_a_layer_of_2100_units_survives(kernels: KernelSet, tmp_path: Path) -> None:
    assert PIECE < 4 * 2100 * 2100
    check_one(kernels, tmp_path, (2100, 2100), 1, [2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [(PIECE // 4 - 1,), (PIECE // 4,), (PIECE // 4 + 1,), (25_557_032,), (4096, 4096), (1_000_000, 16)],
    ids=["less", "piece", "more", "resnet50", "matrix", "table"],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_sizes_that_users_have_survive(
    kernels: KernelSet, tmp_path: Path, shape: tuple[int, ...], servers: int
) -> None:
    check_one(kernels, tmp_path, shape, servers, [1, 3])
