"""The cluster at a glance: slots, jobs by state, how each component is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from elasticdl_api.schemas.jobs import ClusterDevice, ClusterResponse, ClusterSlots, DeviceHolder
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.jobs import JobStore
from elasticdl_api.store.scheduling import SchedulingStore
from elasticdl_core.devices import WHOLE
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse, Launcher


class ClusterOverview:
    """Looks at the cluster.

    Args:
        jobs: counts jobs, and knows who leads the schedulers.
        launcher: tells the capacity; None when there is no agent.
        settings: say for how long things are kept.
        scheduling: knows whose jobs are.
    """

    def __init__(
        self, jobs: JobStore, launcher: Launcher | None, settings: ApiSettings, scheduling: SchedulingStore
    ) -> None:
        self._jobs = jobs
        self._scheduling = scheduling
        self._launcher = launcher
        self._settings = settings

    async def read(self, namespace: str | None) -> ClusterResponse:
        """The cluster as a reader of that namespace sees it.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        counts, led = await self._jobs.look_at_all(namespace)
        capacity, agent = await self.capacity()
        slots = ClusterSlots(
            total=capacity.slots,
            used=sum(capacity.used.values()),
            reserved=sum(one.slots for one in capacity.reservations),
        )
        components = {"database": "ok", "agent": agent, "scheduler": in_words(led=led)}
        seen = await self._seen({use.job_id for use in capacity.device_uses}, namespace)
        return ClusterResponse(
            slots=slots,
            devices=[
                _device(number, device, capacity.device_uses, seen) for number, device in enumerate(capacity.devices)
            ],
            jobs={str(state): number for state, number in counts.items()},
            components=components,
            keeps_days=self._settings.keeps_days,
        )

    async def _seen(self, job_ids: Set[str], namespace: str | None) -> Set[str]:
        """The jobs that a reader of that namespace sees."""
        if namespace is None or not job_ids:
            return job_ids
        return await self._scheduling.filter_by_namespace(sorted(job_ids), namespace)

    async def capacity(self) -> tuple[CapacityInfo, str]:
        """The launcher's capacity, and the state of the agent."""
        if self._launcher is None:
            return CapacityInfo(0), "not configured"
        try:
            return await self._launcher.capacity(), "ok"
        except ElasticDLError as error:
            return CapacityInfo(0), error.message


def in_words(*, led: bool) -> str:
    """The state of the scheduler."""
    return "ok" if led else "no scheduler leads: queued jobs wait"


def _device(number: int, device: DeviceInfo, uses: Sequence[DeviceUse], seen: Set[str]) -> ClusterDevice:
    held: defaultdict[str, list[int]] = defaultdict(list)
    for use in uses:
        if number in use.devices:
            held[use.job_id].append(min(use.share, WHOLE))
    shares = [share for of_job in held.values() for share in of_job]
    most_first = sorted(held, key=lambda job_id: (-sum(held[job_id]), job_id))
    return ClusterDevice(
        name=device.name,
        declared=device.declared,
        memory_mib=device.memory_mib,
        model=device.model,
        used=sum(shares) / WHOLE,
        workers=len(shares),
        jobs=[
            DeviceHolder(job_id=one, workers=len(held[one]), used=sum(held[one]) / WHOLE)
            for one in most_first
            if one in seen
        ],
    )
