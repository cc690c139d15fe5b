"""Retries: how long the pauses are, and when there is no further attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.backoff import Backoff
from elasticdl_runtime.retry import Attempts

pytestmark = pytest.mark.unit


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff(0.5, 4.0)
    assert [backoff.pause_s(tries, lambda: 1.0) for tries in range(1, 6)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert backoff.pause_s(10_000, lambda: 1.0) == 4.0


@given(st.integers(1, 100), st.floats(0.0, 1.0))
def test_a_pause_is_between_half_and_the_whole(tries: int, drawn: float) -> None:
    backoff = Backoff(0.25, 8.0)
    assert backoff.pause_s(tries, lambda: 1.0) / 2 <= backoff.pause_s(tries, lambda: drawn)
    assert backoff.pause_s(tries, lambda: drawn) <= backoff.pause_s(tries, lambda: 1.0)


async def test_the_first_attempt_is_made_at_once_and_the_last_within_the_patience() -> None:
    clock = Clock()
    attempts = Attempts(Backoff(1.0, 4.0), 20.0, sleep=clock.sleep, clock=clock)
    begun = []
    async for number in attempts:
        begun.append(clock.now)
        assert number == len(begun) - 1
    assert begun[0] == 0.0
    assert begun[-1] <= 20.0 < begun[-1] + 4.0
    assert attempts.seconds == clock.now == sum(clock.pauses)


async def test_patience_of_nothing_is_one_attempt() -> None:
    clock = Clock()
    assert [number async for number in Attempts(Backoff(1.0, 1.0), 0.0, sleep=clock.sleep, clock=clock)] == [0]
    assert clock.pauses == []


async def test_without_an_end_to_patience_it_goes_on() -> None:
    clock = Clock()
    async for number in Attempts(Backoff(0.1, 5.0), sleep=clock.sleep, clock=clock):
        if number == 200:
            break
    assert len(clock.pauses) == 200
    assert 2.5 <= clock.pauses[-1] <= 5.0


async def test_what_worked_for_a_while_begins_with_the_shortest_pause_again() -> None:
    clock = Clock()
    attempts = Attempts(Backoff(1.0, 64.0), sleep=clock.sleep, clock=clock)
    for _ in range(5):
        assert await attempts.pause()
    attempts.reset()
    assert await attempts.pause()
    assert clock.pauses[-2] >= 8.0
    assert clock.pauses[-1] <= 1.0
