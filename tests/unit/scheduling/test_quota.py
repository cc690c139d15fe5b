"""What teams are guaranteed: the part that they do not have yet, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.scheduling import Capacity, JobView, Plan, Quota, Resources, Snapshot, policy_by_name
from elasticdl_core.scheduling.capacity_tracker import CapacityTracker
from elasticdl_core.scheduling.quota import contradictions, team_budgets

pytestmark = pytest.mark.unit

NOW = 10_000.0


def _guarantee(slots: float, **more: float) -> Quota:
    return Quota(guaranteed=Resources(slots=slots), **more)


def _tracker(slots: int, used: dict[str, int], quotas: dict[str, Quota]) -> CapacityTracker:
    """A tracker of a cluster in which each team's minimums take so many slots."""
    tracker = CapacityTracker(Snapshot(NOW, (), Capacity.of_slots(slots), quotas))
    for team, workers in used.items():
        tracker.take(JobView(id=f"{team}-job", team=team, submitted_at=0.0, max_workers=workers), 0, workers)
    return tracker


@pytest.mark.parametrize(
    ("used", "guaranteed", "budgets"),
    [
        ({"ads": 4}, 4, {"ads": 0.0, "search": 4.0}),
        ({"ads": 6}, 4, {"ads": 0.0, "search": 2.0}),
        ({"ads": 2, "search": 2}, 6, {"ads": 4.0, "search": 0.0}),
        ({"ads": 2, "search": 2}, 5, {"ads": 3.0, "search": 1.0}),
        ({"search": 4}, 3, {"ads": 4.0, "search": 0.0}),
    ],
)
def test_a_guarantee_counts_what_the_team_already_uses(
    used: dict[str, int], guaranteed: float, budgets: dict[str, float]
) -> None:
    tracker = _tracker(8, used, {"ads": _guarantee(guaranteed)})
    assert team_budgets(tracker, {"ads": 8.0, "search": 8.0}) == budgets


def test_quotas_that_cannot_be_kept_are_told() -> None:
    quotas = {name: Quota(guaranteed=Resources(slots=3.0)) for name in ("a", "b")}
    assert contradictions(quotas, 6, {"a", "b", "c"}) == contradictions({}, 6, ()) == []
    assert contradictions(quotas, 4, {"a"}) == [
        "there is a quota for 'b', and no namespace of that name",
        "6 slots would be guaranteed in all, and the cluster has 4 slots: each team gets its part of them",
    ]


def test_guarantees_that_do_not_fit_together_shrink_in_proportion() -> None:
    quotas = {"ads": _guarantee(6), "search": _guarantee(4)}
    tracker = _tracker(8, {"search": 1}, quotas)
    assert team_budgets(tracker, {"ads": 8.0, "search": 8.0}) == {"ads": 5.0, "search": 2.0}


def test_a_guarantee_beyond_the_demand_is_lent_to_others() -> None:
    tracker = _tracker(8, {}, {"ads": _guarantee(6)})
    assert team_budgets(tracker, {"ads": 1.0, "search": 8.0}) == {"ads": 1.0, "search": 7.0}


def _running(name: str, team: str, workers: int = 1, **fields: Any) -> JobView:
    rates = {n: 10.0 * n for n in (1, 2, 4)}
    values: dict[str, Any] = {"max_workers": 1, "remaining_records": 1e6, "throughput": rates} | fields
    return JobView(
        name, team, state=JobState.RUNNING, current_workers=workers, live_workers=workers, started_at=0.0, **values
    )


def test_a_guarantee_is_a_share_to_grow_into_at_any_time() -> None:
    """A team that was guaranteed the whole cluster got one slot of it, as others' minimums held the rest."""
    owner = _running("owner", "a", max_workers=4)
    others = [_running(f"other-{i}", "b") for i in range(3)]
    waits = JobView("waits", "b", submitted_at=1.0)
    quotas = {"a": _guarantee(4)}

    def decide(*jobs: JobView) -> Plan:
        return policy_by_name("goodput").plan(Snapshot(NOW, jobs, Capacity.of_slots(4), quotas))

    plan = decide(owner, *others, waits)
    assert plan.targets() == {"owner": 4, "other-0": 0, "other-1": 0, "other-2": 0, "waits": 0}
    assert "evicted: team a grows into what it is guaranteed" in plan.allocations["other-0"].reason.text
    assert "and what team a is guaranteed" in plan.allocations["waits"].reason.text
    lent = decide(replace(owner, max_workers=2), *others[:2], waits)
    assert lent.targets() == {"owner": 2, "other-0": 1, "other-1": 1, "waits": 0}, "what it cannot use others have"
    young = [replace(other, started_at=NOW - 10.0) for other in others]
    assert decide(owner, *young).targets()["other-0"] == 1, "who just began is not stopped"
    frozen = replace(owner, last_rescale_at=NOW - 10.0)
    assert decide(frozen, waits).targets() == {"owner": 1, "waits": 1}, "nothing stands idle for who does not grow"


def test_a_guarantee_precedes_what_is_above_minimums_of_more_important_jobs() -> None:
    jobs = (_running("owner", "a", max_workers=4), _running("important", "b", max_workers=4, priority=5))
    quotas = {"a": _guarantee(4)}
    for slots, targets in ((5, {"owner": 4, "important": 1}), (6, {"owner": 4, "important": 2})):
        plan = policy_by_name("goodput").plan(Snapshot(NOW, jobs, Capacity.of_slots(slots), quotas))
        assert plan.targets() == targets


@pytest.mark.parametrize("policy", ["goodput", "fair"])
def test_a_team_that_has_its_guarantee_evicts_nobody_for_more(policy: str) -> None:
    """Two minimums of 2 wait in a team that is guaranteed 2: only one of them is owed its slots."""
    borrower = JobView(
        id="borrower",
        team="search",
        submitted_at=NOW - 9000,
        state=JobState.RUNNING,
        min_workers=2,
        max_workers=2,
        current_workers=2,
        started_at=NOW - 5000,
    )
    other = replace(borrower, id="other", started_at=NOW - 6000)
    waiting = [
        JobView(id=f"ads-{i}", team="ads", submitted_at=NOW - 100 + i, min_workers=2, max_workers=2) for i in range(2)
    ]
    snapshot = Snapshot(NOW, (borrower, other, *waiting), Capacity.of_slots(4), {"ads": _guarantee(2)})
    targets = policy_by_name(policy).plan(snapshot).targets()
    assert targets == {"ads-0": 2, "ads-1": 0, "borrower": 0, "other": 2}
