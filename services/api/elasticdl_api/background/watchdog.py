"""Watches the masters of active jobs: replaces those that died, and fails jobs whose masters keep dying.

``judge`` decides, on plain data; ``Watchdog`` looks, keeps how long something has been wrong, and acts.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from elasticdl_api.background.relay import REFUSED
from elasticdl_api.store.intents import IntentStore, WatchedJob
from elasticdl_api.store.processes import MasterEnding
from elasticdl_api.web import telemetry
from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_core.job.life import JobState, state_without_master
from elasticdl_core.ports.launcher import Launcher, ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.process_life import EndCause, cause_of_exit, describe_exit, ended_by_others
from elasticdl_runtime.items import Items

MAX_FAILURES = 5
"""Masters lost in a row, without the job getting any further, before it fails."""
LEASE_GRACE_S = 2.0
"""How long a lease may be seen expired: the master is silent for that long more than the lease, 10 s in all."""
RETURN_GRACE_S = 10.0
"""The same after the api, its database or the launcher was away: all masters have that long to be heard again."""
MISSING_GRACE_S = 5.0
START_GRACE_S = 90.0
"""How long a new master may take to its lease (measured: under 2 s; a busy machine takes much longer)."""
CANCEL_GRACE_S = 20.0
TERMINATE_GRACE_S = 3.0
_log = structlog.get_logger(__name__)


class Action(enum.Enum):
    """Actions on a master."""

    NOTHING = "nothing"
    WAIT = "wait"
    """Something is wrong, but not for long enough."""
    REPLACE = "replace"
    CONCLUDE = "conclude"


@dataclass(frozen=True, slots=True)
class MasterVerdict:
    """A decision about a master, and its reason.

    Attributes:
        action: what.
        reason: why, for people.
        to: the state to conclude with.
        delay_s: back-off before the new master starts.
        failures: failures in a row, this one included.
        ending: how the master ended, as far as that is known.
    """

    action: Action
    reason: str = ""
    to: JobState | None = None
    delay_s: float = 0.0
    failures: int = 0
    ending: MasterEnding | None = None


_FINE = MasterVerdict(Action.NOTHING)


def judge(
    watched: WatchedJob, process: ProcessStatus | None, wrong_s: float, *, returned: bool = False
) -> MasterVerdict:
    """Decides about the master of an active job.

    Args:
        watched: the job and its lease.
        process: the newest master's process; None if the launcher does not know it.
        wrong_s: seconds since the watchdog first saw what is wrong now.
        returned: whether masters may have been unable to reach the api a moment ago.
    """
    job = watched.job
    alive = process is not None and process.state is not ProcessState.EXITED
    if job.state is JobState.CANCELLING:
        if alive and wrong_s < CANCEL_GRACE_S:
            return MasterVerdict(Action.WAIT, "cancelling")
        reason = "cancelled" if not alive else "cancelled; its master did not answer in time"
        return MasterVerdict(Action.CONCLUDE, reason, to=state_without_master(job.state, job.desired))
    if not watched.delivered:
        return _FINE
    reason, patience = _complaint(watched, process, alive)
    if not reason:
        return _FINE
    if wrong_s < (max(patience, RETURN_GRACE_S) if returned and patience else patience):
        return MasterVerdict(Action.WAIT, reason)
    verdict = _replacement(watched, reason, planned=_ended_by_others(process))
    return replace(verdict, ending=_ending(process, reason))


def _complaint(watched: WatchedJob, process: ProcessStatus | None, alive: bool) -> tuple[str, float]:
    """The fault of a master, and how long it may last; empty if it is fine."""
    if watched.outcome.startswith(REFUSED):
        return f"the master could not be launched: {watched.outcome.removeprefix(REFUSED)}", 0.0
    if process is not None and not alive:
        if process.message:
            return f"the master {describe_exit(process)}", 0.0
        how = f" ({process.reason})" if process.reason else ""
        return f"the master exited with code {process.exit_code}{how}", 0.0
    if watched.lease_alive:
        return "", 0.0
    waits = process is not None and process.state is ProcessState.PENDING
    if waits and state_without_master(watched.job.state, watched.job.desired) is None:
        return "", 0.0  # for room, a node or an image, which no other master would have sooner
    if process is None:
        return "the master's process is gone", MISSING_GRACE_S
    if watched.lease_incarnation == watched.job.master_incarnation:
        return "the master lives but is not heard of", LEASE_GRACE_S
    return "the master did not take the job's lease in time", START_GRACE_S


def _ending(process: ProcessStatus | None, reason: str) -> MasterEnding:
    """The end of a master that is to be replaced; one that still lives is as good as dead."""
    if process is None or process.state is not ProcessState.EXITED:
        return MasterEnding(EndCause.LOST, None, reason)
    cause = EndCause.STOPPED if process.exit_code == 0 else cause_of_exit(process)
    return MasterEnding(cause, process.exit_code, reason)


def _ended_by_others(process: ProcessStatus | None) -> bool:
    """Whether a master ended because it was told to, or lost its machine; that does not count as a failure."""
    if process is None or process.state is not ProcessState.EXITED:
        return False
    return process.exit_code == 0 or ended_by_others(process)


def _replacement(watched: WatchedJob, reason: str, *, planned: bool) -> MasterVerdict:
    job = watched.job
    to = state_without_master(job.state, job.desired)
    if to is not None:
        return MasterVerdict(Action.CONCLUDE, f"{job.desired.reason_to_stop}; {reason}", to=to)
    if planned:
        return MasterVerdict(Action.REPLACE, reason, failures=watched.recent_failures)
    failures = watched.recent_failures + 1
    if failures > MAX_FAILURES:
        return MasterVerdict(
            Action.CONCLUDE,
            f"the master failed {failures} times without any progress; last: {reason}",
            to=JobState.FAILED,
        )
    delay_s = 0.0 if failures == 1 else min(2.0 ** (failures - 2), 16.0)
    return MasterVerdict(Action.REPLACE, reason, delay_s=delay_s, failures=failures)


class Watchdog:
    """Looks after the masters of all active jobs. Replicas may watch the same jobs: only one acts.

    Args:
        intents: the jobs and their leases.
        launcher: knows the processes.
        clock: monotonic seconds.
    """

    def __init__(self, intents: IntentStore, launcher: Launcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._intents = intents
        self._launcher = launcher
        self._clock = clock
        self._items = Items("watchdog", clock, tell=telemetry.tell_of("watchdog"))
        self._wrong_since: dict[tuple[str, int, str], float] = {}
        self._returned_at: float | None = None

    async def step(self) -> None:
        """Looks at every active job once, and acts.

        Raises:
            UnavailableError: the database or the launcher is down. What was held against masters until now is
                forgotten, for they may only have been unable to reach the api.
        """
        if self._returned_at is None:
            self._returned_at = self._clock()
        try:
            watched = await self._intents.list_watched()
            processes = {status.id: status for status in await self._launcher.list()} if watched else {}
            since = {key: at for key, at in self._wrong_since.items() if self._items.is_put_off(key[0])}
            round_ = self._items.begin()
            for item in watched:
                await round_.handle(item.job.id, functools.partial(self._look_at, item, processes, since))
            self._wrong_since = since
            round_.end()
        except UnavailableError:
            self._wrong_since, self._returned_at = {}, None
            raise

    async def _look_at(
        self,
        item: WatchedJob,
        processes: dict[ProcessId, ProcessStatus],
        since: dict[tuple[str, int, str], float],
    ) -> None:
        process_id = ProcessId(item.job.id, Role.MASTER, 0, item.job.master_incarnation)
        process = processes.get(process_id)
        returned = self._returned_at is None or self._clock() - self._returned_at < RETURN_GRACE_S
        verdict = judge(item, process, 0.0, returned=returned)
        if verdict.action is Action.WAIT:
            key = (item.job.id, item.job.master_incarnation, verdict.reason)
            since[key] = self._wrong_since.get(key, self._clock())
            verdict = judge(item, process, self._clock() - since[key], returned=returned)
        if verdict.action is Action.REPLACE:
            await self._replace(item, process_id, verdict)
        elif verdict.action is Action.CONCLUDE and verdict.to is not None:
            await self._conclude(item, verdict.to, verdict.reason, verdict.ending)
            return
        waits_for = process.waits_for if process is not None and not item.lease_alive else ""
        if waits_for and waits_for != item.job.status.get("degraded"):
            await self._intents.tell_trouble(item.job, waits_for)

    async def _replace(self, item: WatchedJob, process_id: ProcessId, verdict: MasterVerdict) -> None:
        replaced = await self._intents.replace_master(
            item.job,
            reason=verdict.reason,
            delay_s=verdict.delay_s,
            failures=verdict.failures,
            ending=verdict.ending or MasterEnding(EndCause.LOST, None, verdict.reason),
        )
        if not replaced:
            return
        telemetry.REPLACED.inc()
        _log.warning("master replaced", job=item.job.id, reason=verdict.reason, failures=verdict.failures)
        try:
            await self._launcher.terminate(process_id, grace_s=TERMINATE_GRACE_S)
        except ElasticDLError as error:
            _log.info("the old master was not told to leave", process=str(process_id), error=error.message)

    async def _conclude(self, item: WatchedJob, to: JobState, reason: str, ending: MasterEnding | None) -> None:
        detail = {}
        if to is JobState.FAILED:
            fix = "read its log: `elasticdl jobs logs ID --role master`, or GET /jobs/{id}/logs?role=master"
            detail = {"error": {"message": reason, "fix": fix, "traceback": ""}}
        if await self._intents.conclude(item.job, to, reason, detail, ending):
            _log.warning("job concluded", job=item.job.id, state=to, reason=reason)
