"""A process of a job that only waits, and answers inspections: what recorded agents launch."""

from __future__ import annotations

import asyncio

from elasticdl_runtime.lifecycle import run_service


async def wait_for_the_end(stop: asyncio.Event) -> int:
    await stop.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(run_service(wait_for_the_end))
