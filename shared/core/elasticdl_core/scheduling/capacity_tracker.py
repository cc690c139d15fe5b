"""Counts what is taken while a plan is being made, against the capacity and each team's limit."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

from elasticdl_core.scheduling.snapshot import JobView, Quota, Resources, Snapshot

_ROUNDING = 1e-9

NO_QUOTA = Quota()


class Obstacle(enum.Enum):
    """What a request ran into."""

    CAPACITY = "capacity"
    LIMIT = "limit"


class CapacityTracker:
    """Free amounts of the cluster and used amounts of each team.

    Attributes:
        total: the limited resources' amounts.
        free: what is left of them.
        slots_only: whether nothing but slots is counted, for the whole cluster.
        cost_basis: what the cost of a worker depends on.

    Args:
        snapshot: whose capacity and quotas are counted against. Nothing is taken at first.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._dims = snapshot.capacity.limited
        self.total = self._pick(snapshot.capacity.total)
        self.free = list(self.total)
        self._quotas = snapshot.quotas
        self._used: dict[str, list[float]] = {}
        self._limits = {
            team: self._pick(quota.limit) for team, quota in snapshot.quotas.items() if quota.limit is not None
        }
        self.slots_only = self._dims == (0,) and not self._limits
        self.cost_basis = () if self._dims == (0,) else self.total

    def _pick(self, resources: Resources) -> tuple[float, ...]:
        vector = resources.vector()
        return tuple(vector[i] for i in self._dims)

    def quota(self, team: str) -> Quota:
        """The team's quota, or the default one."""
        return self._quotas.get(team, NO_QUOTA)

    def change(self, job: JobView, have: int, want: int) -> tuple[float, ...]:
        """What going from ``have`` to ``want`` workers takes, by limited resource; negative if it gives back."""
        worker, fixed = job.worker.vector(), job.fixed.vector()
        times = want - have
        heads = (want > 0) - (have > 0)
        return tuple(times * worker[i] + heads * fixed[i] for i in self._dims)

    def obstacle(self, job: JobView, have: int, want: int) -> Obstacle | None:
        """What forbids the change, or None if it fits."""
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
        if any(amount > room + _ROUNDING for amount, room in zip(change, self.free, strict=True) if amount > 0):
            return Obstacle.CAPACITY
        return None

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

    def possible(self, job: JobView, workers: int) -> Obstacle | None:
        """What forbids that size even on an empty cluster, or None."""
        change = self.change(job, 0, workers)
        limit = self._limits.get(job.team)
        if limit is not None and any(
            amount > most + _ROUNDING for amount, most in zip(change, limit, strict=True) if most > 0
        ):
            return Obstacle.LIMIT
        if any(amount > most + _ROUNDING for amount, most in zip(change, self.total, strict=True)):
            return Obstacle.CAPACITY
        return None

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
        """What the team uses, in slot equivalents of its dominant resource."""
        used = self._used.get(team)
        return self.dominant(used) * self.total[0] if used else 0.0

    def worker_cost(self, job: JobView) -> float:
        """What one worker takes, in slot equivalents of its dominant resource."""
        if self._dims == (0,):
            return job.worker.slots
        return self.dominant(self._pick(job.worker)) * self.total[0]

    def free_cost(self) -> float:
        """The free slots; what is free of other resources is checked at each step."""
        return max(self.free[0], 0.0)
