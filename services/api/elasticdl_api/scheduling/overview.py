"""The cluster at a glance: slots, jobs by state, how each component is."""

from __future__ import annotations

from elasticdl_api.schemas.jobs import ClusterResponse, ClusterSlots
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.jobs import JobStore
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher


class ClusterOverview:
    """Looks at the cluster.

    Args:
        jobs: counts jobs, and knows who leads the schedulers.
        launcher: tells the capacity; None when there is no agent.
        settings: say for how long things are kept.
    """

    def __init__(self, jobs: JobStore, launcher: Launcher | None, settings: ApiSettings) -> None:
        self._jobs = jobs
        self._launcher = launcher
        self._settings = settings

    async def read(self, namespace: str | None) -> ClusterResponse:
        """The cluster as a reader of that namespace sees it.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        counts = await self._jobs.count_by_state(namespace)
        capacity, agent = await self.capacity()
        slots = ClusterSlots(
            total=capacity.slots,
            used=sum(capacity.used.values()),
            reserved=sum(one.slots for one in capacity.reservations),
        )
        components = {"database": "ok", "agent": agent, "scheduler": await self._scheduler()}
        return ClusterResponse(
            slots=slots,
            jobs={str(state): number for state, number in counts.items()},
            components=components,
            keeps_days=self._settings.keeps_days,
        )

    async def capacity(self) -> tuple[CapacityInfo, str]:
        """What the launcher has, and how the agent is."""
        if self._launcher is None:
            return CapacityInfo(0), "not configured"
        try:
            return await self._launcher.capacity(), "ok"
        except ElasticDLError as error:
            return CapacityInfo(0), error.message

    async def _scheduler(self) -> str:
        lease = await self._jobs.get_scheduler_lease()
        if lease is None or not lease["alive"]:
            return "no scheduler leads: queued jobs wait"
        return "ok"
