"""Compiled functions of a worker that shares its cores: one thread, unless an operation needs more."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from elasticdl_worker.trainers.tensorflow import compiled
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction

pytestmark = pytest.mark.unit
NUMBERS = (tf.TensorSpec([None], tf.float32),)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "shares_cores", lambda: True)


def test_updates_of_variables_run_in_one_thread() -> None:
    total = tf.Variable(1.0)
    function = CompiledFunction(lambda numbers: total.assign_add(tf.reduce_sum(numbers)), NUMBERS)
    assert [float(function(tf.constant([2.0, 3.0]))), float(function(tf.constant([4.0])))] == [6.0, 10.0]
    assert function._in_one_thread


def test_a_loop_runs_right_whatever_it_needs() -> None:
    total = tf.Variable(1.0)

    def add(numbers: Any) -> Any:
        _, product = tf.while_loop(
            lambda i, p: i < tf.size(numbers), lambda i, p: (i + 1, p * numbers[i]), [0, tf.constant(1.0)]
        )
        return total.assign_add(product)

    function = CompiledFunction(add, NUMBERS)
    assert [float(function(tf.constant([2.0, 3.0]))), float(function(tf.constant([4.0])))] == [7.0, 11.0]


def test_a_mistake_in_the_data_is_raised_after_good_calls() -> None:
    function = CompiledFunction(lambda numbers: tf.gather(numbers, tf.size(numbers) - 1), NUMBERS)
    assert float(function(tf.constant([2.0, 3.0]))) == 3.0
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.zeros([0]))
    assert function._in_one_thread


def test_a_first_call_that_fails_goes_on_with_all_threads() -> None:
    function = CompiledFunction(lambda numbers: numbers[0] + 0.0 * tf.gather(numbers, tf.size(numbers) - 1), NUMBERS)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.zeros([0]))
    assert not function._in_one_thread
    assert float(function(tf.constant([2.0]))) == 2.0
