"""The life of a process: one event loop, signals set a stop event, everything is released in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from elasticdl_core.errors import ElasticDLError
from elasticdl_runtime import durable
from elasticdl_runtime.telemetry import inspection

EXIT_FENCED = 75
EXIT_INVALID = 64
READY_FILE_VARIABLE = "ELASTICDL_READY_FILE"
_log = structlog.get_logger(__name__)
T = TypeVar("T")


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
        durable.write(Path(place), detail)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits until an event is set, or the time is over; returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        await within(event.wait(), timeout_s)
    return event.is_set()


async def within(awaitable: Awaitable[T], timeout_s: float) -> T:
    """Waits for an answer; what is under way then is cancelled.

    Unlike ``asyncio.wait_for`` of Python 3.11 it never loses a cancellation that comes together with the answer.

    Raises:
        TimeoutError: it did not come in time.
    """
    async with asyncio.timeout(timeout_s):
        return await awaitable


async def settle(*futures: asyncio.Future[Any]) -> None:
    """Waits until all are done; a cancellation meanwhile is raised only then, when what they use may be closed."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def end_all(*futures: asyncio.Future[Any]) -> None:
    """Cancels what is not done, and waits until it has ended (``settle``); what they raised is not raised here."""
    for future in futures:
        future.cancel()
    try:
        await settle(*futures)
    finally:
        for future in futures:
            if future.done() and not future.cancelled():
                future.exception()  # retrieved: nobody else may ask


async def to_its_end(change: Coroutine[Any, Any, T]) -> T:
    """Makes a change of several steps. Who is cancelled meanwhile goes on only when it has been made, or has failed.

    Args:
        change: it; its deadlines are those of what it awaits.
    """
    task = asyncio.create_task(change)
    await settle(task)
    return task.result()


async def in_thread(
    work: Callable[[], T], *, threads: Executor | None = None, abandon: Callable[[T], object] | None = None
) -> T:
    """Does something that blocks in a thread. Who is cancelled goes on only when the thread has ended.

    So what the thread uses can be closed then, and nothing that it opened is lost.

    Args:
        work: what blocks.
        threads: where; the loop's own by default.
        abandon: gets what was made for a caller that was cancelled meanwhile.
    """
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        await settle(future)
    except asyncio.CancelledError:
        if not future.cancelled() and future.exception() is None and abandon is not None:
            abandon(future.result())
        raise
    return future.result()
