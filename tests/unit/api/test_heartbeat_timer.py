"""One timer for many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from elasticdl_api.web import heartbeat_timer as module
from elasticdl_api.web.heartbeat_timer import HeartbeatTimer

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)


class Counting:
    """Counts how often it is called."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.calls = 0
        self._then = then
        self._changed = asyncio.Event()

    def beat(self) -> float:
        self.calls += 1
        self._changed.set()
        self._then()
        return 0.002

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(60):
            while self.calls < calls:
                self._changed.clear()
                await self._changed.wait()


async def test_each_is_called_again_and_again_until_it_is_removed() -> None:
    heartbeat_timer, stays, leaves = HeartbeatTimer(), Counting(), Counting()
    heartbeat_timer.add(stays, 0.0)
    heartbeat_timer.add(leaves, 0.003)
    await leaves.until(3)
    heartbeat_timer.remove(leaves)
    seen = leaves.calls
    await stays.until(stays.calls + 20)
    assert leaves.calls == seen
    assert len(heartbeat_timer) == 1


async def test_who_is_removed_by_another_of_the_same_beat_is_gone() -> None:
    heartbeat_timer = HeartbeatTimer()
    pair: list[Counting] = []
    pair += [Counting(lambda: heartbeat_timer.remove(pair[1])), Counting(lambda: heartbeat_timer.remove(pair[0]))]
    for one in pair:
        heartbeat_timer.add(one, 0.0)
    witness = Counting()
    heartbeat_timer.add(witness, 0.0)
    await witness.until(20)
    assert min(one.calls for one in pair) == 0
    assert len(heartbeat_timer) == 2


async def test_one_that_fails_is_called_no_more_and_the_others_are() -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    heartbeat_timer, broken, sound = HeartbeatTimer(), Counting(fail), Counting()
    heartbeat_timer.add(broken, 0.0)
    heartbeat_timer.add(sound, 0.0)
    await sound.until(10)
    assert broken.calls == 1


async def test_nobody_keeps_no_timer_and_it_begins_anew() -> None:
    heartbeat_timer, first, second = HeartbeatTimer(), Counting(), Counting()
    first._then = lambda: heartbeat_timer.remove(first)
    heartbeat_timer.add(first, 0.0)
    await first.until(2)
    heartbeat_timer.remove(first)
    while heartbeat_timer._timer is not None:  # noqa: ASYNC110 - its last beat finds nobody
        await asyncio.sleep(0.001)
    heartbeat_timer.add(second, 0.0)
    await second.until(2)


async def test_nothing_is_kept_of_those_who_left() -> None:
    heartbeat_timer, witness = HeartbeatTimer(), Counting()
    for _ in range(100):
        one = Counting()
        heartbeat_timer.add(one, 0.01)
        heartbeat_timer.remove(one)
    heartbeat_timer.add(witness, 0.0)
    await witness.until(30)
    assert sum(map(len, heartbeat_timer._due.values())) <= 1
    assert len(heartbeat_timer._due) <= 2
