"""Who waits for whom, who leaves for whom, and what either is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticdl_core.ports.launcher import CapacityInfo, SlotReservation
from elasticdl_core.scheduling import POLICIES, Capacity, Quota, ReasonCode, Resources, Snapshot, policy_by_name
from elasticdl_runtime.scheduling import snapshot_of
from tests.unit.scheduling.test_policies import NOW, job, plan, slots

pytestmark = pytest.mark.unit
FOUR = Capacity.of_slots(4)


def test_behind_a_blocked_important_job_the_first_of_a_lower_tier_has_its_time_too() -> None:
    """A job of 2 of 4 slots waited as long as the important one, while small ones that came later ran one by one."""
    endless = job("endless", current_workers=1, max_workers=1, priority=1, remaining_records=None)
    important = job("important", min_workers=4, max_workers=4, priority=1)
    small = [job(f"small-{i}", current_workers=1, max_workers=1, remaining_records=5000.0) for i in range(2)]
    pair = job("pair", min_workers=2, max_workers=2, submitted_at=NOW - 9000)
    later = job("later", max_workers=1, remaining_records=50_000.0)
    short = job("short", max_workers=1, remaining_records=1000.0)
    assert plan("goodput", 4, endless, important, *small, pair, later).targets()["later"] == 0
    decided = plan("goodput", 4, endless, important, *small, pair, short)
    assert decided.targets()["short"] == 1
    assert decided.first_blocked is not None
    assert decided.first_blocked.job_id == "important"
    assert "expected" not in decided.allocations["pair"].reason.text


def test_a_job_of_unknown_end_keeps_no_slots_idle_that_short_ones_could_use() -> None:
    """Every slot behind the first in the queue stood idle."""
    unknown = job("unknown", current_workers=2, min_workers=2, max_workers=2, remaining_records=None)
    large = job("large", min_workers=4, max_workers=4, submitted_at=0.0)
    short = job("short", max_workers=1, remaining_records=1000.0)
    decided = plan("goodput", 4, unknown, large, short, replace(short, id="long", remaining_records=1e6))
    assert decided.targets() == {"unknown": 2, "large": 0, "short": 1, "long": 0}
    assert decided.first_blocked is not None
    assert decided.first_blocked.at is None
    assert "expected" not in decided.allocations["large"].reason.text + decided.allocations["long"].reason.text


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_those_leave_that_hold_the_fewest_slots(name: str) -> None:
    """The newest left, of 3 slots, where one was needed."""
    large = job("large", current_workers=3, min_workers=3, max_workers=3, started_at=NOW - 10)
    small = job("small", current_workers=1, max_workers=1)
    important = job("important", max_workers=1, priority=1)
    assert plan(name, 4, large, small, important).targets() == {"large": 3, "small": 0, "important": 1}


def test_of_those_that_hold_as_much_the_one_with_the_longest_rest_leaves() -> None:
    """Who would leave in a second was evicted, for 30 seconds of restart."""
    soon = job("soon", current_workers=2, min_workers=2, max_workers=2, remaining_records=20.0, started_at=NOW - 10)
    long = replace(soon, id="long", remaining_records=1e6, started_at=NOW - 5000)
    important = job("important", min_workers=1, max_workers=1, priority=1)
    assert plan("goodput", 4, soon, long, important).targets()["long"] == 0
    short = replace(soon, id="short", remaining_records=40.0, min_workers=1, max_workers=1, current_workers=1)
    longer = replace(long, min_workers=3, max_workers=3, current_workers=3)
    assert plan("goodput", 4, short, longer, important).targets() == {"short": 1, "long": 0, "important": 1}
    both = replace(important, min_workers=4, max_workers=4)
    assert plan("goodput", 4, short, longer, both).targets() == {"short": 0, "long": 0, "important": 4}


def test_of_those_alike_the_newest_leaves_whatever_its_team() -> None:
    """It was the newest of the team whose name is last."""
    old = job("old", team="z", current_workers=1, max_workers=1, remaining_records=None)
    new = replace(old, id="new", team="a", started_at=NOW - 100)
    important = job("important", max_workers=1, priority=1)
    assert plan("goodput", 2, old, new, important).targets() == {"important": 1, "old": 1, "new": 0}


def test_who_is_within_a_guarantee_stays_before_who_just_began() -> None:
    """Of a cluster that lost slots, the youngest jobs stayed."""
    owed = job("owed", team="vision", current_workers=5, min_workers=5)
    young = [
        replace(job(f"young-{i}", team="ads", current_workers=1, max_workers=1), started_at=NOW - 20) for i in (1, 2)
    ]
    targets = plan("goodput", 6, owed, *young, quotas={"vision": Quota(guaranteed=slots(5))}).targets()
    assert (targets["owed"], sorted(targets[one.id] for one in young)) == (5, [0, 1])


def test_parts_of_slots_that_do_not_add_up_to_the_last_digit_are_chosen_from_too() -> None:
    """Three thirds were less than the slot that was missing, and the pass failed."""
    thirds = [job(f"j{i}", current_workers=1, max_workers=1, worker=slots(1 / 3)) for i in range(3)]
    assert plan("goodput", 1, *thirds, job("important", max_workers=1, priority=1)).targets()["important"] == 1


def test_many_running_jobs_are_chosen_from_too() -> None:
    """With more than are searched, whoever is not needed stays."""
    many = [job(f"j{i:04d}", current_workers=1 + i % 3, max_workers=3, min_workers=1 + i % 3) for i in range(1200)]
    held = sum(one.current_workers for one in many)
    targets = plan("goodput", held, *many, job("important", min_workers=7, max_workers=7, priority=1)).targets()
    assert targets["important"] == 7
    assert held - 7 - 2 <= sum(targets.values()) - 7 <= held - 7


def test_what_is_reserved_is_no_smaller_cluster() -> None:
    """It said "more than the whole cluster of 0 slots; lower min_workers", and "it can never start"."""
    info = CapacityInfo(4, reservations=(SlotReservation("shop", 2, 2, 0.0, 0.0),))
    capacity = snapshot_of(NOW, [], {}, info, {}).capacity
    waits, other = job("waits", min_workers=3), job("other", max_workers=1)
    decided = policy_by_name("goodput").plan(Snapshot(NOW, (waits, other), capacity))
    reason = decided.allocations["waits"].reason
    assert reason.code is ReasonCode.WAITING_FOR_CAPACITY
    assert reason.text == (
        "its minimum of 3 workers needs 3 slots, and jobs may take 2 now (2 of 4 are reserved or kept free)"
    )
    assert decided.targets()["other"] == 1, "what cannot fit before slots are given back holds nobody back"
    too_large = policy_by_name("goodput").plan(Snapshot(NOW, (job("x", min_workers=5),), capacity))
    assert "the whole cluster of 4 slots" in too_large.allocations["x"].reason.text


def test_a_reservation_goes_into_the_headroom() -> None:
    """One that fits evicted a job, and left two slots idle."""
    shop = SlotReservation("shop", 1, 1, 0.0, 0.0)
    assert CapacityInfo(4, headroom=1).for_jobs == CapacityInfo(4, headroom=1, reservations=(shop,)).for_jobs == 3
    assert CapacityInfo(4, headroom=1, reservations=(shop, shop)).for_jobs == 2


def test_an_eviction_says_for_what() -> None:
    """A guarantee, a reservation and a raise were "more important minimums" alike."""
    runs = job("runs", team="ads", current_workers=4, min_workers=4, max_workers=4)

    def text(*jobs: object, capacity: Capacity = FOUR, **quotas: Quota) -> str:
        decided = policy_by_name("goodput").plan(Snapshot(NOW, (runs, *jobs), capacity, quotas))  # type: ignore[arg-type]
        assert decided.allocations["runs"].reason.code is ReasonCode.EVICTED
        return decided.allocations["runs"].reason.text

    peer = job("peer", team="search", min_workers=2, max_workers=2)
    assert "more important minimums leave 2 slots" in text(replace(peer, priority=1))
    assert "team search takes back what it is guaranteed, which leaves 2 slots" in text(
        peer, search=Quota(guaranteed=slots(2))
    )
    smaller = Capacity(Resources(slots=3.0), set_aside=1.0)
    assert "jobs may take 3 now (1 of 4 are reserved or kept free)" in text(capacity=smaller)
