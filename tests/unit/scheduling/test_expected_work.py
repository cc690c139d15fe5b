"""The work of jobs that never ran, as others counted the same data."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import JobView
from elasticdl_core.scheduling.expected_work import ExpectedWork, expected_work
from elasticdl_runtime.scheduling import (
    BOUND_ERROR,
    Views,
    data_key,
    mean_speeds,
    mean_work,
    packed,
    rates,
    snapshot_of,
    unpacked,
)

pytestmark = pytest.mark.unit


def row(job_id: str, status: Any = None, **columns: Any) -> dict[str, Any]:
    return {
        "id": job_id,
        "namespace": "shop",
        "state": "QUEUED",
        "desired": "run",
        "priority": 0,
        "kind": "",
        "min_workers": 1,
        "max_workers": 1,
        "target_workers": 0,
        "submitted_at": 0.0,
        "started_at": None,
        "last_rescale_at": None,
        "worker_resource_request": "",
        "data_key": "d",
        "num_epochs": "1",
        "max_steps": "0",
        "minibatch_size": "64",
        "use_async": "true",
        "grads_to_wait": "1",
        "status": status or {},
        **columns,
    }


def counted(total: float, done: float = 0.0, **progress: Any) -> dict[str, Any]:
    return {"progress": {"records_total": total, "records_done": done, **progress}}


def remaining(*rows: dict[str, Any], **works: ExpectedWork) -> dict[str, tuple[float | None, float]]:
    snapshot = snapshot_of(0.0, rows, {}, CapacityInfo(4), {}, works=works)
    return {job.id: (job.remaining_records, job.work_error) for job in snapshot.jobs}


def test_a_job_that_never_ran_has_the_records_of_those_on_the_same_data() -> None:
    """It was unknown, so that no job could go before a reserved one, and none that waits had an end."""
    running = row("running", counted(3000.0, 1000.0), num_epochs="3")
    waits = row("waits", num_epochs="2")
    found = remaining(running, waits, row("other", data_key="e"), row("none", data_key=""))
    assert found["running"] == (2000.0, 0.0)
    records, error = found["waits"]
    assert (records, error > 0) == (2000.0, True), "two epochs of a thousand, which may have changed since"
    assert found["other"] == found["none"] == (None, 0.0)
    assert remaining(waits, d=ExpectedWork(700.0, 0.2))["waits"] == (1400.0, 0.2)
    assert remaining(running, waits, d=ExpectedWork(700.0, 0.2))["waits"][0] == 2000.0, "who runs counted last"


def test_what_is_still_being_listed_is_no_count() -> None:
    assert mean_work([row("a", counted(50.0, listing=True)), row("b", {"progress": 3}), row("c")]) == {}


@pytest.mark.parametrize("absurd", [10**400, 1e308, math.inf])
def test_numbers_that_no_job_has_keep_nobody_from_being_planned(absurd: float) -> None:
    status = {**counted(absurd), "throughput": {"1": absurd, "2": absurd}}
    rows = [row("a", status), row("b", status), row("c", counted(100)), row("d", num_epochs="2")]
    seen = snapshot_of(0.0, rows, {}, CapacityInfo(4), {})
    assert {job.id: job.remaining_records for job in seen.jobs} == {"a": 100, "b": 100, "c": 100, "d": 200}
    assert mean_speeds([{"kind": "k", "throughput": status["throughput"]}] * 2) == {}


def test_whoever_stops_after_so_many_updates_has_no_more_to_do() -> None:
    stops = {"max_steps": "10", "minibatch_size": "64"}
    found = remaining(
        row("fresh", **stops),
        row("runs", counted(10_000.0, 100.0), data_key="", **stops),
        row("less", counted(320.0), data_key="", **stops),
        row("synchronous", **stops, data_key="", use_async="false", grads_to_wait="3"),
        row("group", **stops, data_key="", grads_to_wait="3", distribution_strategy="AllReduceStrategy"),
    )
    assert {name: records for name, (records, _) in found.items()} == {
        "fresh": 640.0,
        "runs": 540.0,
        "less": 320.0,
        "synchronous": 1920.0,
        "group": 640.0,
    }


def test_a_bound_alone_is_not_told_as_certain() -> None:
    """Ten thousand updates of an epoch of ten: it ended in a thousandth of what was told, beside a narrow band."""
    stops = {"max_steps": "10", "minibatch_size": "64"}
    close = {"d": ExpectedWork(660.0, 0.1)}
    assert remaining(row("fresh", **stops, data_key=""))["fresh"] == (640.0, BOUND_ERROR)
    assert remaining(row("runs", counted(10_000.0), **stops))["runs"] == (640.0, 0.0)
    assert remaining(row("far", **stops), d=ExpectedWork(6400.0, 0.1))["far"] == (640.0, 0.0)
    assert remaining(row("close", **stops), **close)["close"] == (640.0, 0.1), "the data may have fewer than ten now"


def test_different_counts_widen_the_band() -> None:
    assert expected_work([]) is None
    same, other = expected_work([100.0] * 3), expected_work([50.0, 150.0])
    assert same is not None
    assert other is not None
    assert (same.records, other.records) == (100.0, 100.0)
    assert same.spread < 0.2 < 0.8 < other.spread
    assert expected_work([100.0] * 5 + [1e9]) == same, "the last ones"


def test_a_job_that_did_not_change_is_the_same_object_in_the_next_snapshot() -> None:
    """Ten thousand jobs were read anew in each pass, and a planner compared all of them."""
    views: Views = {}

    def read(*rows: dict[str, Any], used: int = 0) -> dict[str, JobView]:
        capacity = CapacityInfo(4, {"a": used})
        return dict(snapshot_of(0.0, rows, {}, capacity, {}, views=views).by_id)

    before = read(row("a", counted(50.0)), row("b", data_key="e"), row("gone"))
    after = read(row("a", counted(50.0, 10.0)), row("b", data_key="e"))
    assert (after["a"].remaining_records, after["b"] is before["b"]) == (40.0, True)
    assert read(row("a", counted(50.0, 10.0)), used=1)["a"].live_workers == 1
    assert set(views) == {"a"}


def test_what_is_kept_of_a_job_that_goes_on_is_as_if_it_were_made_anew() -> None:
    """Only its progress is worked out, if nothing else of it changed."""
    views: Views = {}
    running = {"state": "RUNNING", "target_workers": 2, "max_workers": 8}
    course: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        (counted(50.0, 10.0), {}),
        (counted(50.0, 20.0) | {"throughput": {"2": 20.0, "1": 12.34567}}, {}),
        (counted(50.0, 30.0) | {"throughput": {"2": 20.0, "1": 12.34567}, "worker_seconds": 7.5}, {}),
        (counted(50.0, 30.0) | {"throughput": {"2": 31.0}, "rescale_cost_s": 4.0}, {}),
        (counted(50.0, 30.0) | {"throughput": {"2": 31.0}, "strategy": {"microbatches": 4}}, {}),
        (counted(50.0, 40.0) | {"strategy": {"microbatches": 4}}, {"max_workers": 6}),
        ({"progress": "nonsense"}, {"max_workers": 6, "priority": 3}),
        ({}, {}),
    ]
    for status, columns in course:
        rows = [row("a", status, **running | columns), row("b", num_epochs="3")]
        kept = snapshot_of(0.0, rows, {}, CapacityInfo(4, {"a": 2}), {}, views=views)
        anew = snapshot_of(0.0, rows, {}, CapacityInfo(4, {"a": 2}), {})
        assert (kept, kept.digest()) == (anew, anew.digest())
        assert [job.curve for job in kept.jobs] == [job.curve for job in anew.jobs]
    assert rates({"1": 12.34567}) == {1: 12.3}


@pytest.mark.parametrize(
    ("columns", "worker", "servers"),
    [
        ({}, 0.0, 0.0),
        ({"worker_memory_mib": "512", "num_ps": "2"}, 512.0, 0.0),
        ({"worker_memory_mib": "512", "ps_memory_mib": "100", "num_ps": "2"}, 512.0, 200.0),
        ({"ps_memory_mib": "100", "num_ps": "2", "distribution_strategy": "AllReduceStrategy"}, 0.0, 0.0),
    ],
)
def test_memory_that_processes_may_take_is_planned(columns: dict[str, str], worker: float, servers: float) -> None:
    snapshot = snapshot_of(0.0, [row("a", **columns)], {}, CapacityInfo(4, memory_mib=2048), {})
    (job,) = snapshot.jobs
    assert (job.worker.slots, job.worker.memory, job.fixed.memory) == (1.0, worker, servers)
    assert (snapshot.capacity.total.memory, len(snapshot.limited)) == (2048.0, 2 if worker or servers else 1)


def test_what_is_packed_for_the_log_is_read_back_and_so_is_what_was_not() -> None:
    whole = {"now": 1.5, "jobs": [{"id": "ä"}]}
    assert unpacked(packed(json.dumps(whole))) == unpacked(whole) == whole


def test_jobs_of_other_data_have_other_keys() -> None:
    def key(namespace: str = "shop", **fields: Any) -> str:
        given = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data", **fields}
        return data_key(namespace, JobSpec.from_mapping(given).to_mapping())

    assert key() == key(model_def="n.g", minibatch_size=7, num_epochs=3) != ""
    assert (
        key(type="evaluation", validation_data="/data", training_data="", checkpoint_dir_for_init="/saved") == key()
    ), "the same records"
    others = {key("search"), key(training_data="/more"), key(data_reader_params={"sep": ";"})}
    own = {key(custom_data_reader="read"), key(custom_data_reader="read", model_def="n.g")}
    assert len({key(), *others, *own}) == 6
    assert data_key("shop", JobSpec(model_def="m.f").to_mapping()) == ""
