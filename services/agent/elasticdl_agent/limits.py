"""Limits of jobs' processes on memory, processes and disk; what takes more is ended, and the reason kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import psutil
import structlog

from elasticdl_agent.directories import AgentDirectories, JobUser
from elasticdl_agent.entry import ProcessEntry
from elasticdl_agent.processes import memory
from elasticdl_agent.processes.logs import note
from elasticdl_agent.processes.quotas import Quotas
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import ProcessSpec, Role
from elasticdl_runtime.items import Items

MEMORY_CHECK_S = 0.5
QUOTA_CHECK_S = 2.0
"""Between two looks at what jobs have on disk; longer where a look takes long."""
QUOTA_CHECK_SHARE = 10
MAX_PROCESSES = 2_048
"""Of one process of a job and all that it started; more are a fork bomb, and end."""
_log = structlog.get_logger(__name__)


class LimitWatch:
    """Watches the processes of jobs, from its making on until it is closed.

    Args:
        directories: where a process' log is.
        running: gives the processes that run now.
        user_of: the user that a job's processes run as, where that is one of its own.
        uids: user ids that are given to jobs.
        quotas: what a job may take of disk and shared memory; by default what it may without settings.

    Attributes:
        oom_kills: whether the kernel killed for memory lately.
    """

    def __init__(
        self,
        directories: AgentDirectories,
        running: Callable[[], Sequence[ProcessEntry]],
        user_of: Callable[[ProcessSpec], JobUser | None],
        uids: range,
        quotas: Quotas | None = None,
    ) -> None:
        self._directories = directories
        self._running = running
        self._user_of = user_of
        self._uids = uids
        self._quotas = quotas or Quotas(directories)
        self._quiet = len(psutil.pids())
        # Tried again soon: what hinders a look must not be a way around the limits.
        self._items = Items("limits", backoff=Backoff(QUOTA_CHECK_S, 5 * QUOTA_CHECK_S))
        self.oom_kills = memory.OomKills()
        self._watches = [
            asyncio.create_task(self._watch_memory(), name="memory-watch"),
            asyncio.create_task(self._watch_quotas(), name="quota-watch"),
        ]

    async def close(self) -> None:
        """Ends the watch."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_CHECK_S)
            try:
                self.oom_kills.look()
                await self._check_numbers()
            except Exception:
                _log.exception("cannot count processes")
            for entry in [entry for entry in self._running() if entry.spec.memory_mib]:
                try:
                    await self._check_memory(entry)
                except Exception:
                    _log.exception("cannot see the memory of a process", process=str(entry.spec.id))

    async def _check_numbers(self) -> None:
        """Ends what started too many processes; looks closer only when the machine has many more than before."""
        present = len(psutil.pids())
        self._quiet = min(self._quiet, present)
        if present <= self._quiet + MAX_PROCESSES:
            return
        for entry in self._running():
            child = entry.child
            if child is None:
                continue
            try:
                found = await asyncio.to_thread(memory.count_processes, child.pid)
            except Exception:
                _log.exception("cannot count the processes of one", process=str(entry.spec.id))
                continue
            if found > MAX_PROCESSES and not entry.ended:
                _log.warning("too many processes", process=str(entry.spec.id), processes=found)
                entry.kill("too_many_processes")

    async def _check_memory(self, entry: ProcessEntry) -> None:
        child, limit = entry.child, entry.spec.memory_mib << 20
        if child is None:
            return
        used = await asyncio.to_thread(memory.resident_bytes, child.pid, limit)
        if used > limit and not entry.ended:
            _log.warning("over its memory limit", process=str(entry.spec.id), bytes=used, limit=limit)
            entry.kill("oom_killed")

    async def _watch_quotas(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(max(QUOTA_CHECK_S, QUOTA_CHECK_SHARE * took))
            began = time.monotonic()
            workers: dict[str, list[ProcessEntry]] = {}
            for entry in self._running():
                if entry.spec.id.role is Role.WORKER:
                    workers.setdefault(entry.spec.id.job_id, []).append(entry)
            round_ = self._items.begin()
            try:
                if self._uids:
                    clear = partial(self._quotas.clear_shared_memory, self._uids, time.time())
                    await round_.handle("shared memory", partial(asyncio.to_thread, clear))
                for job_id, entries in workers.items():
                    await round_.handle(f"disk of {job_id}", partial(self._check_quota, job_id, entries))
                round_.end()
            except UnavailableError as error:
                _log.warning("cannot see what jobs have on disk", error=error.message)
            took = time.monotonic() - began

    async def _check_quota(self, job_id: str, workers: Sequence[ProcessEntry]) -> None:
        """Ends the workers of a job that takes too much; its master says so and ends the job."""
        user = self._user_of(workers[0].spec)
        pids = [entry.child.pid for entry in workers if entry.child is not None]
        over = await asyncio.to_thread(self._quotas.look, job_id, pids, user.uid if user is not None else None)
        if over is None:
            return
        _log.warning("over its quota", job=job_id, why=over.words)
        for entry in workers:
            if entry.child is not None and not entry.ended:
                note(self._directories.log_file(entry.spec.id), f"{over.words}\n")
                entry.kill(over.reason)
