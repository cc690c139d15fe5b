"""The outbox ends when it is told to, also while something arrives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl_master.outbox import Outbox

pytestmark = pytest.mark.unit


class Api:
    """Takes everything."""

    async def events(self, events: Any) -> None:
        """Takes events."""


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_a_post_is_not_lost(turns: int) -> None:
    outbox = Outbox(Api())  # type: ignore[arg-type]  # all that is asked of it here
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    async def nothing() -> None:
        pass

    outbox.post("something", nothing)
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=60.0)
    assert done, "it goes on"
