"""Stragglers: who is slow by himself, and not who waits for others."""

from __future__ import annotations

import pytest

from elasticdl_master.state.stragglers import find_stragglers, mean_step
from elasticdl_master.state.workers import Worker

pytestmark = pytest.mark.unit


def worker(index: int, steps: int = 100, phase: str = "training", **parts: float) -> Worker:
    return Worker(index, 0, steps=steps, phase=phase, step=parts)


def test_a_worker_that_takes_longer_than_half_as_long_again_is_one() -> None:
    workers = [worker(index, data=0.1, compute=0.9) for index in range(4)]
    assert find_stragglers(workers, alone=True) == frozenset()
    assert find_stragglers([*workers, worker(4, data=0.4, compute=1.0)], alone=True) == frozenset()
    assert find_stragglers([*workers, worker(4, data=1.0, compute=0.9)], alone=True) == {4}


def test_who_waits_for_others_is_none() -> None:
    workers = [worker(index, compute=1.0, push=3.0) for index in range(3)]
    slow = worker(3, compute=4.0, push=0.0)
    assert find_stragglers([*workers, slow], alone=False) == {3}
    idle = worker(4, compute=1.0, wait=60.0)
    assert find_stragglers([*workers, idle], alone=True) == frozenset()


def test_few_steps_and_few_workers_say_nothing() -> None:
    slow = worker(2, compute=9.0)
    assert find_stragglers([worker(0, compute=1.0), slow], alone=True) == frozenset()
    three = [worker(0, compute=1.0), worker(1, compute=1.0)]
    assert find_stragglers([*three, slow], alone=True) == {2}
    assert find_stragglers([*three, worker(2, steps=5, compute=9.0)], alone=True) == frozenset()
    assert find_stragglers([*three, worker(2, phase="compiling", compute=9.0)], alone=True) == frozenset()


def test_the_mean_is_of_those_that_train() -> None:
    workers = [worker(0, compute=1.0), worker(1, compute=3.0), worker(2, phase="waiting", compute=100.0)]
    assert mean_step(workers)["compute"] == 2.0
    assert mean_step([]) == {}
