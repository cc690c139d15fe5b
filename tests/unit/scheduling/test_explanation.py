"""What a job is told: who holds what it lacks, what would help, how fast it would be, when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.scheduling import (
    Allocation,
    Capacity,
    JobView,
    Quota,
    Reason,
    ReasonCode,
    Resources,
    Snapshot,
    policy_by_name,
)
from elasticdl_core.scheduling.explanation import basis_of, blockers, eta, find_remedies, hide_names, speeds
from elasticdl_core.scheduling.forecast import forecast
from elasticdl_core.scheduling.snapshot import DeviceView
from elasticdl_runtime.scheduling import most_computing

pytestmark = pytest.mark.unit
FAIR = policy_by_name("fair")


def running(job_id: str, workers: int, **fields: object) -> JobView:
    values = {"min_workers": 1, "max_workers": workers, "current_workers": workers, "live_workers": workers}
    return JobView(
        job_id,
        **{"state": JobState.RUNNING, "started_at": 0.0, **values, **fields},  # type: ignore[arg-type]
    )


def cluster(slots: int, *jobs: JobView, **quotas: Quota) -> Snapshot:
    return Snapshot(1000.0, jobs, Capacity.of_slots(slots), quotas)


def test_speeds_tell_how_they_are_known() -> None:
    job = JobView("a", max_workers=4, throughput={1: 100.0}, prior_throughput={2: 160.0})
    found = speeds(job)
    assert [(one.workers, one.basis) for one in found] == [
        (1, "measured"),
        (2, "similar"),
        (3, "estimated"),
        (4, "estimated"),
    ]
    assert found[0].records_per_second == 100.0
    assert found[0].relative == 1.0
    assert 1.0 < found[1].relative < found[3].relative
    unknown = speeds(replace(job, throughput={}, prior_throughput={}))
    assert {(one.records_per_second, one.basis) for one in unknown} == {(None, "assumed")}
    assert unknown[1].relative > 1.5
    assert basis_of(job, 2) == "similar"


def test_what_is_said_to_be_measured_was() -> None:
    """The curve's numbers, drawn to what similar jobs showed, were called measured, and the end was told by them."""
    own = {1: 40.0, 2: 41.0, 4: 42.0}
    job = running("a", 4, throughput=own, prior_throughput={n: 50.0 * n for n in (1, 2, 4)}, remaining_records=4200.0)
    found = {one.workers: one.records_per_second for one in speeds(job) if one.basis == "measured"}
    assert found == own
    assert eta(job, forecast(cluster(4, job), FAIR), 1000.0).ends_at == pytest.approx(1100.0)


def test_a_long_curve_is_shown_at_few_counts() -> None:
    job = running("a", 777, max_workers=10_000, throughput={777: 5.0})
    shown = [one.workers for one in speeds(job)]
    assert len(shown) < 30
    assert {1, 777, 4096, 10_000} <= set(shown)
    sizes = JobView("b", max_workers=3000, min_workers=100, step=50)
    assert {one.workers for one in speeds(sizes)} <= set(sizes.sizes)


def test_an_end_has_bounds_that_grow_with_what_is_not_known() -> None:
    measured = running("a", 2, throughput={2: 10.0}, remaining_records=1000.0)
    snapshot = cluster(2, measured)
    found = eta(measured, forecast(snapshot, FAIR), snapshot.now)
    assert (found.starts_at, found.ends_at, found.basis) == (0.0, 1100.0, "measured")
    assert found.earliest is not None
    assert found.latest is not None
    assert snapshot.now < found.earliest < 1100.0 < found.latest
    estimated = replace(measured, throughput={1: 5.0})
    other = eta(estimated, forecast(cluster(2, estimated), FAIR), snapshot.now)
    assert other.basis == "estimated"
    assert other.latest is not None
    assert other.ends_at is not None
    assert (other.latest - 1000.0) / (other.ends_at - 1000.0) > (found.latest - 1000.0) / 100.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"remaining_records": None, "throughput": {2: 1.0}}, "has not counted"),
        ({"remaining_records": 5.0}, "not measured yet"),
        ({"wanted": False}, "not wanted"),
        ({"min_workers": 3, "max_workers": 3, "current_workers": 0, "live_workers": 0}, "can never start"),
    ],
)
def test_without_an_end_it_says_what_is_missing(changes: dict[str, object], why: str) -> None:
    job = replace(running("a", 2), **changes)  # type: ignore[arg-type]
    snapshot = cluster(2, job)
    found = eta(job, forecast(snapshot, FAIR), snapshot.now)
    assert (found.ends_at, found.latest) == (None, None)
    assert why in found.why_unknown


def test_help_was_tried_and_only_what_helps_is_told() -> None:
    waits = JobView("b", submitted_at=1.0, min_workers=2, max_workers=2)
    snapshot = cluster(3, running("a", 2), waits, running("c", 1, team="x"))
    plan = FAIR.plan(snapshot)
    assert plan.allocations["b"].workers == 0
    found = find_remedies(snapshot, FAIR, plan, "b")
    changes = [one.change for one in found]
    assert {"sizes": {"b": {"min_workers": 1, "max_workers": 2}}} in changes
    assert {"priorities": {"b": 1}} in changes
    assert all(one.workers > 0 for one in found)
    assert found[0].text == "with min_workers 1: it would have 1 worker instead of 0"
    assert found[0].command == "elasticdl jobs scale b --min-workers 1"


def test_a_priority_helps_although_somebody_has_the_highest_and_up_to_that_of_the_namespace() -> None:
    """One holder of priority 1000 hid that a higher priority than the others' would do."""
    waits = JobView("b", submitted_at=1.0, min_workers=1, max_workers=1)
    first, second = running("a", 2, min_workers=2, priority=1000), running("c", 1, priority=3)
    snapshot = cluster(3, first, second, waits)
    plan = FAIR.plan(snapshot)

    def priorities(most: int) -> list[object]:
        found = find_remedies(snapshot, FAIR, plan, "b", most_priority=most)
        return [one.change["priorities"] for one in found if "priorities" in one.change]

    assert priorities(1000) == [{"b": 4}]
    assert priorities(4) == [{"b": 4}]
    assert priorities(3) == [], "its namespace may not give it"


def test_slots_that_would_help_are_counted() -> None:
    waits = JobView("b", submitted_at=1.0, min_workers=3, max_workers=3)
    fixed = running("a", 4, min_workers=4)
    snapshot = cluster(5, fixed, waits)
    found = find_remedies(snapshot, FAIR, FAIR.plan(snapshot), "b")
    assert [one.change for one in found if "add_slots" in one.change] == [{"add_slots": 2}]


def test_slots_are_no_help_where_some_are_free() -> None:
    """In its cool-down a job was told that one more slot would help, beside three free ones."""
    policy = policy_by_name("goodput")
    scales = {n: 10.0 * n for n in (1, 2, 4)}
    job = running("a", 1, max_workers=4, throughput=scales, last_rescale_at=990.0, remaining_records=1e6)
    snapshot = cluster(4, job)
    plan = policy.plan(snapshot)
    assert plan.allocations["a"].reason.code is ReasonCode.CHANGED_LATELY
    assert not [one for one in find_remedies(snapshot, policy, plan, "a") if "add_slots" in one.change]


@pytest.mark.parametrize(
    ("asks", "workers", "more"), [(1.0, 3, 2), (0.5, 5, 1), (0.5, 6, 2), (0.4, 5, 1), (2.0, 2, 3)]
)
def test_devices_that_would_help_are_counted_with_those_that_are_free(asks: float, workers: int, more: int) -> None:
    """One of two devices is half free, and the other one wholly."""
    holds = {"worker": Resources(slots=1.0, gpu=0.5), "places": ((0,),), "fixed": Resources()}
    wants = {"worker": Resources(slots=1.0, gpu=asks), "min_workers": workers, "max_workers": workers}
    total = Resources(slots=16.0, gpu=2.0)
    capacity = Capacity(total, devices=(DeviceView("gpu0"), DeviceView("gpu1")))
    jobs = (running("a", 1, **holds), JobView("b", submitted_at=1.0, **wants))  # type: ignore[arg-type]
    snapshot = Snapshot(1000.0, jobs, capacity)
    found = find_remedies(snapshot, FAIR, FAIR.plan(snapshot), "b")
    assert [one.change for one in found if "devices" in one.change] == [{"devices": 2 + more}]


def test_a_limit_is_not_helped_by_slots_or_priority() -> None:
    waits = JobView("b", team="x", submitted_at=1.0, min_workers=2, max_workers=2)
    snapshot = cluster(9, running("a", 2, team="x", min_workers=2), waits, x=Quota(limit=Resources(slots=3.0)))
    found = find_remedies(snapshot, FAIR, FAIR.plan(snapshot), "b")
    assert {"add_slots": 1} not in [one.change for one in found]
    assert any("min_workers" in one.text for one in found)


def test_a_job_with_all_that_it_wants_may_raise_its_maximum() -> None:
    snapshot = cluster(4, running("a", 2))
    (one,) = find_remedies(snapshot, FAIR, FAIR.plan(snapshot), "a")
    assert one.change == {"sizes": {"a": {"min_workers": 1, "max_workers": 4}}}
    assert find_remedies(cluster(2, running("a", 2)), FAIR, FAIR.plan(cluster(2, running("a", 2))), "a") == []
    unwanted = replace(running("a", 2), wanted=False)
    assert find_remedies(cluster(2, unwanted), FAIR, FAIR.plan(cluster(2, unwanted)), "a") == []


def test_blockers_are_those_named_or_those_that_hold_most() -> None:
    job = JobView("b", max_workers=2)
    snapshot = cluster(4, running("a", 1), job, running("c", 3), running("d", 2, team="x"))

    def told(code: ReasonCode, *named: str, workers: int = 0) -> list[str]:
        return blockers(job, Allocation(workers, workers > 0, Reason(code, "", named)), snapshot)

    assert told(ReasonCode.WAITING_BEHIND, "c", "gone") == ["c"]
    assert told(ReasonCode.WAITING_FOR_CAPACITY) == ["c", "d", "a"]
    assert told(ReasonCode.WAITING_FOR_QUOTA) == ["c", "a"]
    assert told(ReasonCode.CLUSTER_FULL, workers=2) == []
    assert told(ReasonCode.AT_USEFUL_SIZE, workers=1) == []


def test_names_that_may_not_be_seen_are_left_out_of_a_text() -> None:
    text = "it would delay a-1, and a-12 too"
    assert hide_names(text, ["a-1", "a-12"]) == "it would delay another team's job, and another team's job too"
    assert hide_names(text, []) == text


def test_a_worker_that_could_only_stand_by_is_neither_promised_nor_given() -> None:
    """An update of a group is cut into two parts: a third member would compute nothing."""
    job = running("a", 2, max_workers=5, most_computing=2, throughput={1: 100.0, 2: 185.0})
    snapshot = cluster(9, job)
    plan = FAIR.plan(snapshot)
    assert plan.allocations["a"].workers == 2
    assert plan.allocations["a"].reason.code is ReasonCode.AT_MAX
    assert (
        "cut into 2 parts (microbatches), and more workers could only stand by" in plan.allocations["a"].reason.text
    )
    assert [one.workers for one in speeds(job)] == [1, 2]
    assert find_remedies(snapshot, FAIR, plan, "a") == []
    assert list(running("b", 3, min_workers=3, most_computing=2).sizes) == [2], "nor does it wait for one"


@pytest.mark.parametrize(
    ("of_spec", "strategy", "most"),
    [
        ("2", {"chosen": "AllReduceStrategy", "microbatches": 2}, 2),
        ("2", None, 2),
        ("0", {"chosen": "AllReduceStrategy", "microbatches": 4}, 4),
        ("0", {"chosen": "ParameterServerStrategy", "microbatches": None}, 0),
        (None, "strange", 0),
    ],
)
def test_how_many_can_compute_is_said_by_the_job_or_by_its_choice(
    of_spec: str | None, strategy: object, most: int
) -> None:
    assert most_computing(of_spec, {"strategy": strategy}) == most
