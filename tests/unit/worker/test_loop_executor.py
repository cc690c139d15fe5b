"""Coroutines that the training thread has the event loop run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect

import pytest

from elasticdl_worker.master.loop_executor import LoopExecutor

pytestmark = pytest.mark.unit


async def test_results_and_errors_reach_the_thread() -> None:
    executor, loop = LoopExecutor(asyncio.get_running_loop()), asyncio.get_running_loop()

    async def double(number: int) -> int:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError(f"{number} is negative")
        return 2 * number

    assert await asyncio.to_thread(lambda: executor.submit(double(21)).result(60)) == 42
    with pytest.raises(ValueError, match="-1 is negative"):
        await asyncio.to_thread(lambda: executor.submit(double(-1)).result(60))
    assert not executor._running


async def test_what_nobody_else_knows_is_kept_until_it_ends() -> None:
    executor = LoopExecutor(asyncio.get_running_loop())
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def wait() -> None:
        begun.set_result(None)
        await ended.wait()

    await asyncio.to_thread(executor.submit, wait())
    await begun
    gc.collect()
    (future,) = executor._running
    assert future.running()
    assert not future.cancel()
    ended.set()
    await asyncio.wrap_future(future)
    assert not executor._running


async def test_a_cancelled_task_ends_the_wait() -> None:
    executor, begun = LoopExecutor(asyncio.get_running_loop()), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(3600)

    future = await asyncio.to_thread(executor.submit, wait())
    await begun.wait()
    (task,) = executor._running.values()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


async def test_a_task_that_is_cancelled_before_its_first_step_ends_the_wait() -> None:
    """The coroutine was never awaited, and whoever waited for it waited for ever."""
    executor, ran = LoopExecutor(asyncio.get_running_loop()), []

    async def run() -> None:
        ran.append(1)

    coroutine = run()
    future = executor.submit(coroutine)
    await asyncio.sleep(0)
    (task,) = executor._running.values()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert (ran, executor._running) == ([], {})


async def test_what_is_given_up_before_its_turn_never_runs() -> None:
    executor, ran = LoopExecutor(asyncio.get_running_loop()), []

    async def run() -> None:
        ran.append(1)

    future = executor.submit(run())
    assert future.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (ran, executor._running) == ([], {})


def test_who_waits_for_a_loop_that_is_closed_before_its_turn_is_told() -> None:
    loop = asyncio.new_event_loop()
    executor, ran = LoopExecutor(loop), []

    async def run() -> None:
        ran.append(True)

    future = executor.submit(run())
    loop.close()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(60.0)
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(run())
    assert ran == []
