from __future__ import annotations

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import ConstraintSpec, DenseKind, DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.dense import check_specs
from elasticdl_ps.store.partition import Changes, DenseInit, Partition
from elasticdl_runtime.convert.parameters import dense_from_json, dense_from_message, dense_to_json, dense_to_message
from elasticdl_runtime.partition import place_dense

pytestmark = pytest.mark.unit

MAX_NORM = ConstraintSpec("max_norm", (1,), {"max_value": 1.0, "epsilon": 1e-7})
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})


def spec(constraint: ConstraintSpec | None, **fields: object) -> DenseSpec:
    return DenseSpec("w", (2, 3), constraint=constraint, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("constraint", "stop", "words"),
    [
        (ConstraintSpec("radial", (0,)), 6, "radial"),
        (ConstraintSpec("max_norm", (1,), {"max_value": 1.0}), 6, "max_norm with"),
        (ConstraintSpec("max_norm", (1,), {"max_value": float("nan"), "epsilon": 0.0}), 6, "max_norm with"),
        (ConstraintSpec("unit_norm", (), {"epsilon": 0.0}), 6, "along the axes"),
        (ConstraintSpec("unit_norm", (1, 1), {"epsilon": 0.0}), 6, "along the axes"),
        (ConstraintSpec("unit_norm", (2,), {"epsilon": 0.0}), 6, "has no axes"),
        (ConstraintSpec("non_neg", (1,)), 6, "along the axes"),
        (MAX_NORM, 3, "its norms need all of it"),
    ],
)
def test_what_cannot_hold_is_refused(constraint: ConstraintSpec, stop: int, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        check_specs([(spec(constraint), 0, stop)])


def test_state_has_no_constraints() -> None:
    with pytest.raises(InvalidInputError, match="constrain trained parameters"):
        check_specs([(spec(ConstraintSpec("non_neg"), kind=DenseKind.STATE), 0, 6)])


def test_a_constraint_travels_and_is_saved() -> None:
    declared = spec(MAX_NORM)
    assert dense_from_message(dense_to_message(declared, 0, 6, 0)) == declared
    assert dense_from_json(dense_to_json(declared)) == declared


def test_a_norm_needs_all_elements_on_one_server() -> None:
    large = DenseSpec("w", (1 << 10, 1 << 10), constraint=MAX_NORM)
    assert len(place_dense([large], 4)) == 1
    elementwise = DenseSpec("w", (1 << 10, 1 << 10), constraint=ConstraintSpec("non_neg"))
    assert len(place_dense([elementwise], 4)) == 4


def test_a_model_that_was_restored_has_the_constraints_of_its_worker() -> None:
    partition, restored = Partition(load_kernels("numpy")), Partition(load_kernels("numpy"))
    values = np.full(6, 3, np.float32)
    partition.push_model([DenseInit(spec(None), 0, 6, values)], [], SGD, UpdateMode())
    restored.become(partition)
    restored.push_model([DenseInit(spec(MAX_NORM), 0, 6, None)], [], SGD, UpdateMode())
    restored.apply([Changes({"w": np.zeros(6, np.float32)})])
    part = restored.dense.part("w")
    assert part is not None
    np.testing.assert_allclose(part.values, np.full(6, 1 / np.sqrt(3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (ConstraintSpec("non_neg"), [[0, 4, 0], [3, 0, 0]]),
        (MAX_NORM, [[0, 0.8, -0.6], [1, 0, 0]]),
        (ConstraintSpec("unit_norm", (1,), {"epsilon": 1e-7}), [[0, 0.8, -0.6], [1, 0, 0]]),
        (
            ConstraintSpec("min_max_norm", (1,), {"min_value": 4, "max_value": 9, "rate": 1, "epsilon": 1e-7}),
            [[0, 4, -3], [4, 0, 0]],
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_each_update_ends_within_the_constraint(constraint: ConstraintSpec, expected: list[list[float]]) -> None:
    partition = Partition(load_kernels("numpy"))
    partition.push_model([DenseInit(spec(constraint), 0, 6, np.zeros(6, np.float32))], [], SGD, UpdateMode())
    partition.apply([Changes({"w": -np.array([0, 4, -3, 3, 0, 0], np.float32)})])
    part = partition.dense.part("w")
    assert part is not None
    np.testing.assert_allclose(part.values.reshape(2, 3), expected, atol=1e-6)
