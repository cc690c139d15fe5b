"""What the policies decide in small clusters, by rule."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobState
from elasticdl_core.scheduling import (
    Capacity,
    JobView,
    Plan,
    Quota,
    ReasonCode,
    Resources,
    Snapshot,
    policy_by_name,
)
from elasticdl_core.scheduling.admission import AdmissionRules, admit, by_arrival, tiers_of
from elasticdl_core.scheduling.words import moment

pytestmark = pytest.mark.unit

NOW = 10_000.0
LINEAR = {n: 10.0 * n for n in range(1, 17)}


def job(name: str, **fields: Any) -> JobView:
    values: dict[str, Any] = {
        "max_workers": 8,
        "submitted_at": NOW - 1000,
        "prior_throughput": LINEAR,
        "remaining_records": 100_000.0,
        "rescale_cost_s": 10.0,
    } | fields
    if values.get("current_workers"):
        values = {"state": JobState.RUNNING, "started_at": NOW - 5000, "last_rescale_at": NOW - 5000} | values
    return JobView(id=name, **values)


def plan(policy: str, slots: int, *jobs: JobView, quotas: dict[str, Quota] | None = None) -> Plan:
    return policy_by_name(policy).plan(Snapshot(NOW, jobs, Capacity.of_slots(slots), quotas or {}))


def slots(amount: float) -> Resources:
    return Resources(slots=amount)


def test_surplus_is_given_up_before_anybody_is_evicted() -> None:
    decided = plan("goodput", 8, job("old", current_workers=8), job("new", min_workers=3, priority=5))
    assert decided.targets()["new"] >= 3
    assert decided.targets()["old"] >= 1
    assert sum(decided.targets().values()) == 8


def test_a_minimum_evicts_only_the_less_important() -> None:
    running = job("low", current_workers=4, min_workers=4, max_workers=4)
    higher = plan("goodput", 4, running, job("high", min_workers=2, max_workers=2, priority=1))
    assert higher.targets() == {"high": 2, "low": 0}
    low = higher.allocations["low"].reason
    assert (low.code, low.blockers) == (ReasonCode.EVICTED, ("high",))
    equal = plan("goodput", 4, running, job("peer", min_workers=2, max_workers=2))
    assert equal.targets() == {"low": 4, "peer": 0}
    waiting = equal.allocations["peer"].reason
    assert (waiting.code, waiting.blockers) == (ReasonCode.WAITING_FOR_CAPACITY, ("low",))
    assert "needs 2 slots, and 0 are left" in waiting.text


def test_one_slot_is_said_in_the_singular() -> None:
    running = job("running", current_workers=4, min_workers=4, max_workers=4)
    assert "needs 1 slot, and 0 are" in plan("goodput", 4, running, job("peer")).allocations["peer"].reason.text
    one_left = plan("goodput", 5, running, job("peer", min_workers=2)).allocations["peer"].reason.text
    assert "needs 2 slots, and 1 is left beside the minimum of the job that goes before it" in one_left


def test_a_time_in_a_reason_has_its_day() -> None:
    """A reason stands for days; "at 12:00:00 UTC" was that of the day on which it was written."""
    assert moment(86_400.0 * 3 + 3_600) == "1970-01-04 01:00:00 UTC"


def test_a_job_near_its_end_is_not_grown() -> None:
    """Its rest was taken for a minute at least, so that a worker came five seconds before the end."""
    near = job("near", current_workers=1, min_workers=1, throughput={1: 10.0, 2: 20.0}, remaining_records=50.0)
    decided = plan("goodput", 8, near)
    assert decided.targets() == {"near": 1}
    assert "too little in the time that it still needs" in decided.allocations["near"].reason.text
    assert plan("goodput", 8, replace(near, remaining_records=100_000.0)).targets()["near"] > 1


def test_a_reason_speaks_of_what_the_job_measured() -> None:
    """Smoothed by what similar jobs showed, a size measured as faster was called slower."""
    measured = {2: 126.0, 3: 100.3, 4: 115.7}
    similar = {1: 148.9, 2: 205.2, 6: 146.5}
    told = plan(
        "goodput", 8, job("a", min_workers=3, current_workers=3, throughput=measured, prior_throughput=similar)
    )
    assert told.targets() == {"a": 3}
    assert "slower" not in told.allocations["a"].reason.text


def test_a_reservation_holds_back_those_that_would_delay_it() -> None:
    running = job("running", current_workers=4, min_workers=4, max_workers=4, remaining_records=4000.0)
    large = job("large", min_workers=6, submitted_at=0.0)
    short = job("short", max_workers=2, min_workers=2, remaining_records=1000.0)
    long = job("long", max_workers=4, min_workers=4, remaining_records=1e6)
    decided = plan("fair", 8, running, large, short, long)
    assert decided.first_blocked is not None
    assert decided.first_blocked.job_id == "large"
    assert decided.first_blocked.at == pytest.approx(NOW + 100)
    assert decided.targets() == {"running": 4, "large": 0, "short": 2, "long": 0}
    assert decided.allocations["long"].reason.code in (ReasonCode.WAITING_BEHIND, ReasonCode.WAITING_FOR_CAPACITY)
    alone = plan("fair", 8, running, large, long)
    held = alone.allocations["long"].reason
    assert (held.code, held.blockers) == (ReasonCode.WAITING_BEHIND, ("large",))
    assert f"expected at {moment(NOW + 100)}" in held.text, "written down, it stays true"
    assert held.data["expected_at"] == pytest.approx(NOW + 100)
    assert f"expected to fit at {moment(NOW + 100)}" in alone.allocations["large"].reason.text
    later = replace(Snapshot(NOW, (running, large, long), Capacity.of_slots(8)), now=NOW + 60)
    shorter = replace(running, remaining_records=1600.0)
    told = policy_by_name("fair").plan(replace(later, jobs=(shorter, large, long))).allocations["large"].reason.text
    assert told == alone.allocations["large"].reason.text, "said again a while later, it is the same"


def test_a_job_may_pass_a_reservation_if_it_leaves_enough() -> None:
    running = job("running", current_workers=4, min_workers=4, max_workers=4, remaining_records=4000.0)
    large = job("large", min_workers=6, max_workers=6, submitted_at=0.0)
    small = job("small", min_workers=2, max_workers=2, remaining_records=1e6)
    assert plan("fair", 8, running, large, small).targets()["small"] == 2


def test_waiting_jobs_alternate_between_teams_by_weight() -> None:
    jobs = [
        job(f"{team}-{i}", team=team, max_workers=1, submitted_at=i) for team in ("ads", "search") for i in range(6)
    ]
    quotas = {"ads": Quota(weight=2.0), "search": Quota(weight=1.0)}
    targets = plan("goodput", 6, *jobs, quotas=quotas).targets()
    assert sum(targets[f"ads-{i}"] for i in range(6)) == 4
    assert sum(targets[f"search-{i}"] for i in range(6)) == 2


def test_surplus_is_shared_by_weight_and_what_is_not_needed_is_borrowed() -> None:
    quotas = {"ads": Quota(weight=3.0)}
    two = [job("a", team="ads", max_workers=16), job("s", team="search", max_workers=16)]
    assert plan("goodput", 16, *two, quotas=quotas).targets() == {"a": 12, "s": 4}
    modest = [replace(two[0], max_workers=2), two[1]]
    assert plan("goodput", 16, *modest, quotas=quotas).targets() == {"a": 2, "s": 14}


def test_a_guarantee_is_taken_back_from_borrowers_after_their_minimum_run_time() -> None:
    borrower = job("borrower", team="ads", current_workers=4, min_workers=4, max_workers=4)
    owner = job("owner", team="search", min_workers=2, max_workers=2)
    quotas = {"search": Quota(guaranteed=slots(2))}
    assert plan("goodput", 4, borrower, owner, quotas=quotas).targets() == {"owner": 2, "borrower": 0}
    young = replace(borrower, started_at=NOW - 60)
    assert plan("goodput", 4, young, owner, quotas=quotas).targets() == {"borrower": 4, "owner": 0}


def test_a_guarantee_counts_once_for_all_priorities() -> None:
    """A team whose guarantee of 2 an important job used evicted another one for 2 more at a lower priority."""
    quotas = {"search": Quota(guaranteed=slots(2))}
    used = job("used", team="search", current_workers=2, min_workers=2, max_workers=2, priority=5)
    other = job("other", team="ads", current_workers=2, min_workers=2, max_workers=2)
    more = job("more", team="search", min_workers=2, max_workers=2)
    targets = plan("goodput", 4, used, other, more, quotas=quotas).targets()
    assert targets == {"used": 2, "other": 2, "more": 0}


def test_no_job_starts_in_a_place_that_is_denied_to_a_more_important_one() -> None:
    """It was started, as it can be evicted at any time, and was evicted in the next pass."""
    running = job("running", current_workers=4, min_workers=4, max_workers=4, remaining_records=None, priority=1)
    large = job("large", min_workers=8, max_workers=8, submitted_at=0.0, priority=1)
    first = job("p1", min_workers=2, max_workers=2, priority=1, remaining_records=1e6)
    second = replace(first, id="p0", priority=0)
    decided = plan("fair", 8, running, large, first, second)
    assert decided.targets() == {"running": 4, "large": 0, "p1": 0, "p0": 0}
    held = decided.allocations["p0"].reason
    assert (held.code, held.blockers) == (ReasonCode.WAITING_BEHIND, ("p1",))
    smaller = replace(second, min_workers=1)
    assert plan("fair", 8, running, large, first, smaller).targets()["p0"] >= 1


def test_a_limit_is_kept_while_the_cluster_is_idle() -> None:
    quotas = {"ads": Quota(limit=slots(3))}
    decided = plan("goodput", 16, job("a", team="ads"), job("b", team="ads", min_workers=3), quotas=quotas)
    assert sum(decided.targets().values()) <= 3
    waiting = [a.reason for a in decided.allocations.values() if not a.admitted]
    assert [reason.code for reason in waiting] == [ReasonCode.WAITING_FOR_QUOTA]


def test_short_jobs_get_more_and_speedups_count() -> None:
    short = job("short", remaining_records=10_000.0)
    long = job("long", remaining_records=1_000_000.0)
    targets = plan("goodput", 8, short, long).targets()
    assert targets["short"] > targets["long"] >= 1
    flat = {1: 10.0, 2: 11.0, 4: 11.5, 8: 11.6}
    poor = plan("goodput", 8, job("scales"), job("flat", prior_throughput=flat))
    assert poor.targets() == {"scales": 7, "flat": 1}


def test_a_size_that_adds_nothing_is_not_taken_even_if_free() -> None:
    decided = plan("goodput", 16, job("flat", prior_throughput={1: 10.0, 2: 19.0, 4: 19.1, 8: 19.0}))
    assert decided.targets() == {"flat": 2}
    assert decided.allocations["flat"].reason.code is ReasonCode.AT_USEFUL_SIZE


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (19.1, "2 more would speed it up by only 0.5%"),
        (19.0, "2 more would not make it faster"),
        (10.6, "2 more would make it slower by 44%"),
    ],
)
def test_what_more_workers_would_do_is_said_in_plain_words(after: float, words: str) -> None:
    flat = job("flat", allowed_sizes=(1, 2, 4), prior_throughput={1: 10.0, 2: 19.0, 4: after})
    decided = plan("goodput", 16, flat)
    assert decided.targets() == {"flat": 2}
    assert decided.allocations["flat"].reason.text == f"it has 2 of at most 4 workers; {words}"


@pytest.mark.parametrize(
    ("amount", "worker", "words"),
    [
        (slots(3), slots(1), "the cluster has too few free slots for that"),
        (Resources(8, cpu=6), Resources(1, cpu=2), "the cluster has too few free cores for that"),
        (Resources(8, memory=700), Resources(1, memory=200), "the cluster has too little free memory for that"),
    ],
)
def test_a_job_that_is_alone_is_not_told_of_other_jobs(amount: Resources, worker: Resources, words: str) -> None:
    alone = job("a", worker=worker, max_workers=4)
    decided = policy_by_name("goodput").plan(Snapshot(NOW, (alone,), Capacity(amount), {}))
    assert decided.targets() == {"a": 3}
    told = decided.allocations["a"].reason
    assert (told.code, told.blockers) == (ReasonCode.CLUSTER_FULL, ())
    assert told.text == f"it has 3 of at most 4 workers; 1 more would speed it up by 33%, and {words}"


def test_what_fits_is_given_whatever_resource_a_share_is_counted_by() -> None:
    """Shares are counted by the resource of which a worker takes most: slots stood idle beside jobs that they fit."""
    for seed in range(300):
        rng = random.Random(seed)
        total = Resources(slots=rng.choice([4, 6, 8, 12]), memory=rng.randint(300, 1500))
        jobs = [
            job(
                f"job-{i}",
                team=rng.choice("ab"),
                max_workers=rng.randint(1, 8),
                worker=Resources(slots=1, memory=rng.choice([0, 50, 100, 300])),
                fixed=Resources(memory=rng.choice([0, 0, 100])),
            )
            for i in range(rng.randint(1, 4))
        ]
        targets = policy_by_name("goodput").plan(Snapshot(NOW, tuple(jobs), Capacity(total))).targets()
        taken = Resources()
        for one in jobs:
            taken = taken.plus(one.demand(targets[one.id]))
        more = [one for one in jobs if 0 < targets[one.id] < one.largest]
        assert not any(taken.plus(one.worker).fits_into(total) for one in more), (seed, targets)


def test_a_job_is_told_what_is_scarce_and_not_of_slots_that_there_are() -> None:
    """It was the share of its team in the slots, of which enough were free, or that these did more for others."""
    greedy = job("greedy", worker=Resources(1, memory=300), max_workers=4)
    others = [job(f"small-{i}", team=team, max_workers=2) for i, team in enumerate(("default", "ads"))]
    decided = policy_by_name("goodput").plan(
        Snapshot(NOW, (greedy, *others), Capacity(Resources(12, memory=700)), {})
    )
    assert decided.targets() == {"greedy": 2, "small-0": 2, "small-1": 2}
    assert decided.allocations["greedy"].reason.text.endswith("and the cluster has too little free memory for that")


def test_jobs_that_have_no_more_than_they_need_are_not_said_to_do_more_with_it() -> None:
    decided = plan("goodput", 4, job("a", min_workers=2), job("b", min_workers=2))
    assert decided.targets() == {"a": 2, "b": 2}
    told = decided.allocations["a"].reason.text
    assert told == (
        "it has 2 of at most 8 workers; 1 more would speed it up by 50%, and "
        "the cluster has too few free slots for that"
    )
    shared = plan("goodput", 4, job("a"), job("b")).allocations["a"].reason
    assert shared.text.endswith("1 more would speed it up by 50%, and the slots do more for other jobs")
    assert shared.blockers == ("b",)


def test_what_is_told_of_is_the_next_size_that_helps() -> None:
    dips = job("a", max_workers=4, prior_throughput={1: 10.0, 2: 19.0, 3: 15.0, 4: 38.0})
    told = plan("goodput", 3, dips).allocations["a"].reason.text
    assert told == (
        "it has 2 of at most 4 workers; 2 more would speed it up by 100%, and "
        "the cluster has too few free slots for that"
    )


def test_allowed_sizes_and_steps_are_kept() -> None:
    assert plan("goodput", 7, job("a", allowed_sizes=(1, 4, 8))).targets() == {"a": 4}
    assert plan("goodput", 7, job("a", min_workers=2, step=3)).targets() == {"a": 5}


def test_a_small_gain_does_not_pay_for_a_change() -> None:
    jobs = [
        job("a", current_workers=5, rescale_cost_s=60.0),
        job("b", current_workers=3, rescale_cost_s=60.0, submitted_at=NOW - 999),
    ]
    decided = plan("goodput", 8, *jobs)
    assert decided.targets() == {"a": 5, "b": 3}
    told = decided.allocations["b"].reason
    assert told.code is ReasonCode.NOT_WORTH_A_CHANGE
    assert told.text == (
        "it has 3 of at most 8 workers; 4 would speed it up by 33%, too little for what other jobs would lose and "
        "the 60 s of work that a change costs"
    )
    cheap = [replace(j, rescale_cost_s=0.1) for j in jobs]
    assert plan("goodput", 8, *cheap).targets() == {"a": 4, "b": 4}


def test_a_job_that_just_changed_is_not_grown_again() -> None:
    fresh = job("a", current_workers=2, last_rescale_at=NOW - 5, rescale_cost_s=1.0, throughput={1: 10.0, 2: 20.0})
    decided = plan("goodput", 8, fresh)
    assert decided.targets() == {"a": 2}
    told = decided.allocations["a"].reason
    assert told.code is ReasonCode.CHANGED_LATELY
    assert told.text == (
        "it has 2 of at most 8 workers; 8 would speed it up by 300%, but it keeps a number of workers for 60 s, and "
        "got this number less than that ago"
    )
    assert plan("goodput", 8, replace(fresh, last_rescale_at=NOW - 500)).targets() == {"a": 8}


def test_an_unknown_job_starts_small_and_grows_as_it_is_measured() -> None:
    unknown = job("a", prior_throughput={}, max_workers=16)
    first = plan("goodput", 16, unknown)
    assert first.targets() == {"a": 4}
    assert first.allocations["a"].reason.code is ReasonCode.MEASURING
    measured = replace(
        unknown, state=JobState.RUNNING, current_workers=4, throughput={4: 40.0}, last_rescale_at=NOW - 900
    )
    assert 4 < plan("goodput", 16, measured).targets()["a"] <= 12


def test_on_idle_slots_a_job_tries_what_others_found_useless() -> None:
    """Similar jobs gained nothing from a third worker. It costs nobody anything to see whether that holds here."""
    prior = {1: 10.0, 2: 19.0, 4: 18.0}
    running = job("a", prior_throughput=prior, throughput={2: 19.0}, current_workers=2)
    assert plan("goodput", 16, running).targets() == {"a": 4}
    tried = replace(running, throughput={2: 19.0, 4: 18.0}, current_workers=4)
    assert plan("goodput", 16, tried).targets() == {"a": 2}
    assert plan("goodput", 16, replace(tried, current_workers=2)).targets() == {"a": 2}
    busy = [running, job("b", current_workers=8), job("c", current_workers=6, max_workers=6)]
    assert plan("goodput", 16, *busy).targets()["a"] == 2


def test_what_is_impossible_is_said() -> None:
    reason = plan("goodput", 4, job("huge", min_workers=8)).allocations["huge"].reason
    assert reason.code is ReasonCode.IMPOSSIBLE
    assert "more than the whole cluster of 4 slots; lower min_workers" in reason.text


def test_unwanted_jobs_hold_nothing() -> None:
    decided = plan("goodput", 4, job("a", wanted=False, current_workers=2), job("b", state=JobState.SUSPENDED))
    assert decided.targets() == {"a": 0, "b": 0}
    assert {a.reason.code for a in decided.allocations.values()} == {ReasonCode.NOT_WANTED}


def test_memory_limits_too() -> None:
    worker = Resources(slots=1.0, memory=1000.0)
    capacity = Capacity(Resources(slots=8.0, memory=3000.0))
    snapshot = Snapshot(NOW, (job("a", worker=worker), job("b", worker=worker)), capacity)
    for name in ("goodput", "fair", "fifo"):
        assert sum(policy_by_name(name).plan(snapshot).targets().values()) == 3


def test_who_lacks_memory_is_told_of_memory() -> None:
    """It was told how many slots it needs, and that more are left."""
    capacity = Capacity(Resources(slots=8.0, memory=3000.0))

    def told(least: int, *others: JobView) -> str:
        waits = job("waits", min_workers=least, worker=Resources(1.0, memory=1000.0), fixed=Resources(memory=500.0))
        return (
            policy_by_name("goodput").plan(Snapshot(NOW, (waits, *others), capacity)).allocations["waits"].reason.text
        )

    important = job("important", priority=1, min_workers=2, worker=Resources(1.0, memory=1000.0))
    assert told(1, important) == (
        "its minimum of 1 worker needs 1500 MiB of memory, and 1000 are left beside the minimum of the job that goes "
        "before it; expected to fit at 1970-01-01 04:10:00 UTC"
    )
    assert told(3) == (
        "its minimum of 3 workers (3500 MiB of memory) is more than the whole cluster of 3000 MiB of memory; "
        "lower worker_memory_mib, ps_memory_mib or min_workers"
    )


def test_fifo_tops_up_in_order_of_arrival() -> None:
    jobs = [job("late", submitted_at=5.0), job("early", submitted_at=1.0)]
    assert plan("fifo", 10, *jobs).targets() == {"early": 8, "late": 2}


def test_gang_gives_all_or_nothing_in_order() -> None:
    jobs = [
        job("a", submitted_at=1.0, max_workers=6),
        job("b", submitted_at=2.0),
        job("c", submitted_at=3.0, max_workers=1),
    ]
    decided = plan("gang", 8, *jobs)
    assert decided.targets() == {"a": 6, "b": 0, "c": 0}
    assert decided.allocations["c"].reason.code is ReasonCode.WAITING_BEHIND


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'none'"):
        policy_by_name("none")


def test_a_job_keeps_what_nobody_needs_for_the_cooldown_and_then_unless_fewer_pay_for_the_change() -> None:
    """A job alone went from 1 worker to 4 and back in a second: what was above its useful size was taken at once."""
    flat = {1: 40.0, 2: 41.0, 4: 42.0}
    alone = job("a", max_workers=4, current_workers=4, throughput=flat, prior_throughput={}, last_rescale_at=NOW - 1)
    assert plan("goodput", 4, alone).targets() == {"a": 4}
    assert plan("goodput", 4, replace(alone, last_rescale_at=NOW - 5000)).targets() == {"a": 4}
    slower = replace(alone, throughput={1: 40.0, 2: 41.0, 4: 4.0}, last_rescale_at=NOW - 5000)
    assert plan("goodput", 4, slower).targets()["a"] < 4
    assert plan("goodput", 4, alone, job("b", min_workers=3)).targets() == {"a": 1, "b": 3}


def test_a_clock_that_was_set_back_freezes_no_job() -> None:
    """What changed at a time that is still to come kept its size, and was protected, until the clock caught up."""
    ahead = job("a", current_workers=1, throughput={1: 10.0}, started_at=NOW + 3600, last_rescale_at=NOW + 3600)
    assert plan("goodput", 4, ahead).targets() == {"a": 4}
    quotas = {"search": Quota(guaranteed=slots(4))}
    borrower = replace(ahead, team="ads", min_workers=4, max_workers=4, current_workers=4)
    owner = job("b", team="search", min_workers=4, max_workers=4)
    assert plan("goodput", 4, borrower, owner, quotas=quotas).targets() == {"a": 0, "b": 4}


def test_each_job_is_asked_once_when_it_ends_however_many_priorities_wait() -> None:
    """A forecast of 2,001 jobs of as many priorities took over two minutes, for which nothing was scheduled."""
    asked: Counter[str] = Counter()

    def eta(one: JobView, workers: int) -> float:
        asked[one.id] += 1
        return 100.0

    jobs = [job(f"runs-{i}", current_workers=1, priority=500) for i in range(20)]
    jobs += [job(f"waits-{i}", priority=i) for i in range(200)]
    rules = AdmissionRules(size=lambda one: one.smallest, queue_key=by_arrival, eta=eta)
    admission, _ = admit(Snapshot(NOW, tuple(jobs), Capacity.of_slots(20)), tiers_of(jobs, rules), rules)
    assert len(admission.admitted) == 20 and len(admission.refused) == 200
    assert asked.keys() == {one.id for one in jobs[:20]}
    assert set(asked.values()) == {1}
