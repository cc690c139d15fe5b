"""Divides the slots above the minimums among teams: guarantees first, then by weighted dominant share."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from elasticdl_core.scheduling.capacity_tracker import CapacityTracker
from elasticdl_core.scheduling.snapshot import Quota
from elasticdl_core.scheduling.words import slots_of


def contradictions(quotas: Mapping[str, Quota], slots: float, teams: Collection[str]) -> list[str]:
    """Sentences about quotas that cannot be kept as they are.

    Args:
        quotas: by team.
        slots: of the whole cluster; 0 if they are not known.
        teams: those that there are.
    """
    found = [
        f"there is a quota for {team!r}, and no namespace of that name" for team in sorted(set(quotas) - {*teams})
    ]
    if slots and (problem := over_guaranteed(quotas, slots)):
        found.append(f"{problem}: each team gets its part of them")
    return found


def over_guaranteed(quotas: Mapping[str, Quota], slots: float) -> str:
    """Tells that teams are guaranteed more slots together than there are; empty if they are not."""
    total = math.fsum(quota.guaranteed.slots for quota in quotas.values() if quota.guaranteed is not None)
    if total <= slots:
        return ""
    return f"{slots_of(total)} would be guaranteed in all, and the cluster has {slots_of(slots)}"


def team_budgets(tracker: CapacityTracker, demands: Mapping[str, float], held: float = 0.0) -> dict[str, float]:
    """The number of slots above what it has that each team may take.

    Weighted max-min: every team rises to the same level of use over weight, none above its demand, so what one does
    not need the others borrow, and it comes back as surplus shrinks when the owner's demand returns.

    Args:
        tracker: what each team uses already, and what is free.
        demands: slots that each team could use above that.
        held: free slots that are not to be divided: less important jobs are guaranteed them.

    Returns:
        Whole slots by team; their sum is at most what is free.
    """
    free = max(tracker.free_cost() - held, 0.0)
    if len(demands) == 1:
        return {team: min(demand, free) for team, demand in demands.items()}
    used = {team: tracker.team_cost(team) for team in demands}
    guaranteed = {team: _guaranteed(tracker.quota(team), used[team], demands[team]) for team in demands}
    scale = min(1.0, free / total) if (total := sum(guaranteed.values())) > 0 else 1.0
    budgets = {team: amount * scale for team, amount in guaranteed.items()}
    left = free - sum(budgets.values())
    level = _level(tracker, used, budgets, demands, left)
    for team in demands:
        weight = max(tracker.quota(team).weight, 1e-9)
        rise = max(level * weight - used[team] - budgets[team], 0.0)
        budgets[team] = min(demands[team], budgets[team] + rise)
    return _whole(budgets, demands, free, used)


def held_for_guarantees(tracker: CapacityTracker, demands: Mapping[str, float], later: Mapping[str, float]) -> float:
    """The free slots that teams' less important jobs may grow into, as they are guaranteed them.

    Args:
        tracker: what each team uses already.
        demands: slots that each team's jobs of the tier at hand could use above that.
        later: the same of its less important ones.
    """
    held = 0.0
    for team, demand in later.items():
        quota, used = tracker.quota(team), tracker.team_cost(team)
        held += _guaranteed(quota, used + _guaranteed(quota, used, demands.get(team, 0.0)), demand)
    return held


def _guaranteed(quota: Quota, used: float, demand: float) -> float:
    if quota.guaranteed is None:
        return 0.0
    return min(max(quota.guaranteed.slots - used, 0.0), demand)


def _level(
    tracker: CapacityTracker,
    used: Mapping[str, float],
    given: Mapping[str, float],
    demands: Mapping[str, float],
    left: float,
) -> float:
    """The level of use over weight up to which what is left lifts all teams."""
    if left <= 0:
        return 0.0
    weights = {team: max(tracker.quota(team).weight, 1e-9) for team in demands}

    def lifted(level: float) -> float:
        return sum(min(max(level * weights[t] - used[t] - given[t], 0.0), demands[t] - given[t]) for t in demands)

    low, high = 0.0, max((used[t] + demands[t]) / weights[t] for t in demands)
    if lifted(high) <= left:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        if lifted(middle) <= left:
            low = middle
        else:
            high = middle
    return low


def _whole(
    budgets: Mapping[str, float], demands: Mapping[str, float], free: float, used: Mapping[str, float]
) -> dict[str, float]:
    """Rounds down, and gives the slots left over to the largest fractions; names break ties."""
    whole = {team: float(int(amount + 1e-6)) for team, amount in budgets.items()}
    left = int(min(free, sum(demands.values())) - sum(whole.values()) + 1e-6)
    order = sorted(budgets, key=lambda team: (-(round(budgets[team] - whole[team], 6)), used[team], team))
    while left > 0:
        before = left
        for team in order:
            if left > 0 and whole[team] + 1 <= demands[team] + 1e-9:
                whole[team] += 1
                left -= 1
        if left == before:
            break
    return whole
