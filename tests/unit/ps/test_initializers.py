from __future__ import annotations

import math
import tracemalloc
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import InitializerSpec, OptimizerSpec, TableSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.initializers import INITIALIZER_NAMES, first_rows, make_initializer, whole_matrix

pytestmark = pytest.mark.unit

ROWS, DIM = 20_000, 16
KERAS: dict[str, Any] = {
    "uniform": (keras.initializers.RandomUniform, {"minval": -0.2, "maxval": 0.6}),
    "normal": (keras.initializers.RandomNormal, {"mean": 0.3, "stddev": 0.2}),
    "truncated_normal": (keras.initializers.TruncatedNormal, {"mean": -0.1, "stddev": 0.2}),
    "zeros": (keras.initializers.Zeros, {}),
    "ones": (keras.initializers.Ones, {}),
    "constant": (keras.initializers.Constant, {"value": 0.25}),
    "glorot_uniform": (keras.initializers.GlorotUniform, {}),
    "glorot_normal": (keras.initializers.GlorotNormal, {}),
    "he_uniform": (keras.initializers.HeUniform, {}),
    "he_normal": (keras.initializers.HeNormal, {}),
}


def rows(kind: str, params: dict[str, float], ids: Any, *, seed: int = 1, input_dim: int | None = ROWS) -> Any:
    spec = TableSpec("t", DIM, InitializerSpec(kind, params, seed), input_dim)
    table = EmbeddingTable(spec, Optimizer(OptimizerSpec("sgd")), load_kernels())
    out = np.empty((len(ids), DIM), np.float32)
    table.read(np.asarray(ids, np.int64), out)
    return out


def test_every_named_initializer_is_tested() -> None:
    assert set(KERAS) == set(INITIALIZER_NAMES)


@pytest.mark.parametrize("kind", INITIALIZER_NAMES)
def test_the_distribution_is_that_of_keras(kind: str) -> None:
    maker, params = KERAS[kind]
    ours = rows(kind, params, np.arange(ROWS)).reshape(-1).astype(np.float64)
    options = params if kind in {"zeros", "ones", "constant"} else {**params, "seed": 5}
    theirs = np.asarray(maker(**options)((ROWS, DIM))).reshape(-1).astype(np.float64)
    scale = max(theirs.std(), 1e-12)
    # Six standard errors of the mean and of the standard deviation of 320,000 numbers.
    assert abs(ours.mean() - theirs.mean()) < 6 * scale * math.sqrt(2 / ours.size) + 1e-9
    assert abs(ours.std() - theirs.std()) < 6 * scale * math.sqrt(1 / ours.size) + 1e-9
    quantiles = np.linspace(0.01, 0.99, 33)
    np.testing.assert_allclose(np.quantile(ours, quantiles), np.quantile(theirs, quantiles), atol=0.03 * scale + 1e-9)
    assert abs(np.abs(ours).max() - np.abs(theirs).max()) < 0.6 * scale + 1e-9


def test_columns_rows_and_seeds_are_independent() -> None:
    values = rows("normal", {}, np.arange(ROWS))
    correlation = np.corrcoef(values.T)
    assert np.abs(correlation - np.eye(DIM)).max() < 6 / math.sqrt(ROWS)
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 6 / math.sqrt(ROWS)
    other = rows("normal", {}, np.arange(ROWS), seed=2)
    assert abs(np.corrcoef(values.reshape(-1), other.reshape(-1))[0, 1]) < 6 / math.sqrt(ROWS * DIM)


def test_a_row_depends_on_its_id_alone() -> None:
    ids = np.array([5, 10**15, 0, 7])
    together = rows("truncated_normal", {}, ids)
    backwards = rows("truncated_normal", {}, ids[::-1])[::-1]
    alone = np.concatenate([rows("truncated_normal", {}, [i]) for i in ids])
    np.testing.assert_array_equal(together, backwards)
    np.testing.assert_array_equal(together, alone)


def test_an_open_id_space_has_its_dimension_as_fan_in() -> None:
    assert np.abs(rows("he_uniform", {}, np.arange(2000), input_dim=None)).max() == pytest.approx(
        math.sqrt(6 / DIM), rel=1e-3
    )


@pytest.mark.parametrize(
    ("kind", "params", "word"),
    [
        ("orthogonal", {}, "orthogonal"),
        ("uniform", {"stddev": 1.0}, "stddev"),
        ("zeros", {"value": 1.0}, "value"),
        ("normal", {"mean": float("inf")}, "mean"),
        ("normal", {"stddev": -1.0}, "stddev"),
        ("uniform", {"minval": 1.0, "maxval": 0.0}, "minval"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(kind: str, params: dict[str, float], word: str) -> None:
    with pytest.raises(InvalidInputError, match=word) as caught:
        make_initializer(TableSpec("t", 4, InitializerSpec(kind, params)))
    assert caught.value.fix


@pytest.mark.parametrize("block", [1, DIM - 1, DIM, DIM + 1, 7 * DIM, 20 * DIM])
def test_rows_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    spec = TableSpec("t", DIM, InitializerSpec("normal", {}, 4))
    for number in (6, 7, 8):
        ids = np.arange(number)
        expected = first_rows(spec, ids)
        with monkeypatch.context() as patch:
            patch.setattr("elasticdl_runtime.initializers._BLOCK", block)
            np.testing.assert_array_equal(first_rows(spec, ids), expected)


def test_wide_rows_take_little_more_memory_than_their_own() -> None:
    spec = TableSpec("t", 1 << 14, InitializerSpec("uniform", {}, 4))
    tracemalloc.start()
    try:
        made = first_rows(spec, np.arange(500))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - made.nbytes < 20 << 20


def test_a_matrix_may_have_grown_beyond_its_table_but_not_shrunk() -> None:
    """New rows begin as those of the grown table, whose fan-in is its own."""
    old, grown = (TableSpec("t", 4, InitializerSpec("glorot_uniform", seed=3), size) for size in (10, 1000))
    ids, rows = np.array([9]), np.full((1, 4), 7, np.float32)
    matrix = whole_matrix(old, ids, rows, 1000)
    np.testing.assert_array_equal(matrix, whole_matrix(grown, ids, rows, 1000))
    assert np.abs(np.delete(matrix, 9, axis=0)).max() < np.sqrt(6 / 1000)
    with pytest.raises(InvalidInputError, match="the table t has the id 9, and takes ids from 0 to 8"):
        whole_matrix(old, ids, rows, 9)
