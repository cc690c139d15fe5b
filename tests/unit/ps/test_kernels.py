"""The compiled kernels do what the numpy reference does."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import NO_ID, OptimizerSpec
from elasticdl_ps.kernels import KernelSet, load_kernels
from elasticdl_ps.kernels.compiled import rows as compiled_rows
from elasticdl_ps.kernels.compiled import updates as compiled_updates
from elasticdl_ps.kernels.lines import NONE_GROWN, make_map
from elasticdl_ps.optimizers import Optimizer
from elasticdl_runtime import initializers

pytestmark = pytest.mark.unit

COMPILED, REFERENCE = load_kernels("numba"), load_kernels("numpy")
BOTH = pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["numba", "numpy"])
IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40), max_size=60)


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="fortran"):
        load_kernels("fortran")


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(IDS, max_size=5), asked=IDS)
def test_maps_give_the_same_rows(batches: list[list[int]], asked: list[int]) -> None:
    results = []
    for kernels in (COMPILED, REFERENCE):
        (table, shape), keys, count, rows = make_map(40), np.zeros(400, np.int64), 0, []
        for batch in batches:
            query = np.array(batch, np.int64)
            out = np.empty(len(query), np.int64)
            count = kernels.find_or_insert(table, shape, keys, query, out, count)
            np.testing.assert_array_equal(keys[out], query)
            rows.append(out)
        query = np.array(asked, np.int64)
        found = np.empty(len(query), np.int64)
        missing = kernels.find(table, shape, keys, query, found)
        known = {i for batch in batches for i in batch}
        assert [row >= 0 for row in found] == [i in known for i in asked]
        assert missing == sum(i not in known for i in asked)
        results.append((count, keys[:count], np.concatenate([*rows, found])))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_array_equal(results[0][2], results[1][2])


@BOTH
def test_a_map_that_is_almost_full_still_finds(kernels: Any) -> None:
    (table, shape), keys = make_map(86), np.zeros(1031, np.int64)
    query, out = np.arange(1031) * 1024, np.empty(1031, np.int64)
    assert kernels.find_or_insert(table, shape, keys, query, out, 0) == 1031
    np.testing.assert_array_equal(out, np.arange(1031))
    assert kernels.find(table, shape, keys, query, out) == 0
    np.testing.assert_array_equal(out, np.arange(1031))
    assert kernels.find(table, shape, keys, np.array([1]), np.empty(1, np.int64)) == 1


@BOTH
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_map_that_grows_in_steps_loses_nothing(kernels: Any, data: st.DataObject) -> None:
    """Also where lines overflow, because the map is too small, and rows were given to other ids meanwhile."""
    before, after = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 16))
    before, after = min(before, after), max(before, after)
    (table, shape), keys = make_map(40), np.zeros(400, np.int64)
    shape[:] = before, before, 0
    numbers = st.integers(-400, 10_000)
    ids = np.array(data.draw(st.lists(numbers, unique=True, min_size=1, max_size=150)), np.int64)
    count = kernels.find_or_insert(table, shape, keys, ids, np.empty(len(ids), np.int64), 0)
    model = dict(zip(ids.tolist(), range(count), strict=True))
    for row in data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=20)):
        del model[int(keys[row])]
        keys[row] = NO_ID
        if data.draw(st.booleans()):
            kernels.enter(table, shape, keys, np.array([20_000 + row]), np.array([row]))
            model[20_000 + row] = row
    shape[:] = before, after, NONE_GROWN
    entries = int(np.count_nonzero(table.reshape(-1, 16)[:, :12]))
    fresh = 30_000
    while shape[2]:
        entries -= kernels.grow(table, shape, keys, data.draw(st.integers(1, 5)), True)
        count = kernels.find_or_insert(table, shape, keys, np.array([fresh]), np.empty(1, np.int64), count)
        model[fresh] = count - 1
        fresh, entries = fresh + 1, entries + 1
        found = np.empty(len(model), np.int64)
        assert kernels.find(table, shape, keys, np.array(list(model), np.int64), found) == 0
        assert found.tolist() == list(model.values())
        assert int(np.count_nonzero(table.reshape(-1, 16)[:, :12])) == entries
    assert entries == len(model), "free rows have none any more"


@settings(max_examples=60, deadline=None)
@given(ids=IDS)
def test_merging_adds_up_rows_of_equal_ids(ids: list[int]) -> None:
    array = np.array(ids, np.int64)
    values = np.random.default_rng(0).normal(size=(len(ids), 3)).astype(np.float32)
    results = []
    for kernels in (COMPILED, REFERENCE):
        out_ids, out_values = np.empty_like(array), np.empty_like(values)
        count = kernels.merge_rows(array, values, out_ids, out_values)
        assert list(out_ids[:count]) == list(dict.fromkeys(ids))
        assert kernels.has_duplicates(array) == (count < len(ids))
        results.append(out_values[:count])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_addresses_stay_whole_numbers() -> None:
    """To numba a uint64 to which an int64 is added is a float64, so that an address is converted at each access."""
    ids, rows = np.arange(3), np.ones((3, 8), np.float32)
    calls = {
        compiled_rows.gather: (rows, ids, rows.copy()),
        compiled_rows.merge_rows: (ids, rows, ids.copy(), rows.copy()),
        compiled_updates.sgd: (rows, ids, rows.copy(), np.ones(8, np.float32)),
    }
    for kernel, arguments in calls.items():
        fresh = numba.njit(kernel.py_func)
        fresh(*arguments)
        (code,) = fresh.inspect_llvm().values()
        assert "fptosi" not in code
        assert "fptoui" not in code


def test_gather_and_scatter_copy_the_leading_columns() -> None:
    for kernels in (COMPILED, REFERENCE):
        arena = np.arange(40, dtype=np.float32).reshape(10, 4)
        out = np.full((4, 3), -1, np.float32)
        kernels.gather(arena, np.array([3, -1, 0, 9]), out)
        np.testing.assert_array_equal(out, [[12, 13, 14], [-1, -1, -1], [0, 1, 2], [36, 37, 38]])
        kernels.scatter(arena, np.array([1, 5]), np.zeros((2, 2), np.float32))
        np.testing.assert_array_equal(arena[[1, 5]], [[0, 0, 6, 7], [0, 0, 22, 23]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_found_wherever_they_are(bad: float) -> None:
    for kernels in (COMPILED, REFERENCE):
        assert kernels.all_finite(np.zeros(0, np.uint32))
        for at in (0, 17, 99):
            values = np.full(100, 3.4e38, np.float32)
            assert kernels.all_finite(values.view(np.uint32))
            values[at] = bad
            assert not kernels.all_finite(values.view(np.uint32))


@pytest.mark.parametrize(
    "kind", [initializers.UNIFORM, initializers.NORMAL, initializers.TRUNCATED_NORMAL, initializers.CONSTANT]
)
def test_first_values_are_the_same(kind: int) -> None:
    keys = np.array([0, 1, -5, 2**62, 123456789])
    results = []
    for kernels in (COMPILED, REFERENCE):
        arena = np.full((5, 12), 9, np.float32)
        kernels.initialise(arena, keys, 1, 4, 4, kind, -0.3, 0.7, 2**63 - 1, np.array([0.1, 0.2], np.float32))
        alone = np.empty((3, 4), np.float32)
        kernels.initial_values(alone, keys[1:4], 4, kind, -0.3, 0.7, 2**63 - 1)
        np.testing.assert_array_equal(arena[1:4, :4], alone)
        np.testing.assert_array_equal(arena[1:4, 4:8], np.full((3, 4), 0.1, np.float32))
        np.testing.assert_array_equal(arena[1:4, 8:], np.full((3, 4), 0.2, np.float32))
        assert (arena[[0, 4]] == 9).all()
        results.append(alone)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


UPDATES = {
    "sgd": 0,
    "momentum": 1,
    "nesterov": 1,
    "adam": 2,
    "amsgrad": 3,
    "adagrad": 1,
    "rmsprop": 3,
    "adadelta": 2,
    "adamax": 2,
    "ftrl": 2,
}


@pytest.mark.parametrize(("name", "slots"), UPDATES.items(), ids=[*UPDATES])
@settings(max_examples=12, deadline=None)
@given(
    dim=st.integers(1, 40),
    touched=st.integers(0, 50),
    seed=st.integers(0, 1 << 30),
    switches=st.tuples(st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 1.0])),
)
def test_updates_are_the_same_and_touch_their_rows_only(
    name: str, slots: int, dim: int, touched: int, seed: int, switches: tuple[float, float]
) -> None:
    """At every length of a row: what is left over from eight columns at once is done one by one."""
    random = np.random.default_rng(seed)
    # Squares' averages above the squares of averages, as they are in training.
    before = random.uniform(2, 3, (50, dim * (1 + slots))).astype(np.float32)
    # RMSprop's momentum and centring are the last two; other optimizers divide by the first of them, or pay no heed.
    momentum, centered = switches if name == "rmsprop" else (0.05, 1.0)
    numbers = np.array([0.5, 0.1, 0.01, 0.3, 0.2, 1e-3, momentum, centered, 0, 0, 0, 0], np.float32)
    if name == "rmsprop":
        before[:, 3 * dim :] *= 0.1
        if not momentum:
            before[:, 2 * dim : 3 * dim] *= 0.1
        before = before[:, : dim * (2 + (momentum > 0) + (centered > 0))].copy()
    rows = random.permutation(50)[:touched]
    grads = random.uniform(0.1, 1, (touched, dim)).astype(np.float32)
    results = []
    for kernels in (COMPILED, REFERENCE):
        arena = before.copy()
        kernels.update(name)(arena, rows, grads, numbers)
        others = np.setdiff1d(np.arange(50), rows)
        np.testing.assert_array_equal(arena[others], before[others])
        assert (arena[rows, :dim] != before[rows, :dim]).all()
        results.append(arena)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


DECAYED = {"weight_decay": 0.05, "maximize": True}
IN_PYTORCHS_WORDS = [
    OptimizerSpec("torch.sgd", {"momentum": 0.9, "dampening": 0.1, **DECAYED}),
    OptimizerSpec("torch.sgd", {"momentum": 0.9, "nesterov": True}),
    OptimizerSpec("torch.adam", DECAYED),
    OptimizerSpec("torch.adamw", {**DECAYED, "amsgrad": True}),
    OptimizerSpec("torch.adam", {}, ({"amsgrad": True},)),
    OptimizerSpec("torch.adagrad", {**DECAYED, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    OptimizerSpec("torch.rmsprop", DECAYED),
    OptimizerSpec("torch.rmsprop", {"momentum": 0.5}),
    OptimizerSpec("torch.rmsprop", {"centered": True}),
    OptimizerSpec("torch.rmsprop", {"centered": True, "momentum": 0.5, **DECAYED}),
    OptimizerSpec("torch.rmsprop", {}, ({"centered": True}, {"momentum": 0.5})),
    OptimizerSpec("torch.adadelta", DECAYED),
    OptimizerSpec("torch.adamax", DECAYED),
    OptimizerSpec("torch.nadam", DECAYED),
    OptimizerSpec("torch.radam", DECAYED),
]


def label(spec: OptimizerSpec) -> str:
    return "-".join([spec.name, *spec.params, *(f"{number}{[*group]}" for number, group in enumerate(spec.groups))])


def test_each_kernel_of_pytorchs_optimizers_is_compared() -> None:
    named = {field.name for field in fields(KernelSet) if field.name.startswith("torch_")}
    assert {Optimizer(spec).kernel for spec in IN_PYTORCHS_WORDS} == named


@pytest.mark.parametrize("spec", IN_PYTORCHS_WORDS, ids=label)
@settings(max_examples=12, deadline=None)
@given(dim=st.integers(1, 40), touched=st.integers(0, 50), seed=st.integers(0, 1 << 30), first=st.integers(1, 20))
def test_pytorchs_updates_are_the_same_and_touch_their_rows_only(
    spec: OptimizerSpec, dim: int, touched: int, seed: int, first: int
) -> None:
    """Three updates from fresh slots, at every length of a row; for each group what it does without is left alone."""
    random, optimizer = np.random.default_rng(seed), Optimizer(spec)
    rows = random.permutation(50)[:touched]
    others = np.setdiff1d(np.arange(50), rows)
    for group in range(1 + len(spec.groups)):
        before = random.uniform(-1, 1, (50, dim * (1 + len(optimizer.slots)))).astype(np.float32)
        before[:, dim:] = np.repeat(optimizer.slot_values(group), dim)
        grads = random.uniform(0.1, 1, (3, touched, dim)).astype(np.float32)
        results = []
        for kernels in (COMPILED, REFERENCE):
            arena = before.copy()
            for step, grad in enumerate(grads, first):
                kernels.update(optimizer.kernel)(arena, rows, grad, optimizer.numbers(step, group=group))
            np.testing.assert_array_equal(arena[others], before[others])
            assert (arena[rows, :dim] != before[rows, :dim]).all()
            results.append(arena)
        np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)
