"""Ends processes that no job needs: of jobs that are over, suspended, evicted or deleted; then their sockets go."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

import structlog

from elasticdl_api.store.intents import IntentStore
from elasticdl_api.web import telemetry
from elasticdl_core.errors import UnavailableError
from elasticdl_core.job.life import JobState
from elasticdl_core.ports.launcher import Launcher, ProcessState, ProcessStatus, Role
from elasticdl_runtime.items import Items, ItemsPass

SETTLE_S = 8.0
"""How long a master may take to put its job away after the end."""
ASIDE_S = 20.0
"""The same for a job that is suspended or evicted."""
UNKNOWN_S = 30.0
"""How long processes of a job that is not in the database are left alone."""
GRACE_S = 8.0
LEFT_AT_ONCE = 100
_log = structlog.get_logger(__name__)


class LeftoverCleanup:
    """Ends left-over processes.

    Args:
        intents: knows the states of jobs.
        launcher: knows and ends the processes.
        clock: monotonic seconds.
        is_new: whether the database has just taken another one's place, so that it is no wonder if it does not know
            a job.
    """

    def __init__(
        self,
        intents: IntentStore,
        launcher: Launcher,
        clock: Callable[[], float] = time.monotonic,
        is_new: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._is_new = is_new
        self._intents = intents
        self._launcher = launcher
        self._clock = clock
        self._unknown_since: dict[str, float] = {}
        self._told_at: dict[str, float] = {}
        self._left: set[str] = set()
        self._items = Items("leftovers", clock, tell=telemetry.tell_of("leftovers"))

    async def step(self) -> None:
        """Looks at all processes once, and ends what nobody needs.

        Raises:
            UnavailableError: the database or the launcher is down.
        """
        living: dict[str, list[ProcessStatus]] = defaultdict(list)
        ended: set[str] = set()
        for status in await self._launcher.list():
            if status.state is not ProcessState.EXITED:
                living[status.id.job_id].append(status)
            else:
                ended.add(status.id.job_id)
        round_ = self._items.begin()
        await self._leave(ended - living.keys(), round_)
        states = await self._intents.read_states(list(living)) if living else {}
        now = self._clock()
        self._unknown_since = {job: self._unknown_since.get(job, now) for job in living if job not in states}
        lost = any(now - since >= UNKNOWN_S for since in self._unknown_since.values())
        if lost and self._is_new is not None and await self._is_new():
            self._unknown_since = dict.fromkeys(self._unknown_since, now)
        self._told_at = {job: at for job, at in self._told_at.items() if job in living}
        for job_id, processes in living.items():
            if self._is_left_over(job_id, states.get(job_id), processes, now):
                end = functools.partial(self._end, job_id, states.get(job_id), processes, now)
                await round_.handle(job_id, end)
        round_.end()

    async def _leave(self, ended: set[str], round_: ItemsPass) -> None:
        """Tells the launcher once of jobs that are over and whose processes all left: it removes their sockets."""
        self._left &= ended
        new = sorted(ended - self._left)
        states = await self._intents.read_states(new) if new else {}

        def is_over(job_id: str) -> bool:
            state = states.get(job_id)
            return state is None or (state[0].terminal and state[1] >= SETTLE_S)

        async def leave(job_id: str) -> None:
            await self._launcher.terminate_job(job_id, grace_s=GRACE_S)
            self._left.add(job_id)

        over = list(filter(is_over, new))
        round_.see(*over)
        for job_id in [job_id for job_id in over if not self._items.is_put_off(job_id)][:LEFT_AT_ONCE]:
            await round_.handle(job_id, functools.partial(leave, job_id))

    def _is_left_over(
        self, job_id: str, found: tuple[JobState, float] | None, processes: list[ProcessStatus], now: float
    ) -> bool:
        if found is None:
            return now - self._unknown_since[job_id] >= UNKNOWN_S
        state, age_s = found
        if state.active:
            return False
        orphaned = not any(status.id.role is Role.MASTER for status in processes)
        return orphaned or age_s >= (SETTLE_S if state.terminal else ASIDE_S)

    async def _end(
        self, job_id: str, found: tuple[JobState, float] | None, processes: list[ProcessStatus], now: float
    ) -> None:
        if now - self._told_at.get(job_id, -GRACE_S) < GRACE_S:
            return
        telemetry.REAPED.inc()
        _log.warning("ending left-over processes", job=job_id, state=found and found[0], processes=len(processes))
        if found is None or found[0].terminal:
            await self._launcher.terminate_job(job_id, grace_s=GRACE_S)
            self._told_at[job_id] = now
            return
        # By process and not by job: meanwhile the job may be starting anew, with processes of its own.
        for status in processes:
            try:
                await self._launcher.terminate(status.id, grace_s=GRACE_S)
            except UnavailableError:
                raise
            except Exception as error:
                _log.info("not ended", process=str(status.id), error=str(error))
        self._told_at[job_id] = now
