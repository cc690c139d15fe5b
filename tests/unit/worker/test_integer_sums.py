"""Sums of integers that travel as floats: exact for as many microbatches as an update may have."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.job.fields import AT_MOST
from elasticdl_worker.trainers.integer_sums import LIMBS, MOST_SUMMANDS, join, mean, split
from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.tensorflow.model.state import ModelState
from elasticdl_worker.trainers.tensorflow.replica.state_changes import StateChanges

BOUNDS = [1, 2, 255, 256, 257, 511, 1023, 1024, MOST_SUMMANDS]
EDGES = [0, 1, -1, 8191, 8192, -8192, -8193, 2**31, -(2**31), 2**52 - 1, -(2**62), 2**63 - 1, -(2**63)]


def test_all_that_the_option_allows_can_be_added_up() -> None:
    assert AT_MOST["microbatches"] <= MOST_SUMMANDS


@pytest.mark.parametrize("count", BOUNDS)
def test_sums_and_means_are_those_of_whole_numbers(count: int) -> None:
    random = np.random.default_rng(count)
    rows = [random.choice(np.array(EDGES), 40) for _ in range(count - 1)] + [np.resize(np.array(EDGES), 40)]
    total = np.zeros((LIMBS, 40), np.float32)
    for row in rows:
        total += np.stack(split(row)).astype(np.float32)
    sums = list(total.astype(np.int64))
    exact = [sum(int(row[at]) for row in rows) for at in range(40)]
    with np.errstate(over="ignore"):
        wrapped = join(sums)
        below, rest = mean(sums, np.int64(count))
    assert [int(value) for value in wrapped] == [(value + 2**63) % 2**64 - 2**63 for value in exact]
    assert [(int(q), int(r)) for q, r in zip(below, rest, strict=True)] == [divmod(value, count) for value in exact]


class Counting(keras.layers.Layer):
    """Has state of each kind that is no average."""

    def build(self, _: Any) -> None:
        def add(name: str, dtype: str) -> Any:
            return self.add_weight(name=name, shape=[2], dtype=dtype, initializer="zeros", trainable=False)

        self.count, self.latest, self.flag = add("count", "int64"), add("latest", "int64"), add("flag", "bool")

    def call(self, values: Any) -> Any:
        return values


@pytest.mark.parametrize("count", [1, 257, 1024])
def test_tensorflow_state_moves_exactly(count: int) -> None:
    layer = Counting()
    model = keras.Sequential([keras.Input([2]), layer])
    variables = {"count": layer.count, "latest": layer.latest, "flag": layer.flag}
    state = ModelState(model, variables)
    state.rules = {"count": Merge.SUM, "latest": Merge.MEAN, "flag": Merge.MEAN}
    layer.count.assign([998_257, -5])
    changes = StateChanges(state, list(variables), 1)
    big = 2**60 + 1

    @tf.function
    def microbatch() -> Any:
        before = changes.read()
        state.variables["count"].assign_sub([1, -(2**40)])
        state.variables["latest"].assign([big, -3])
        state.variables["flag"].assign([True, False])
        return changes.take(before, tf.constant(1.0), tf.constant(0))

    total = np.zeros(changes.length, np.float32)
    for _ in range(count):
        total += microbatch().numpy()
    tf.function(changes.apply)(tf.constant(total), tf.constant(float(count)))
    assert layer.count.numpy().tolist() == [998_257 - count, -5 + count * 2**40]
    assert layer.latest.numpy().tolist() == [big, -3]
    assert layer.flag.numpy().tolist() == [True, False]


@pytest.mark.parametrize("rule", [Merge.MAX, Merge.MIN, Merge.LAST])
def test_a_selected_value_that_is_no_number_shows_in_the_sums(rule: Merge) -> None:
    """Its bits, which are sent as whole numbers, were finite: a group went on with it where servers refuse it."""
    high = keras.Variable([0.0, 0.0], trainable=False, aggregation="none")
    state = ModelState(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), {"high": high})
    state.rules = {"high": rule}
    changes = StateChanges(state, ["high"], 2)
    for value, finite in (([np.inf, 1.0], True), ([np.nan, 1.0], False)):
        before = changes.read()
        state.variables["high"].assign(value)
        assert np.isfinite(changes.take(before, tf.constant(1.0), tf.constant(1)).numpy()).all() == finite
