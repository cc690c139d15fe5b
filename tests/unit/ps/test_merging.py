"""The changes of several gradients as one: gradients, moving averages, counters."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.merging import Changes, StateUpdate, merge

pytestmark = pytest.mark.unit
KERNELS = load_kernels("numpy")


def state(keep: float, *add: float, records: int = 1) -> Changes:
    return Changes(state={"s": StateUpdate(keep, np.array(add, np.float32))}, records=records)


def merged_state(*members: Changes) -> StateUpdate:
    change = merge(members, KERNELS).state["s"]
    assert isinstance(change, StateUpdate)
    return change


def test_moving_averages_of_many_gradients_take_their_mean_by_records() -> None:
    change = merged_state(state(0.9, 1.0, records=3), state(0.9, 2.0, records=1))
    assert change.keep == pytest.approx(0.9)
    np.testing.assert_allclose(change.add, [1.25], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 4, 17])
def test_a_moving_average_stays_between_what_it_was_and_what_it_is_told(count: int) -> None:
    # Each gradient was computed on 1.0 and moves it a tenth of the way to 0: no number of them leads below 0.
    values = np.ones(1, np.float32)
    merged_state(*(state(0.9, 0.0) for _ in range(count))).apply(values)
    np.testing.assert_allclose(values, [0.9], rtol=1e-6)


def test_counters_are_added_up() -> None:
    change = merged_state(state(1.0, 2.0), state(1.0, 3.0))
    assert (change.keep, change.add.tolist()) == (1.0, [5.0])


def test_of_what_is_replaced_the_last_stays() -> None:
    change = merged_state(state(0.0, 2.0), state(0.0, 3.0))
    assert (change.keep, change.add.tolist()) == (0.0, [3.0])


def test_gradients_weigh_by_their_records() -> None:
    members = [
        Changes({"w": np.full(2, value, np.float32)}, records=records) for value, records in ((1.0, 3), (5.0, 1))
    ]
    total = merge(members, KERNELS).dense["w"]
    np.testing.assert_allclose(total / len(members), [2.0, 2.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "gradient"), [((30.0, 10.0), 2.0), ((0.0, 0.5), 5.0), ((0.0, 0.0), 0.0), ((np.inf, np.inf), 6.0)]
)
def test_gradients_weigh_by_the_denominators_of_their_losses(weights: tuple[float, float], gradient: float) -> None:
    given = zip((1.0, 5.0), weights, strict=True)
    members = [Changes({"w": np.full(2, value, np.float32)}, records=8, weight=weight) for value, weight in given]
    total = merge(members, KERNELS).dense["w"]
    np.testing.assert_allclose(total / len(members), [gradient] * 2, rtol=1e-6)


def test_rows_of_equal_ids_become_one_and_weigh_by_records() -> None:
    def rows(value: float, records: int, *ids: int) -> Changes:
        return Changes(rows={"t": (np.array(ids), np.full((len(ids), 1), value, np.float32))}, records=records)

    ids, gradients = merge([rows(1.0, 3, 7, 9), rows(5.0, 1, 9)], KERNELS).rows["t"]
    found = dict(zip(ids.tolist(), (gradients[:, 0] / 2).tolist(), strict=True))
    assert found == pytest.approx({7: 0.75, 9: 2.0})
