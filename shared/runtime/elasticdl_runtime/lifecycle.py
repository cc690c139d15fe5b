"""The life of a process: one event loop, signals set a stop event, everything is released in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from elasticdl_core.errors import ElasticDLError
from elasticdl_runtime.telemetry import inspection

EXIT_FENCED = 75
EXIT_INVALID = 64
READY_FILE_VARIABLE = "ELASTICDL_READY_FILE"
_log = structlog.get_logger(__name__)


def run_service(main: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Runs a service until it returns or is told to stop (SIGTERM, SIGINT).

    Args:
        main: the service; it gets an event that is set when the process shall stop, and returns the exit code.

    Returns:
        The exit code.
    """

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        inspection.listen(loop)
        return await main(stop)

    try:
        return asyncio.run(body())
    except ElasticDLError as error:
        _log.error("stopped", error=error.message, fix=error.fix)
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INVALID


def announce_ready(detail: str) -> None:
    """Tells whoever started this process that it works, by a file that ``ELASTICDL_READY_FILE`` names.

    For services that answer nobody, whose start could not be told from their end otherwise.

    Args:
        detail: what to show, such as a choice that was made.
    """
    place = os.environ.get(READY_FILE_VARIABLE)
    if place:
        staged = Path(f"{place}.new")
        staged.write_text(detail, encoding="utf-8")
        staged.replace(place)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits until an event is set, or the time is over; returns whether it is set.

    Unlike ``asyncio.wait_for`` of Python 3.11 it never loses a cancellation that comes together with the event.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
