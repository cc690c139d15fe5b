"""Waiting for an event loses neither the event nor a cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl_runtime.lifecycle import wait_for_event, within

pytestmark = pytest.mark.unit


async def test_it_tells_whether_the_event_came() -> None:
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.0)
    event.set()
    assert await wait_for_event(event, 0.0)
    assert await wait_for_event(event, 60.0)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize(
    "wait", [wait_for_event, lambda event, s: within(event.wait(), s)], ids=["event", "any answer"]
)
async def test_a_cancellation_that_comes_with_the_event_is_not_lost(wait: Any, turns: int) -> None:
    event = asyncio.Event()

    async def wait_on() -> None:
        while True:
            await wait(event, 60.0)
            event.clear()

    waiting = asyncio.create_task(wait_on())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    done, _ = await asyncio.wait({waiting}, timeout=60.0)
    assert done, "it goes on"
