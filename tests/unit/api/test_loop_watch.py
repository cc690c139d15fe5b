"""What holds the event loop is measured, and named in the log."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from elasticdl_api.background.loop_watch import LoopWatch
from elasticdl_api.web.telemetry import REGISTRY, RequestMeter

pytestmark = pytest.mark.unit


async def _hold(_scope: Any, _receive: Any, _send: Any) -> None:
    _wait_as_no_route_may()


def _wait_as_no_route_may() -> None:
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        time.sleep(0.01)


async def _nothing(*_: Any) -> None:
    return None


async def test_what_holds_the_loop_is_measured_and_named() -> None:
    watch = LoopWatch(warn_s=0.2)
    with structlog.testing.capture_logs() as lines:
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        await RequestMeter(_hold)({"type": "http", "method": "GET", "path": "/jobs/x"}, _nothing, _nothing)
        async with asyncio.timeout(60):
            while not lines:  # noqa: ASYNC110 - the log wakes nobody
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
    line = next(line for line in lines if line["event"] == "the event loop was held")
    assert line["route"] == "GET /jobs/x"
    assert "_wait_as_no_route_may" in line["place"]
    assert watch.most > 0.2
    assert b"elasticdl_api_loop_lag_seconds_bucket" in generate_latest(REGISTRY)
