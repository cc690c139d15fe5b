"""The speed of a job and its expected end: steady where the job is, quick where it changes, and honest about both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from elasticdl_master.state.speed import SpeedEstimator

pytestmark = pytest.mark.unit
TICK = 0.25

UNEVEN = [
    # Records of two workers by second, made up as unevenly as heartbeats bring them.
    *(0, 0, 512, 0, 2048, 256, 0, 1536, 1024, 0, 2304, 0, 0, 3072, 512, 256, 2816, 0, 1024, 1280),
    *(2048, 0, 512, 2560, 0, 0, 1792, 1536, 256, 1024, 0, 2816, 768, 0, 1280, 2304, 0, 512, 1792, 1024),
]


def feed(
    estimator: SpeedEstimator,
    seconds: int,
    arrive: Callable[[int], float],
    *,
    working: Callable[[int], int] = lambda _: 2,
    each: Callable[[int, float], None] = lambda second, done: None,
) -> float:
    done = 0.0
    for second in range(seconds):
        done += arrive(second)
        for part in range(4):
            estimator.look(int(done), working(second), second + part * TICK)
        each(second, done)
    return done


def test_a_job_whose_beats_are_uneven_has_a_steady_expected_end() -> None:
    estimator = SpeedEstimator()
    total = 10 * sum(UNEVEN)
    ends: list[float] = []

    def note(second: int, done: float) -> None:
        rest = estimator.rest(total - int(done))
        if rest is not None:
            ends.append(second + rest.expected)
            assert rest.low <= rest.expected <= rest.high

    feed(estimator, 80, lambda second: UNEVEN[second % len(UNEVEN)], each=note)
    assert len(ends) > 70
    jumps = [abs(b - a) / a for a, b in itertools.pairwise(ends[12:])]
    assert max(jumps) < 0.15
    assert ends[-1] == pytest.approx(10 * len(UNEVEN), rel=0.12)


def ends_held(seed: int) -> tuple[int, int]:
    """How often the band of a job with uneven speed held its end, of how many times it was asked."""
    rng = random.Random(seed)
    arrivals = [max(0.0, rng.gauss(1000.0, 600.0)) for _ in range(300)]
    total = sum(arrivals)
    estimator, held, asked = SpeedEstimator(), 0, 0

    def note(second: int, done: float) -> None:
        nonlocal held, asked
        rest = estimator.rest(int(total - done))
        if rest is not None and 15 <= second < 290:
            asked += 1
            held += rest.low * 0.97 <= 299 - second <= rest.high * 1.03

    feed(estimator, 300, lambda second: arrivals[second], each=note)
    return held, asked


def test_the_band_holds_the_end_nearly_always() -> None:
    found = [ends_held(seed) for seed in range(8)]
    assert sum(asked for _, asked in found) >= 8 * 270
    assert sum(held for held, _ in found) >= 0.93 * sum(asked for _, asked in found)


def test_slow_steps_are_no_stops() -> None:
    estimator = SpeedEstimator()
    speeds: list[float] = []
    feed(
        estimator,
        200,
        lambda second: 700.0 if second % 7 == 6 else 0.0,
        each=lambda second, _: speeds.append(estimator.samples_per_second),
    )
    assert all(80.0 < speed < 120.0 for speed in speeds[40:]), (min(speeds[40:]), max(speeds[40:]))


def test_twice_the_workers_are_twice_as_fast_at_once() -> None:
    estimator = SpeedEstimator()
    speeds: list[float] = []
    feed(
        estimator,
        60,
        lambda second: 1000.0 if second < 40 else 2000.0,
        working=lambda second: 2 if second < 40 else 4,
        each=lambda second, _: speeds.append(estimator.samples_per_second),
    )
    assert speeds[39] == pytest.approx(1000.0, rel=0.02)
    assert speeds[43] == pytest.approx(2000.0, rel=0.1)


def test_a_pause_changes_nothing_and_a_long_one_leaves_no_speed() -> None:
    estimator = SpeedEstimator()
    feed(estimator, 40, lambda second: 1000.0 if second < 35 else 0.0, working=lambda second: 2 if second < 35 else 0)
    short = estimator.rest(10_000)
    assert short is not None
    assert short.expected == pytest.approx(10.0, rel=0.05)
    for second in range(40, 60):
        estimator.look(35_000, 0, float(second))
    assert estimator.samples_per_second == 0.0
    assert estimator.rest(10_000) is None


def test_pauses_of_every_other_second_are_no_reason_to_know_nothing() -> None:
    """As of a group that evaluates after each short epoch: the rest takes these pauses, too."""
    estimator = SpeedEstimator()
    done = 0.0
    for part in range(240):
        trains = part % 4 < 2
        done += 250.0 if trains else 0.0
        estimator.look(int(done), 2 if trains else 0, part * TICK)
    assert estimator.samples_per_second == pytest.approx(500.0, rel=0.15)
    rest = estimator.rest(10_000)
    assert rest is not None
    assert rest.expected == pytest.approx(20.0, rel=0.15)


def test_a_job_that_hangs_while_it_works_is_shown_slower_and_slower() -> None:
    estimator = SpeedEstimator()
    feed(estimator, 60, lambda second: 1000.0 if second < 30 else 0.0)
    assert estimator.samples_per_second < 150.0
    rest = estimator.rest(30_000)
    assert rest is not None
    assert rest.expected > 40.0


def test_nothing_is_expected_of_a_job_that_just_began() -> None:
    estimator = SpeedEstimator()
    assert (estimator.samples_per_second, estimator.rest(10)) == (0.0, None)
    estimator.look(0, 1, 0.0)
    estimator.look(100, 1, 1.0)
    assert estimator.samples_per_second == pytest.approx(100.0)
    assert estimator.rest(1000) is None
