"""The throughput model."""

from __future__ import annotations

import pytest

from elasticdl_core.scheduling.throughput import LONE_SLOPE, fit, mean_curve

pytestmark = pytest.mark.unit


def law(n: int, a: float = 2.0, b: float = 0.3) -> float:
    return n / (a + b * (n - 1))


def test_a_job_that_follows_the_law_is_predicted_beyond_its_measurements() -> None:
    curve = fit(range(1, 33), {n: law(n) for n in (1, 2, 3, 4, 6, 8)})
    for n in (1, 4, 8):
        assert curve.rate(n) == pytest.approx(law(n))
    assert curve.rate(32) == pytest.approx(law(32), rel=0.1)


def test_with_nothing_known_speed_is_nearly_linear() -> None:
    curve = fit(range(1, 9), {})
    assert curve.rate(8) == pytest.approx(8 / (1 + 7 * LONE_SLOPE))
    assert curve.measured_up_to == 0


def test_the_shape_of_similar_jobs_is_used_at_the_level_of_this_one() -> None:
    prior = {n: law(n) for n in (1, 2, 4, 8, 16)}
    curve = fit(range(1, 17), {4: 10 * law(4)}, prior)
    assert curve.rate(16) == pytest.approx(10 * law(16))
    assert curve.measured_up_to == 16


def test_sizes_that_are_slower_than_smaller_ones_are_skipped() -> None:
    rates = {1: 10.0, 2: 19.0, 3: 27.0, 4: 34.0, 5: 16.0, 6: 18.0, 7: 22.0, 8: 60.0}
    curve = fit(range(1, 9), rates)
    assert curve.corners[-2:] == (4, 8) or curve.corners[-1] == 8
    assert not {5, 6, 7} & set(curve.corners)
    assert list(curve.gains) == sorted(curve.gains, reverse=True)


def test_the_mean_of_jobs_at_different_levels_keeps_their_shape() -> None:
    mean = mean_curve([{1: 10.0, 2: 18.0}, {2: 36.0, 4: 60.0}])
    assert mean == {1: 10.0, 2: 18.0, 4: pytest.approx(30.0)}


def test_what_a_job_measured_is_not_overruled_by_similar_jobs() -> None:
    """A prior that promised nearly linear speed-up made 40, 41, 42, 42 records/s a 5.4-fold speed-up."""
    own = {1: 40.0, 2: 41.0, 4: 42.0, 8: 42.0}
    curve = fit(range(1, 17), own, {n: 10 * law(n, b=0.01) for n in (1, 2, 4, 8, 16)})
    for n, rate in own.items():
        assert curve.rate(n) == pytest.approx(rate, rel=0.05)
    assert curve.rate(16) < 1.2 * curve.rate(8)


def test_noisy_measurements_that_agree_with_similar_jobs_are_smoothed_by_them() -> None:
    prior = {n: law(n) for n in (1, 2, 4, 8)}
    noisy = {n: law(n) * (1.1 if n in (1, 4) else 0.9) for n in prior}
    curve, alone = fit(range(1, 9), noisy, prior), fit(range(1, 9), noisy)
    errors = [abs(curve.rate(n) / law(n) - 1) for n in prior]
    assert max(errors) < 0.06 < max(abs(alone.rate(n) / law(n) - 1) for n in prior)


def test_the_more_a_job_measured_the_less_its_kind_counts() -> None:
    """As far as the measurements tell anything else."""
    prior = {n: law(n, b=0.1) for n in (1, 2, 4, 8, 16)}

    def error(counts: tuple[int, ...]) -> float:
        return abs(fit(range(1, 17), {n: law(n, b=1.0) for n in counts}, prior).rate(16) / law(16, b=1.0) - 1)

    errors = [error((1, 2, 4, 8)[:known]) for known in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2 < errors[0]
