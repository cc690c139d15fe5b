"""Minibatches that are read in one go: the same ones, and what ends them comes where it came before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl_worker.bursts import SHORT_S, in_bursts

pytestmark = pytest.mark.unit


class Work:
    """A source of numbers that says how many were asked for, and a clock that goes on with each step."""

    def __init__(self, count: int, step_s: float) -> None:
        self.count, self.step_s = count, step_s
        self.now = 0.0
        self.asked = 0

    def read(self) -> Iterator[int]:
        for number in range(self.count):
            self.asked += 1
            yield number
        raise ValueError("damaged")

    def ahead(self, steps: int) -> list[int]:
        """How many were read by the time that each of some steps has its own."""
        bursts = in_bursts(self.read(), lambda: self.now)
        found = []
        for number, got in zip(range(steps), bursts, strict=False):
            assert got == number
            found.append(self.asked)
            self.now += self.step_s
        return found


def test_short_steps_are_read_four_at_once_and_long_ones_one_by_one() -> None:
    assert Work(20, SHORT_S / 2).ahead(10) == [1, 5, 5, 5, 5, 9, 9, 9, 9, 13]
    assert Work(20, SHORT_S * 2).ahead(4) == [1, 2, 3, 4]


def test_steps_that_become_long_are_read_one_by_one_again() -> None:
    work = Work(20, SHORT_S / 2)
    bursts = in_bursts(work.read(), lambda: work.now)
    for _ in range(5):
        next(bursts)
        work.now += work.step_s
    assert work.asked == 5
    work.now += 10 * SHORT_S
    next(bursts)
    assert work.asked == 6


@pytest.mark.parametrize("count", range(8))
def test_what_was_read_before_a_mistake_is_given_first(count: int) -> None:
    bursts = in_bursts(Work(count, 0.0).read(), lambda: 0.0)
    got = []
    with pytest.raises(ValueError, match="damaged"):
        for number in bursts:
            got.append(number)
    assert got == list(range(count))


@pytest.mark.parametrize("count", range(8))
def test_the_end_is_the_same(count: int) -> None:
    assert list(in_bursts(iter(range(count)), lambda: 0.0)) == list(range(count))
