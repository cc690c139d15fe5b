"""Waiting for several calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from elasticdl_core.errors import ElasticDLError

T = TypeVar("T")


async def outcome_of(call: Awaitable[T]) -> T | ElasticDLError:
    """Returns a call's result, or why it failed: for one that must not hide the outcome of another."""
    try:
        return await call
    except ElasticDLError as error:
        return error


async def together(calls: Sequence[Awaitable[T]]) -> Sequence[T]:
    """Awaits all, and lets none run on when one fails."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
