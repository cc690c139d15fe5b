"""Counts what is taken while a plan is being made, against the capacity and each team's limit."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Mapping, Sequence

from elasticdl_core.devices import WHOLE, DevicePool, Place
from elasticdl_core.scheduling.snapshot import DIMENSIONS, GPU, JobView, Quota, Resources, Snapshot

_ROUNDING = 1e-9

NO_QUOTA = Quota()


class Obstacle(enum.Enum):
    """The obstacle that a request ran into."""

    CAPACITY = "capacity"
    DEVICES = "devices"
    LIMIT = "limit"


class CapacityTracker:
    """Free amounts of the cluster and used amounts of each team.

    Attributes:
        total: the limited resources' amounts.
        free: what is left of them.
        slots_only: whether nothing but slots is counted, for the whole cluster: as long as nobody asks for a device.
        cost_basis: what the cost of a worker depends on.
        pool: what is left of each device; None where nobody asks for one, or they are not told apart.

    Args:
        snapshot: whose capacity and quotas are counted against. Nothing is taken at first.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._dims = snapshot.limited
        self.total = self._pick(snapshot.capacity.total)
        self._set_aside = snapshot.capacity.set_aside
        self.free = list(self.total)
        self._quotas = snapshot.quotas
        self._used: dict[str, list[float]] = {}
        self._limits = {
            team: self._pick(quota.limit) for team, quota in snapshot.quotas.items() if quota.limit is not None
        }
        self.slots_only = self._dims == (0,) and not self._limits
        self.cost_basis = () if self._dims == (0,) else self.total
        self.pool: DevicePool | None = None
        self._placed: dict[str, list[Place]] = {}
        self._shares: dict[str, int] = {}
        if GPU in self._dims and (snapshot.capacity.devices or not snapshot.capacity.total.gpu):
            self.pool = DevicePool([WHOLE] * len(snapshot.capacity.devices))
            self._lived_on = [0] * len(snapshot.capacity.devices)
            self._names = tuple(device.name for device in snapshot.capacity.devices)
            for job in snapshot.jobs:
                self._count_lived_on(job, job.places, 1)

    def _pick(self, resources: Resources) -> tuple[float, ...]:
        vector = resources.vector()
        return tuple(vector[i] for i in self._dims)

    def copy(self) -> CapacityTracker:
        """One that counts on from here without changing this one."""
        other = copy.copy(self)
        other.free = list(self.free)
        other._used = {team: list(amounts) for team, amounts in self._used.items()}
        if self.pool is not None:
            other.pool = self.pool.copy()
            other._placed, other._shares = {**self._placed}, {**self._shares}
            other._lived_on = list(self._lived_on)
        return other

    def quota(self, team: str) -> Quota:
        """The team's quota, or the default one."""
        return self._quotas.get(team, NO_QUOTA)

    def change(self, job: JobView, have: int, want: int) -> tuple[float, ...]:
        """The resources of going from ``have`` to ``want`` workers, by limited resource; negative if given back."""
        worker, fixed = job.worker.vector(), job.fixed.vector()
        times = want - have
        heads = (want > 0) - (have > 0)
        return tuple(times * worker[i] + heads * fixed[i] for i in self._dims)

    def obstacle(self, job: JobView, have: int, want: int) -> Obstacle | None:
        """The obstacle to the change, or None if it fits."""
        if self.slots_only:
            heads = (want > 0) - (have > 0)
            need = (want - have) * job.worker.slots + heads * job.fixed.slots
            return None if need <= self.free[0] + _ROUNDING else Obstacle.CAPACITY
        change = self.change(job, have, want)
        limit = self._limits.get(job.team)
        if limit is not None:
            used = self._used.get(job.team) or [0.0] * len(self._dims)
            if any(
                amount > 0 and have_now + amount > most + _ROUNDING
                for have_now, amount, most in zip(used, change, limit, strict=True)
                if most > 0
            ):
                return Obstacle.LIMIT
        short = self._short_of(change)
        if short is not None:
            return Obstacle.DEVICES if short == GPU else Obstacle.CAPACITY
        if self.pool is not None and job.worker.gpu and self._find(job, have, want) is None:
            return Obstacle.DEVICES
        return None

    def _short_of(self, change: Sequence[float]) -> int | None:
        for dimension, amount, room in zip(self._dims, change, self.free, strict=True):
            if amount > 0 and amount > room + _ROUNDING:
                return dimension
        return None

    def short_of(self, job: JobView, have: int, want: int) -> str | None:
        """The resource of which too little is free for the change, by its name; None if there is enough of each."""
        dimension = self._short_of(self.change(job, have, want))
        return None if dimension is None else DIMENSIONS[dimension]

    def take(self, job: JobView, have: int, want: int) -> None:
        """Books the change."""
        if self.slots_only:
            heads = (want > 0) - (have > 0)
            amount = (want - have) * job.worker.slots + heads * job.fixed.slots
            self.free[0] -= amount
            self._used.setdefault(job.team, [0.0])[0] += amount
            return
        change = self.change(job, have, want)
        used = self._used.setdefault(job.team, [0.0] * len(self._dims))
        for i, amount in enumerate(change):
            self.free[i] -= amount
            used[i] += amount
        if self.pool is not None and job.worker.gpu:
            self._book(job, have, want)

    def _find(self, job: JobView, have: int, want: int) -> list[Place] | None:
        """The places of the workers from ``have`` to ``want``; None if they do not all have one.

        A worker that lives stays where it is: if its place was given to somebody more important, its job has to let
        it go before it gets another.
        """
        assert self.pool is not None
        share, pool = job.device_share, self.pool.copy()
        places = list(job.places[have:want])
        for place in places:
            if not pool.holds(share, place):
                return None
            pool.take(share, place)
        fresh = want - have - len(places)
        if fresh > pool.room(share):
            return None
        for _ in range(fresh):
            found = pool.find(share, self._lived_on)
            if found is None:
                return None
            pool.take(share, found)
            places.append(found)
        return places

    def _book(self, job: JobView, have: int, want: int) -> None:
        assert self.pool is not None
        places = self._find(job, have, want) or []
        for place in places:
            self.pool.take(job.device_share, place)
        self._count_lived_on(job, job.places[have:want], -1)
        self._placed.setdefault(job.id, []).extend(places)
        self._shares[job.id] = job.device_share

    def _count_lived_on(self, job: JobView, places: Sequence[Place], times: int) -> None:
        """Counts where workers live of jobs that nothing is booked for yet: others rather go elsewhere."""
        amount = min(job.device_share, WHOLE) * times
        for number in (number for place in places for number in place):
            if number < len(self._lived_on):
                self._lived_on[number] += amount

    def beyond(self, need: Sequence[float]) -> list[float]:
        """The resources free beyond a need: others may have them, whenever the rest of the need comes.

        Of devices that is nothing: what is left in pieces may be just what is waited for.
        """
        rooms = [max(free - amount, 0.0) for free, amount in zip(self.free, need, strict=True)]
        placed = self.pool is not None and need[self._dims.index(GPU)] > 0
        return [0.0 if placed and i == GPU else room for i, room in zip(self._dims, rooms, strict=True)]

    def places_of(self, job: JobView) -> list[Place]:
        """The places that are booked for a job."""
        return self._placed.get(job.id, [])

    def device_holders(self) -> list[tuple[str, float]]:
        """The jobs that devices are booked for, with how many, those that hold most first."""
        rows = [(job_id, self._shares[job_id] * len(places) / WHOLE) for job_id, places in self._placed.items()]
        return sorted((row for row in rows if row[1]), key=lambda row: (-row[1], row[0]))

    def free_devices(self) -> list[tuple[str, float]]:
        """The devices of which something is left, with how much."""
        assert self.pool is not None
        return [(name, free / WHOLE) for name, free in zip(self._names, self.pool.free, strict=True) if free > 0]

    def total_of(self, name: str) -> float:
        """The whole amount of a resource, by its name."""
        dimension = DIMENSIONS.index(name)
        return self.total[self._dims.index(dimension)] if dimension in self._dims else 0.0

    def take_all(self, amounts: Mapping[str, float]) -> bool:
        """Books slots by team, if slots alone are counted and all of it fits.

        Returns:
            Whether it was booked; if not, nothing was.
        """
        if not self.slots_only:
            return False
        total = math.fsum(amounts.values())
        if total > self.free[0] + _ROUNDING:
            return False
        self.free[0] -= total
        for team, amount in amounts.items():
            self._used.setdefault(team, [0.0])[0] += amount
        return True

    def take_surplus(self, team: str, slots: float) -> bool:
        """Books slots above the minimums for jobs of a team, if slots alone are counted.

        Returns:
            Whether it was booked; if not, each job has to be booked on its own.
        """
        if not self.slots_only or slots > self.free[0] + _ROUNDING:
            return False
        self.free[0] -= slots
        self._used.setdefault(team, [0.0])[0] += slots
        return True

    @property
    def installed(self) -> float:
        """Slots that there are, with those that jobs may not take now."""
        return self.total[0] + self._set_aside

    def aside_in_words(self) -> str:
        """The obstacle between jobs and the rest of the slots, for the middle of a sentence."""
        return f" ({self._set_aside:g} of {self.installed:g} are reserved or kept free)" if self._set_aside else ""

    def lacks_what_is_set_aside(self, job: JobView, workers: int) -> bool:
        """Whether that size fits the machines, but not the slots that jobs may take now."""
        return job.demand(workers).slots > self.total[0] + _ROUNDING

    def possible(self, job: JobView, workers: int) -> Obstacle | None:
        """The obstacle to that size even on an empty cluster, or None."""
        change = self.change(job, 0, workers)
        limit = self._limits.get(job.team)
        if limit is not None and any(
            amount > most + _ROUNDING for amount, most in zip(change, limit, strict=True) if most > 0
        ):
            return Obstacle.LIMIT
        most_ever = (self.installed, *self.total[1:])
        for dimension, amount, most in zip(self._dims, change, most_ever, strict=True):
            if amount > most + _ROUNDING:
                return Obstacle.DEVICES if dimension == GPU else Obstacle.CAPACITY
        if self.pool is not None and job.worker.gpu:
            empty = DevicePool([WHOLE] * len(self.pool.free))
            return Obstacle.DEVICES if empty.room(job.device_share) < workers else None
        return None

    def too_much_of(self, job: JobView, workers: int) -> tuple[str, float, float]:
        """The resource of which that size needs more than there is at all, what it needs and what there is."""
        need = self.change(job, 0, workers)
        for dimension, amount, most in zip(self._dims, need, (self.installed, *self.total[1:]), strict=True):
            if amount > most + _ROUNDING:
                return DIMENSIONS[dimension], amount, most
        return "slots", need[0], self.installed

    def free_of(self, name: str) -> float:
        """The free amount of a limited resource, by its name."""
        return self.free[self._dims.index(DIMENSIONS.index(name))]

    def dominant(self, amounts: Sequence[float]) -> float:
        """The largest fraction of the cluster among the amounts (the dominant share)."""
        return max(
            (amount / total for amount, total in zip(amounts, self.total, strict=True) if total > 0),
            default=0.0,
        )

    def team_share(self, team: str) -> float:
        """The team's dominant share divided by its weight."""
        used = self._used.get(team)
        return self.dominant(used) / max(self.quota(team).weight, _ROUNDING) if used else 0.0

    def team_cost(self, team: str) -> float:
        """The team's use, in slot equivalents of its dominant resource."""
        used = self._used.get(team)
        return self.dominant(used) * self.total[0] if used else 0.0

    def worker_cost(self, job: JobView) -> float:
        """The cost of one worker, in slot equivalents of its dominant resource."""
        if self._dims == (0,):
            return job.worker.slots
        return self.dominant(self._pick(job.worker)) * self.total[0]

    def free_cost(self) -> float:
        """The free slots; what is free of other resources is checked at each step."""
        return max(self.free[0], 0.0)
