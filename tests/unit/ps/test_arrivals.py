"""Who is expected to bring a gradient, and until when."""

from __future__ import annotations

import pytest

from elasticdl_ps.arrivals import ArrivalEstimator

pytestmark = pytest.mark.unit


def step(arrivals: ArrivalEstimator, worker: int, start: float, took: float = 1.0) -> None:
    arrivals.note_pull(f"worker-{worker}.0", start)
    arrivals.note_push(f"worker-{worker}.0", start + took)


def test_nobody_is_expected_who_never_came() -> None:
    arrivals = ArrivalEstimator()
    assert arrivals.estimate_until(1, 0) is None
    arrivals.note_pull("worker-0.0", 0)
    assert arrivals.estimate_until(1, 0) is None


def test_a_worker_is_expected_for_some_times_what_it_usually_takes() -> None:
    arrivals = ArrivalEstimator()
    step(arrivals, 0, 10, took=2)
    assert arrivals.estimate_until(1, 12) == 12 + 3 * 2
    assert arrivals.estimate_until(1, 18) is None
    arrivals.note_pull("worker-0.0", 20)
    assert arrivals.estimate_until(1, 20) == 20 + 3 * 2


def test_quick_workers_get_a_tenth_of_a_second() -> None:
    arrivals = ArrivalEstimator()
    step(arrivals, 0, 0, took=0.001)
    assert arrivals.estimate_until(1, 0.05) == pytest.approx(0.101)


def test_as_many_must_be_expected_as_gradients_are_missing() -> None:
    arrivals = ArrivalEstimator()
    for worker, took in enumerate((1.0, 3.0, 2.0)):
        step(arrivals, worker, 0, took)
    # They are expected until 1 + 3, 3 + 9 and 2 + 6.
    assert [arrivals.estimate_until(missing, 3) for missing in (1, 2, 3, 4)] == [12, 8, 4, None]
    assert [arrivals.estimate_until(missing, 5) for missing in (1, 2, 3)] == [12, 8, None]


def test_who_waits_brings_nothing_until_it_pulls_again() -> None:
    arrivals = ArrivalEstimator()
    step(arrivals, 0, 0)
    arrivals.note_wait("worker-0.0")
    assert arrivals.estimate_until(1, 1) is None
    arrivals.note_pull("worker-0.0", 5)
    assert arrivals.estimate_until(1, 5) == 8
    # The time that it waited is none of its own.
    arrivals.note_push("worker-0.0", 6)
    assert arrivals.estimate_until(1, 6) == 9


def test_what_is_usual_follows_slowly_and_forgets_pauses() -> None:
    arrivals = ArrivalEstimator()
    step(arrivals, 0, 0, took=1)
    step(arrivals, 0, 10, took=1000)
    usual = 1 + 0.2 * (4 - 1)
    assert arrivals.estimate_until(1, 1010) == pytest.approx(1010 + 3 * usual)
    for start in range(2000, 2100):
        step(arrivals, 0, start, took=0.5)
    assert arrivals.estimate_until(1, 2099.5) == pytest.approx(2099.5 + 3 * 0.5)


def test_a_new_incarnation_replaces_the_one_before() -> None:
    arrivals = ArrivalEstimator()
    step(arrivals, 1, 0)
    step(arrivals, 11, 0)
    arrivals.note_pull("worker-1.1", 1)
    assert arrivals.estimate_until(1, 1) == 4
    assert arrivals.estimate_until(2, 1) is None
