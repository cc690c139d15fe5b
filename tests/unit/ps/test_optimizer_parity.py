"""Every optimizer does what Keras 3's does: dense, sparse with all rows touched, and sparse with some."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_ps.families.keras import KERAS_FAMILIES
from elasticdl_ps.kernels import KernelSet, load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition

pytestmark = pytest.mark.unit

CLASSES: dict[str, Any] = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "adagrad": keras.optimizers.Adagrad,
    "rmsprop": keras.optimizers.RMSprop,
    "adadelta": keras.optimizers.Adadelta,
    "adamax": keras.optimizers.Adamax,
    "ftrl": keras.optimizers.Ftrl,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in CLASSES],
    ("sgd", {"learning_rate": 0.05}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("sgd", {"momentum": 0.5, "weight_decay": 0.01}),
    ("adam", {"amsgrad": True, "learning_rate": 0.01}),
    ("adam", {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4}),
    ("adam", {"weight_decay": 0.02}),
    ("adamw", {"weight_decay": 0.1, "amsgrad": True}),
    ("adagrad", {"initial_accumulator_value": 0.5, "weight_decay": 0.01}),
    ("rmsprop", {"momentum": 0.9}),
    ("rmsprop", {"centered": True, "rho": 0.8}),
    ("rmsprop", {"centered": True, "momentum": 0.3, "weight_decay": 0.01}),
    ("adadelta", {"learning_rate": 1.0, "rho": 0.9, "weight_decay": 0.01}),
    ("adamax", {"beta_1": 0.7, "weight_decay": 0.01}),
    ("ftrl", {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02}),
    ("ftrl", {"l2_shrinkage_regularization_strength": 0.01, "beta": 0.1, "weight_decay": 0.01}),
    ("ftrl", {"learning_rate_power": -0.7, "learning_rate": 0.01}),
]
STEPS, ROWS, DIM = 100, 6, 5
INITIAL = InitializerSpec("uniform", {"minval": -0.5, "maxval": 0.5}, seed=3)


def label(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *case[1]])


@pytest.fixture(params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return load_kernels(request.param)


def gradients() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(7).normal(size=(STEPS, ROWS, DIM)).astype(np.float32)


def spec_of(name: str, params: dict[str, Any]) -> OptimizerSpec:
    """As a worker makes it: whatever Keras' configuration says, hyper-parameters that ask for nothing included."""
    config = CLASSES[name](**params).get_config()
    numbers = {key: value for key, value in config.items() if key != "name" and not isinstance(value, str)}
    return OptimizerSpec(name, numbers)


_RUNS: dict[tuple[str, bytes], Any] = {}


def keras_run(name: str, params: dict[str, Any], first: Any, grads: Any) -> Any:
    key = (label((name, params)) + repr(params), first.tobytes())
    if key not in _RUNS:
        _RUNS[key] = keras_variable_after(name, params, first, grads)
    return _RUNS[key]


def keras_variable_after(name: str, params: dict[str, Any], first: Any, grads: Any) -> Any:
    variable = keras.Variable(first.copy())
    optimizer = CLASSES[name](**params)
    for grad in grads:
        optimizer.apply([keras.ops.convert_to_tensor(grad)], [variable])
    return np.asarray(variable)


def test_every_named_optimizer_is_tested() -> None:
    assert {name for name, _ in CASES} == set(KERAS_FAMILIES)


@pytest.mark.rotates(turns=5)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_dense_update_equals_keras(case: tuple[str, dict[str, Any]], kernels: KernelSet) -> None:
    first = np.random.default_rng(2).uniform(-0.5, 0.5, (ROWS, DIM)).astype(np.float32)
    grads = gradients()
    partition = Partition(kernels)
    part = DenseInit(DenseSpec("w", first.shape), 0, first.size, first.reshape(-1))
    partition.push_model([part], [], spec_of(*case), UpdateMode())
    for grad in grads:
        partition.apply([Changes({"w": grad.reshape(-1)})])
    (value,) = partition.dense.read(-1)
    expected = keras_run(*case, first, grads)
    assert np.abs(expected - first).max() > 1e-5
    np.testing.assert_allclose(value.values.reshape(first.shape), expected, rtol=0, atol=1e-6)


@pytest.mark.rotates(turns=5)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_sparse_update_of_all_rows_equals_keras_dense(case: tuple[str, dict[str, Any]], kernels: KernelSet) -> None:
    ids = np.array([10**12, 3, 77, 0, 5, 8])
    partition = Partition(kernels)
    partition.push_model([], [TableSpec("t", DIM, INITIAL)], spec_of(*case), UpdateMode())
    first, last = np.empty((ROWS, DIM), np.float32), np.empty((ROWS, DIM), np.float32)
    partition.tables["t"].read(ids, first)
    grads = gradients()
    shuffled = np.random.default_rng(4)
    for grad in grads:
        order = shuffled.permutation(ROWS)
        partition.apply([Changes(rows={"t": (ids[order], np.ascontiguousarray(grad[order]))})])
    partition.tables["t"].read(ids, last)
    np.testing.assert_allclose(last, keras_run(*case, first, grads), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_sparse_update_of_some_rows_leaves_the_others_and_their_slots(
    case: tuple[str, dict[str, Any]], kernels: KernelSet
) -> None:
    """Against one dense parameter for each row, updated at the steps at which its row is touched."""
    optimizer = spec_of(*case)
    partition = Partition(kernels)
    partition.push_model([], [TableSpec("t", DIM, INITIAL)], optimizer, UpdateMode())
    ids = np.arange(ROWS) * 31
    table = partition.tables["t"]
    first, last = np.empty((ROWS, DIM), np.float32), np.empty((ROWS, DIM), np.float32)
    table.read(ids, first)
    made = Optimizer(optimizer)
    update = load_kernels("numpy").update(made.kernel)
    records = [np.concatenate([row, np.repeat(made.slot_values(), DIM)]).reshape(1, -1) for row in first]
    random = np.random.default_rng(9)
    for step, grad in enumerate(gradients(), start=1):
        touched = np.flatnonzero(random.random(ROWS) < 0.5)
        partition.apply([Changes(rows={"t": (ids[touched], np.ascontiguousarray(grad[touched]))})])
        for row in touched:
            update(records[row], np.zeros(1, np.int64), grad[row : row + 1], made.numbers(step))
    table.read(ids, last)
    expected = np.concatenate([record[:, :DIM] for record in records])
    np.testing.assert_allclose(last, expected, rtol=0, atol=1e-6)


def test_learning_rate_of_a_push_takes_precedence(kernels: KernelSet) -> None:
    first = np.ones(4, np.float32)
    partition = Partition(kernels)
    part = DenseInit(DenseSpec("w", (4,)), 0, 4, first)
    partition.push_model([part], [], OptimizerSpec("sgd", {"learning_rate": 0.5}), UpdateMode())
    partition.apply([Changes({"w": np.ones(4, np.float32)})], [0.25])
    np.testing.assert_array_equal(partition.dense.read(-1)[0].values, np.full(4, 0.75, np.float32))


def test_excluded_variables_do_not_decay(kernels: KernelSet) -> None:
    partition = Partition(kernels)
    parts = [DenseInit(DenseSpec(n, (2,), weight_decay=n == "w"), 0, 2, np.ones(2, np.float32)) for n in ("b", "w")]
    partition.push_model(parts, [], OptimizerSpec("sgd", {"learning_rate": 1.0, "weight_decay": 0.5}), UpdateMode())
    zero = np.zeros(2, np.float32)
    partition.apply([Changes({"b": zero, "w": zero})])
    values = {value.spec.name: value.values.tolist() for value in partition.dense.read(-1)}
    assert values == {"b": [1.0, 1.0], "w": [0.5, 0.5]}
