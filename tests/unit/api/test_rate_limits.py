"""Token buckets, by a clock of the test's own."""

from __future__ import annotations

import pytest

from elasticdl_api.web.rate_limits import RequestRate, TokenBuckets

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_the_rate() -> None:
    clock, rate = Clock(), RequestRate(2.0, 3)
    buckets = TokenBuckets(clock)
    assert [buckets.take("a", rate).remaining for _ in range(3)] == [2, 1, 0]
    refused = buckets.take("a", rate)
    assert (refused.granted, refused.retry_after_s, refused.reset_s, refused.limit) == (False, 1, 2, 3)
    clock.now += 0.5
    assert buckets.take("a", rate).granted
    assert not buckets.take("a", rate).granted
    clock.now += 1000
    assert [buckets.take("a", rate).granted for _ in range(4)] == [True, True, True, False]


def test_callers_are_told_apart_and_looking_takes_nothing() -> None:
    buckets, rate = TokenBuckets(Clock()), RequestRate(1.0, 1)
    assert buckets.look("a", rate).granted
    assert buckets.take("a", rate).granted
    assert not buckets.look("a", rate).granted
    assert buckets.take("b", rate).granted


def test_the_callers_that_are_remembered_are_bounded() -> None:
    buckets, rate = TokenBuckets(Clock(), most=2), RequestRate(1.0, 1)
    for caller in "abc":
        assert buckets.take(caller, rate).granted
    assert buckets.look("a", rate).granted
    assert not buckets.look("c", rate).granted


def test_a_slow_rate_says_how_long_to_wait() -> None:
    buckets, rate = TokenBuckets(Clock()), RequestRate(0.1, 1)
    assert buckets.take("a", rate).granted
    assert buckets.take("a", rate).retry_after_s == 10
