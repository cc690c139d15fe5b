"""Forecasts of the cluster: the scheduler's view, its policy, and that policy played forward.

The api decides nothing. It reads what the scheduler reads, takes the policy and the quotas that the scheduler
wrote with its last pass, and asks the same pure code. A view is shared by all who ask within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from elasticdl_api.store.scheduling import ObservedCluster, SchedulingStore
from elasticdl_core.errors import ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher
from elasticdl_core.scheduling import DEFAULT_POLICY, Plan, Policy, Snapshot, policy_by_name
from elasticdl_core.scheduling.explanation import MAX_PRIORITY, Eta, eta
from elasticdl_core.scheduling.forecast import Forecast, forecast
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime import scheduling

SHARED_S = 1.0
"""Seconds for which a view is shared."""

AT_ONCE = 2
"""Questions that are computed at the same time; more wait."""

PATIENCE_S = 10.0
"""Seconds that a question waits for its turn."""

T = TypeVar("T")


@dataclass(frozen=True)
class ClusterView:
    """One view. What takes long is worked out when it is first asked for: ask beside the event loop.

    Attributes:
        seen: what Postgres has.
        snapshot: what the policy decides on.
        policy: the scheduler's policy.
        capacity: what the launcher says, or said when the scheduler asked it last.
        priors: mean speeds of past jobs by kind.
    """

    seen: ObservedCluster
    snapshot: Snapshot
    policy: Policy
    capacity: CapacityInfo
    priors: scheduling.Speeds

    @cached_property
    def forecast(self) -> Forecast:
        """The policy played forward."""
        return forecast(self.snapshot, self.policy)

    @property
    def plan(self) -> Plan:
        """The policy's decision on the snapshot, before growth waits for slots to fall free."""
        return self.forecast.plan

    @cached_property
    def granted(self) -> Plan:
        """The same with growth held back: what the scheduler's next pass puts in force."""
        return pace(self.snapshot, self.plan)

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """The jobs' rows by id."""
        return {row["id"]: row for row in self.seen.rows}

    def most_priority(self, job_id: str) -> int:
        """The highest priority that a job of the snapshot may get."""
        return most_priority(self.limits.get(self.snapshot.by_id[job_id].team, {}))

    @cached_property
    def limits(self) -> Mapping[str, Mapping[str, Any]]:
        """The limits of each namespace, by name."""
        return {row["name"]: row["limits"] for row in self.seen.namespaces}

    def eta(self, job_id: str) -> Eta:
        """The expected start and end of a job of the snapshot."""
        return eta(self.snapshot.by_id[job_id], self.forecast, self.snapshot.now)

    def hidden(self, namespace: str | None) -> frozenset[str]:
        """The jobs that a user of that namespace does not see; nobody is hidden from an administrator."""
        if namespace is None:
            return frozenset()
        return frozenset(row["id"] for row in self.seen.rows if row["namespace"] != namespace)


class ClusterViews:
    """Makes views, one at a time, and runs what takes long beside the event loop.

    Args:
        store: reads Postgres.
        launcher: tells the capacity; None when there is no agent.
    """

    def __init__(self, store: SchedulingStore, launcher: Launcher | None) -> None:
        self._store = store
        self._launcher = launcher
        self._making = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._latest: ClusterView | None = None
        self._latest_at = 0.0

    async def get(self, *, fresh: bool = False) -> ClusterView:
        """The present view.

        Args:
            fresh: make a new one, however young the last is.

        Raises:
            UnavailableError: Postgres does not answer, or too many ask at once.
        """
        async with self._making:
            young = time.monotonic() - self._latest_at < SHARED_S
            if self._latest is None or fresh or not young:
                self._latest = await self._make()
                self._latest_at = time.monotonic()
            return self._latest

    async def compute(self, work: Callable[[], T]) -> T:
        """Runs pure work in a thread, when it is its turn.

        Raises:
            UnavailableError: too many ask at once.
        """
        async with self._turn():
            return await asyncio.to_thread(work)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError:
            raise UnavailableError("too many forecasts are asked for at once", fix="try again in a moment") from None
        try:
            yield
        finally:
            self._turns.release()

    async def _make(self) -> ClusterView:
        seen = await self._store.read()
        capacity = await self._capacity(seen.last)
        return await self.compute(lambda: _view_of(seen, capacity))

    async def _capacity(self, last: Mapping[str, Any] | None) -> CapacityInfo:
        if self._launcher is not None:
            try:
                return await self._launcher.capacity()
            except ElasticDLError:
                pass  # What the scheduler heard last is better than nothing.
        told = last["capacity"] if last else {}
        used = {str(k): int(v) for k, v in told.get("used", {}).items()}
        devices, uses = scheduling.devices_from_json(told)
        slots = int(told.get("slots", 0))
        aside = slots - int(told.get("for_jobs", slots))
        memory = int(told.get("memory_mib", 0))
        return CapacityInfo(slots, used, headroom=aside, devices=devices, device_uses=uses, memory_mib=memory)


def _view_of(seen: ObservedCluster, capacity: CapacityInfo) -> ClusterView:
    last = seen.last
    policy = _policy(last["policy"] if last else DEFAULT_POLICY)
    quotas = scheduling.quotas_from_json(last["quotas"], "quotas") if last else {}
    quotas = scheduling.with_limits(quotas, seen.namespaces)
    priors = {**scheduling.mean_speeds(seen.latest), **scheduling.mean_speeds(seen.past)}
    works = scheduling.mean_work(seen.work)
    snapshot = scheduling.snapshot_of(seen.now, seen.rows, priors, capacity, quotas, works=works)
    return ClusterView(seen, snapshot, policy, capacity, priors)


def most_priority(limits: Mapping[str, Any]) -> int:
    """The highest priority by the limits of a namespace."""
    most = limits.get("max_priority")
    return MAX_PRIORITY if most is None else int(most)


def _policy(name: str) -> Policy:
    """The policy of that name; a scheduler of a later release may have one that this api does not know."""
    try:
        return policy_by_name(name)
    except InvalidInputError:
        return policy_by_name(DEFAULT_POLICY)
