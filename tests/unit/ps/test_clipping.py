"""The gradient of an update is clipped as a whole, over all that came to it, as Keras and PyTorch clip it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.model import UpdateClipping as Clipping
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.convert.parameters import mode_from_json, mode_to_json

pytestmark = pytest.mark.unit
RATE = 0.5


def _member(w: list[float], rows: dict[int, float], weight: float) -> Changes:
    values = np.array([[value, value] for value in rows.values()], np.float32)
    return Changes({"w": np.array(w, np.float32)}, {"t": (np.array([*rows]), values)}, weight=weight)


ROUND = [_member([3.0, -1.0], {1: 1.0, 2: 1.0}, 1.0), _member([-1.0, 7.0], {2: 4.0}, 3.0)]
W = np.array([0.0, 5.0])
T = np.array([[0.25, 0.25], [3.25, 3.25]])
ALL = math.sqrt(float((W**2).sum() + (T**2).sum()))
LARGEST = 5.0


def _partition(clipping: Clipping, num_ps: int = 1) -> Partition:
    partition = Partition(load_kernels("numpy"), num_ps)
    mode = UpdateMode(use_async=False, grads_to_wait=2, clipping=clipping)
    dense = [DenseInit(DenseSpec("w", (2,), "float32", DenseKind.TRAINABLE), 0, 2, np.zeros(2, np.float32))]
    zeros = TableSpec("t", 2, InitializerSpec("constant", {"value": 0.0}))
    partition.push_model(
        dense, [zeros], OptimizerSpec("sgd", {"learning_rate": RATE}), mode_from_json(mode_to_json(mode))
    )
    return partition


@pytest.mark.parametrize(
    ("clipping", "of_w", "of_t"),
    [
        (Clipping(), 1.0, 1.0),
        (Clipping("value", 2.0), np.array([1.0, 2.0 / 5.0]), np.array([[1.0], [2.0 / 3.25]])),
        (Clipping("norm", 2.0), 2.0 / 5.0, 2.0 / math.sqrt(float((T**2).sum()))),
        (Clipping("global_norm", 2.0), 2.0 / ALL, 2.0 / ALL),
        (Clipping("global_norm", 2.0, 2.0, 0.5), 2.0 / (ALL + 0.5), 2.0 / (ALL + 0.5)),
        (Clipping("global_norm", 2.0, math.inf), 2.0 / LARGEST, 2.0 / LARGEST),
        (Clipping("global_norm", 100.0), 1.0, 1.0),
    ],
    ids=["none", "value", "norm", "all", "slack", "largest", "within"],
)
def test_a_round_is_clipped_once(clipping: Clipping, of_w: object, of_t: object) -> None:
    partition = _partition(clipping)
    partition.apply(ROUND)
    np.testing.assert_allclose(partition.dense.read(-1)[0].values, -RATE * W * of_w, rtol=1e-6)
    rows = np.zeros((2, 2), np.float32)
    partition.table("t").read(np.array([1, 2]), rows)
    np.testing.assert_allclose(rows, -RATE * T * of_t, rtol=1e-6)


def test_gradients_that_are_none_stay_as_they_are() -> None:
    for given in (0.0, math.nan, math.inf):
        partition = _partition(Clipping("global_norm", 2.0))
        partition.apply([Changes({"w": np.full(2, given, np.float32)})])
        np.testing.assert_array_equal(partition.dense.read(-1)[0].values, np.float32(-RATE * given))


@pytest.mark.parametrize("by", ["norm", "global_norm"])
def test_a_norm_that_no_server_knows_is_refused(by: str) -> None:
    _partition(Clipping("value", 1.0), num_ps=2)
    with pytest.raises(InvalidInputError, match="over 2 parameter servers"):
        _partition(Clipping(by, 1.0), num_ps=2)


@pytest.mark.parametrize(
    "odd", [Clipping("most", 1.0), Clipping("norm"), Clipping("norm", math.inf), Clipping("norm", 1.0, 0.0)]
)
def test_odd_clipping_is_refused(odd: Clipping) -> None:
    with pytest.raises(InvalidInputError, match="cannot work"):
        mode_from_json(mode_to_json(UpdateMode(clipping=odd)))
