"""Asks the living processes of one job, or of all: a job's processes one inquiry after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from elasticdl_agent.processes.inspection import Inspected, inspect
from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, ProcessId

ALL_S = 3.5
"""Within that time all jobs are asked; processes whose turn has not come by then have no answer."""
GROUP = 256
"""Processes whose files are open at a time."""
NOT_ASKED = "not asked"
Living = Mapping[ProcessId, Inspected | None]
"""By id what is needed to ask it; None for one that does not run yet."""


class ProcessInquiries:
    """Asks processes.

    Args:
        run: the run directory.
        living: the living processes of a job, or of all jobs.
    """

    def __init__(self, run: Path, living: Callable[[str | None], Living]) -> None:
        self._run = run
        self._living = living
        # Of jobs that somebody asks, or waits to ask.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, job_id: str, inquiry: Inquiry, *, seconds: float = 0.0) -> list[InspectedProcess]:
        """Asks the processes of a job."""
        async with self._lock(job_id):
            living = self._living(job_id)
            found = await inspect(self._run, _asked(living), inquiry, seconds=seconds)
        return [*found, *_pending(living)]

    async def ask_all(self, inquiry: Inquiry) -> list[InspectedProcess]:
        """Asks the processes of all jobs together, within some seconds, however many do not answer.

        Jobs that are asked something else at this moment come last.
        """
        deadline = asyncio.get_running_loop().time() + ALL_S
        living = self._living(None)
        jobs = dict.fromkeys(process.job_id for process in living)
        found: dict[ProcessId, InspectedProcess] = {}
        with contextlib.suppress(TimeoutError):
            for group in _groups(sorted(jobs, key=lambda job_id: self._lock(job_id).locked()), living):
                async with asyncio.timeout_at(deadline), contextlib.AsyncExitStack() as stack:
                    for job_id in dict.fromkeys(one.id.job_id for one in group):
                        await stack.enter_async_context(self._lock(job_id))
                    for one in await inspect(self._run, group, inquiry):
                        found[one.id] = one
        missed = [InspectedProcess(one.id, NOT_ASKED) for one in _asked(living) if one.id not in found]
        return [*found.values(), *missed, *_pending(living)]

    def _lock(self, job_id: str) -> asyncio.Lock:
        return self._locks.setdefault(job_id, asyncio.Lock())


def _asked(living: Living) -> list[Inspected]:
    return [one for one in living.values() if one is not None]


def _pending(living: Living) -> Iterable[InspectedProcess]:
    return [InspectedProcess(process, "pending") for process, one in living.items() if one is None]


def _groups(jobs: Iterable[str], living: Living) -> Iterator[list[Inspected]]:
    """Processes in groups, those of a job one after the other."""
    by_job: dict[str, list[Inspected]] = {}
    for one in _asked(living):
        by_job.setdefault(one.id.job_id, []).append(one)
    ordered = [one for job_id in jobs for one in by_job.get(job_id, ())]
    for begin in range(0, len(ordered), GROUP):
        yield ordered[begin : begin + GROUP]
