"""What past jobs tell of the jobs of a question: by their kind, as that of a submission would be."""

from __future__ import annotations

import pytest

from elasticdl_api.scheduling.cluster_view import ClusterView
from elasticdl_api.scheduling.what_if import change_of
from elasticdl_api.schemas.scheduling import HypotheticalJob, WhatIf
from elasticdl_api.store.scheduling import ObservedCluster
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Capacity, JobView, Snapshot, policy_by_name
from elasticdl_runtime.scheduling import kind_of

pytestmark = pytest.mark.unit
SPEEDS = {1: 100.0, 2: 180.0}


def added(asked: HypotheticalJob) -> JobView:
    spec = JobSpec(model_def="digits.model", training_data="/data")
    known = {kind_of("default", spec.to_mapping()): SPEEDS}
    seen = ObservedCluster(now=0.0, rows=[], past=[], work=[], latest=[], last=None, decision=None, namespaces=[])
    view = ClusterView(
        seen,
        Snapshot(now=0.0, jobs=(), capacity=Capacity.of_slots(4)),
        policy_by_name("fifo"),
        CapacityInfo(4, {}),
        known,
    )
    (job,) = change_of(WhatIf(add=[asked]), view, None, "default").add
    return job


def test_a_job_of_a_known_model_is_as_fast_as_those_before_it() -> None:
    job = added(HypotheticalJob(model_def="digits.model"))
    assert job.kind.startswith("default/digits.model/64/1/true/")
    assert dict(job.prior_throughput) == SPEEDS
    assert dict(added(HypotheticalJob(model_def="digits.model", minibatch_size=7)).prior_throughput) == {}


def test_a_job_without_a_model_is_of_no_kind() -> None:
    job = added(HypotheticalJob(min_workers=1, max_workers=2, records=10.0, minibatch_size=64))
    assert (job.kind, dict(job.prior_throughput)) == ("", {})


@pytest.mark.parametrize(
    "changes",
    [
        {"model_bundle": "sha256:" + "2" * 64},
        {"model_params": {"width": 8192}},
        {"training_data": "/other"},
        {"data_reader_params": {"sep": ";"}},
        {"distribution_strategy": "AllReduceStrategy"},
        {"worker_resource_request": "gpu=0.5"},
        {"envs": {"OMP_NUM_THREADS": "1"}},
        {"minibatch_size": 7},
    ],
    ids=str,
)
def test_what_determines_speed_makes_another_kind(changes: dict[str, object]) -> None:
    """File and function name were all of it: a job of 42 s was told the end of another team's, 12 minutes."""
    given = {"model_def": "model.forward", "model_bundle": "sha256:" + "1" * 64, "training_data": "/data"}
    kind = kind_of("shop", JobSpec.from_mapping(given).to_mapping())
    assert kind_of("shop", JobSpec.from_mapping({**given, **changes}).to_mapping()) != kind
    assert kind_of("search", JobSpec.from_mapping(given).to_mapping()) != kind
    alike = {
        "name": "b",
        "num_epochs": 7,
        "max_steps": 9,
        "optimizer_params": {"lr": 1.0},
        "priority": 3,
        "max_workers": 4,
    }
    assert kind_of("shop", JobSpec.from_mapping({**given, **alike}).to_mapping()) == kind


def test_fields_of_later_releases_leave_kinds_as_they_are() -> None:
    given = JobSpec(model_def="model.forward").to_mapping()
    assert kind_of("shop", given) == kind_of(
        "shop", {"model_def": "model.forward", "minibatch_size": 64, "num_ps": 1, "use_async": True}
    )
