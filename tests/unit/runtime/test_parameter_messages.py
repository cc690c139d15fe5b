from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.convert import parameters as convert

pytestmark = pytest.mark.unit


def test_specifications_survive_the_wire() -> None:
    dense = DenseSpec("a", (2, 0, 3), "int64", DenseKind.STATE, weight_decay=False, group=2)
    assert convert.dense_from_message(convert.dense_to_message(dense, 0, 0, -1)) == dense
    assert convert.dense_from_json(convert.dense_to_json(dense)) == dense
    for input_dim in (None, 7):
        table = TableSpec("t", 4, InitializerSpec("normal", {"stddev": 0.1}, 9), input_dim, group=1)
        assert convert.table_from_message(convert.table_to_message(table)) == table
        assert convert.table_from_json(convert.table_to_json(table)) == table
    params = {"beta_1": 0.8, "amsgrad": True}
    for groups in ((), ({"learning_rate": 0.1}, {"weight_decay": 0.0})):
        optimizer = OptimizerSpec("adam", params, groups)
        assert convert.optimizer_from_json(convert.optimizer_to_json(optimizer)) == optimizer
    mode = UpdateMode(False, 3, 2, True)
    assert convert.mode_from_json(convert.mode_to_json(mode)) == mode


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"name": 1}', '{"name": "sgd", "params": 3}', '{"name": "sgd", "groups": [1]}']
)
def test_odd_optimizers_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="optimizer"):
        convert.optimizer_from_json(text)


@pytest.mark.parametrize("mode", [UpdateMode(False, 0), UpdateMode(False, 1, -1)])
def test_modes_that_cannot_work_are_refused(mode: UpdateMode) -> None:
    with pytest.raises(InvalidInputError, match="grads_to_wait"):
        convert.mode_from_json(convert.mode_to_json(mode))


def test_buffers_of_another_size_are_refused() -> None:
    buffers = [memoryview(bytes(12))]
    assert convert.array_of(buffers, 0, "float32", 3, "x").tolist() == [0, 0, 0]
    for index, size in [(0, 2), (0, 4), (1, 3), (-1, 3)]:
        with pytest.raises(InvalidInputError, match="x"):
            convert.array_of(buffers, index, "float32", size, "x")
    with pytest.raises(InvalidInputError, match="ids"):
        convert.ids_of(buffers, 0, "ids")


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100)))
)
def test_bfloat16_is_the_nearest(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    expected = values.astype(ml_dtypes.bfloat16)
    rounded = convert.to_bfloat16(values)
    np.testing.assert_array_equal(rounded, expected.view(np.uint16))
    np.testing.assert_array_equal(convert.from_bfloat16(rounded), expected.astype(np.float32))
