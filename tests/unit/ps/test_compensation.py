"""Delay compensation corrects a late gradient, at most by the gradient itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_ps.store.compensation import Delay

pytestmark = pytest.mark.unit
numbers = st.floats(-100, 100, width=32)


def test_it_goes_by_how_far_the_parameters_have_moved() -> None:
    delay = Delay(np.zeros(3, np.float32), 2.0)
    found = delay.compensate(np.array([1.0, -1.0, 4.0], np.float32), np.array([0.25, 0.25, -0.125], np.float32))
    np.testing.assert_allclose(found, [1.5, -0.5, 3.0])


@given(gradient=numbers, pulled=numbers, now=numbers, strength=st.floats(0.5, 1000))
def test_it_never_turns_a_gradient_round_nor_more_than_doubles_it(
    gradient: float, pulled: float, now: float, strength: float
) -> None:
    delay = Delay(np.array([pulled], np.float32), strength)
    found = float(delay.compensate(np.array([gradient], np.float32), np.array([now], np.float32))[0])
    low, high = sorted((0.0, 2 * gradient))
    assert low <= found <= high


def test_what_has_not_moved_is_left_alone() -> None:
    at = np.array([3.0, -2.0], np.float32)
    gradient = np.array([0.5, -0.25], np.float32)
    np.testing.assert_array_equal(Delay(at, 50.0).compensate(gradient, at.copy()), gradient)
