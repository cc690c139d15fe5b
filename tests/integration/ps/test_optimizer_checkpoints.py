"""A checkpoint has all that an optimizer in PyTorch's words goes on from, with any number of parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ConflictError
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_ps.checkpoint import load_partition, save_partition
from elasticdl_ps.families.torch import TORCH_FAMILIES
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.pulls import PullRequest, read_parameters
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.partition import ps_of_ids

pytestmark = pytest.mark.integration
KERNELS = load_kernels()
SIZE, DIM, IDS = 7, 3, np.arange(10) * 13
TABLES = [TableSpec("t", DIM, InitializerSpec("uniform", seed=5), group=1)]
SPECS = [DenseSpec("a", (SIZE,)), DenseSpec("b", (SIZE,), group=1, weight_decay=False)]
SWITCHED: dict[str, dict[str, float | bool]] = {
    "torch.sgd": {"momentum": 0.9, "dampening": 0.3},
    "torch.adam": {"amsgrad": True, "weight_decay": 0.1},
    "torch.rmsprop": {"momentum": 0.5, "centered": True, "weight_decay": 0.1},
    "torch.adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
}
OPTIMIZERS = [
    OptimizerSpec(name, SWITCHED.get(name, {}), ({"learning_rate": 0.03, "maximize": True},))
    for name in TORCH_FAMILIES
]


def push(partitions: Sequence[Partition], random: np.random.Generator) -> None:
    """One update of everything, but each time of some rows only."""
    dense = {spec.name: random.normal(size=SIZE).astype(np.float32) for spec in SPECS}
    ids = IDS[random.random(len(IDS)) < 0.5]
    grads = random.normal(size=(len(ids), DIM)).astype(np.float32)
    for index, partition in enumerate(partitions):
        mine = ps_of_ids(ids, len(partitions)) == index
        held = {spec.name for spec in partition.dense.specs}
        partition.apply(
            [
                Changes(
                    {name: grad for name, grad in dense.items() if name in held},
                    {"t": (ids[mine], np.ascontiguousarray(grads[mine]))},
                )
            ],
            [0.02, 0.01],
        )


def content(partitions: Sequence[Partition]) -> dict[str, Any]:
    found = {value.spec.name: value.values for part in partitions for value in part.dense.read(-1, with_slots=True)}
    for index, partition in enumerate(partitions):
        mine = IDS[ps_of_ids(IDS, len(partitions)) == index]
        rows = np.empty((len(mine), DIM), np.float32)
        partition.tables["t"].read(mine, rows)
        found |= {f"row {number}": row for number, row in zip(mine, rows, strict=True)}
    return found


@pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.name)
def test_training_goes_on_as_if_nothing_had_been(spec: OptimizerSpec, tmp_path: Path) -> None:
    first = np.linspace(-1, 1, SIZE, dtype=np.float32)
    partition = Partition(KERNELS)
    parts = [DenseInit(one, 0, SIZE, first) for one in SPECS]
    partition.push_model(parts, TABLES, spec, UpdateMode())
    random = np.random.default_rng(1)
    for _ in range(8):
        push([partition], random)
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    resumed = [load_partition(KERNELS, str(tmp_path), [file], index, 2) for index in range(2)]
    for one in resumed:
        assert one.optimizer.spec == spec
        one.num_ps, one.initialised = 2, True
    again = np.random.default_rng(2)
    for _ in range(8):
        push(resumed, again)
    again = np.random.default_rng(2)
    for _ in range(8):
        push([partition], again)
    wanted, found = content([partition]), content(resumed)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_model_that_moves_parameters_between_groups_goes_on_with_them(tmp_path: Path) -> None:
    spec = OptimizerSpec("torch.sgd", {"learning_rate": 1.0}, ({"learning_rate": 0.0},))
    partition = Partition(KERNELS)
    first, ids = np.zeros(SIZE, np.float32), IDS[:1]
    partition.push_model([DenseInit(one, 0, SIZE, first) for one in SPECS], TABLES, spec, UpdateMode())
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    restored = Partition(KERNELS)
    restored.become(load_partition(KERNELS, str(tmp_path), [file], 0, 1))
    # Now there is one group, and so all are in it.
    flat = [DenseInit(DenseSpec(one.name, one.shape), 0, SIZE, None) for one in SPECS]
    tables = [TableSpec("t", DIM, InitializerSpec("uniform", seed=5))]
    restored.push_model(flat, tables, OptimizerSpec("torch.sgd", {"learning_rate": 0.5}), UpdateMode())
    before, after = np.empty((1, DIM), np.float32), np.empty((1, DIM), np.float32)
    restored.tables["t"].read(ids, before)
    grads = {one.name: np.ones(SIZE, np.float32) for one in SPECS}
    restored.apply([Changes(grads, {"t": (ids, np.ones((1, DIM), np.float32))})])
    restored.tables["t"].read(ids, after)
    np.testing.assert_allclose(after, before - 0.5)
    assert all((value.values == -0.5).all() for value in restored.dense.read(-1))


@pytest.mark.parametrize("follows", ["torch.adam", "torch.sgd"], ids=["the same optimizer", "another"])
def test_a_model_that_freezes_some_parameters_and_trains_others_goes_on_with_them(
    follows: str, tmp_path: Path
) -> None:
    """As a job does that fine-tunes what another one has made."""
    thin, frozen = DenseSpec("a", (SIZE,)), DenseSpec("b", (SIZE,), "float32", DenseKind.STATE)
    first = np.linspace(-1, 1, SIZE, dtype=np.float32)
    partition = Partition(KERNELS)
    adam, mode = OptimizerSpec("torch.adam"), UpdateMode()
    partition.push_model([DenseInit(one, 0, SIZE, first) for one in (thin, frozen)], [], adam, mode)
    grad = np.ones(SIZE, np.float32)
    partition.apply([Changes({"a": grad}, {})])
    was = {value.spec.name: value.values for value in partition.dense.read(-1)}
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    restored = Partition(KERNELS)
    restored.become(load_partition(KERNELS, str(tmp_path), [file], 0, 1))
    swapped = [replace(thin, kind=DenseKind.STATE), replace(frozen, kind=DenseKind.TRAINABLE)]
    restored.push_model([DenseInit(one, 0, SIZE, None) for one in swapped], [], OptimizerSpec(follows), mode)
    restored.apply([Changes({"b": grad}, {})])
    _, _, file = save_partition(restored, str(tmp_path), 0, 1)
    found = {one.spec.name: one.values for one in load_partition(KERNELS, str(tmp_path), [file], 0, 1).dense.read(-1)}
    np.testing.assert_array_equal(found["a"], was["a"])
    assert (found["b"] < was["b"]).all()


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([], r"it has embedding table 't', which the model does not have"),
        ([*TABLES, TableSpec("renamed", 1)], r"it has no embedding table 'renamed', which the model has"),
    ],
    ids=["dropped", "added"],
)
def test_other_tables_are_of_another_model(declared: list[TableSpec], words: str, tmp_path: Path) -> None:
    """Rows that were trained were left behind without a word, and others began anew."""
    spec = OptimizerSpec("torch.sgd")
    partition = Partition(KERNELS)
    plain = [DenseSpec(one.name, one.shape) for one in SPECS]
    tables = [replace(one, group=0) for one in TABLES]
    given = [DenseInit(one, 0, SIZE, np.zeros(SIZE, np.float32)) for one in plain]
    partition.push_model(given, tables, spec, UpdateMode())
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    restored = Partition(KERNELS)
    restored.become(load_partition(KERNELS, str(tmp_path), [file], 0, 1))
    anew = [DenseInit(one, 0, SIZE, None) for one in plain]
    with pytest.raises(ConflictError, match=words):
        restored.push_model(anew, [replace(one, group=0) for one in declared], spec, UpdateMode())


def test_a_vocabulary_may_grow_and_new_rows_begin_as_the_model_says(tmp_path: Path) -> None:
    """New ids were refused for ever, and began as those of the old model."""
    sgd, mode = OptimizerSpec("torch.sgd", {"learning_rate": 1.0}), UpdateMode()
    partition = Partition(KERNELS)
    partition.push_model([], [TableSpec("t", DIM, InitializerSpec("zeros"), 10)], sgd, mode)
    partition.apply([Changes({}, {"t": (np.array([9]), np.ones((1, DIM), np.float32))})])
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    for follows in (sgd, OptimizerSpec("torch.adam", {"learning_rate": 1.0})):
        restored = Partition(KERNELS)
        restored.become(load_partition(KERNELS, str(tmp_path), [file], 0, 1))
        with pytest.raises(ConflictError, match=r"'t' is with the id 9 there and takes ids from 0 to 8 in the model"):
            restored.push_model([], [TableSpec("t", DIM, InitializerSpec("ones"), 9)], follows, mode)
        grown = TableSpec("t", DIM, InitializerSpec("ones"), 20)
        restored.push_model([], [grown], follows, mode)
        assert restored.tables["t"].spec == grown
        ids = np.array([9, 19])
        wanted = PullRequest(tables=[("t", 0)], buffers=[memoryview(ids.tobytes())])
        assert [rows.tolist() for _, rows in read_parameters(restored, wanted).rows] == [[[-1.0] * DIM, [1.0] * DIM]]


def test_state_of_another_type_is_of_another_model(tmp_path: Path) -> None:
    partition = Partition(KERNELS)
    numbers = DenseSpec("a", (SIZE,), "float64", DenseKind.STATE)
    sgd, mode = OptimizerSpec("torch.sgd"), UpdateMode()
    partition.push_model([DenseInit(numbers, 0, SIZE, np.ones(SIZE))], [], sgd, mode)
    _, _, file = save_partition(partition, str(tmp_path), 0, 1)
    restored = Partition(KERNELS)
    restored.become(load_partition(KERNELS, str(tmp_path), [file], 0, 1))
    with pytest.raises(ConflictError, match=r"'a' is float64 there and int64 in the model"):
        restored.push_model([DenseInit(replace(numbers, dtype="int64"), 0, SIZE, None)], [], sgd, mode)
    restored.push_model([DenseInit(replace(numbers, dtype="float32"), 0, SIZE, None)], [], sgd, mode)
    (value,) = restored.dense.read(-1)
    assert value.values.dtype == np.float32
