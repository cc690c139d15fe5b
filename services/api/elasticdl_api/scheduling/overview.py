"""The cluster at a glance: slots, jobs by state, how each component is."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl_api.schemas.jobs import ClusterDevice, ClusterResponse, ClusterSlots
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.jobs import JobStore
from elasticdl_core.devices import WHOLE
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse, Launcher


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
        counts, led = await self._jobs.look_at_all(namespace)
        capacity, agent = await self.capacity()
        slots = ClusterSlots(
            total=capacity.slots,
            used=sum(capacity.used.values()),
            reserved=sum(one.slots for one in capacity.reservations),
        )
        scheduler = "ok" if led else "no scheduler leads: queued jobs wait"
        components = {"database": "ok", "agent": agent, "scheduler": scheduler}
        return ClusterResponse(
            slots=slots,
            devices=[_device(number, device, capacity.device_uses) for number, device in enumerate(capacity.devices)],
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


def _device(number: int, device: DeviceInfo, uses: Sequence[DeviceUse]) -> ClusterDevice:
    shares = [min(use.share, WHOLE) for use in uses if number in use.devices]
    return ClusterDevice(
        name=device.name,
        declared=device.declared,
        memory_mib=device.memory_mib,
        model=device.model,
        used=sum(shares) / WHOLE,
        workers=len(shares),
    )
