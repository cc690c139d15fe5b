"""What past jobs tell of the jobs of a question: by their kind, as that of a submission would be."""

from __future__ import annotations

import pytest

from elasticdl_api.scheduling.cluster_view import ClusterView
from elasticdl_api.scheduling.what_if import change_of
from elasticdl_api.schemas.scheduling import HypotheticalJob, WhatIf
from elasticdl_api.store.scheduling import Seen
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Capacity, JobView, Snapshot, policy_by_name
from elasticdl_runtime.scheduling import KIND_FIELDS, kind_of

pytestmark = pytest.mark.unit
SPEEDS = {1: 100.0, 2: 180.0}


def added(asked: HypotheticalJob) -> JobView:
    spec = JobSpec(model_def="digits.model", training_data="/data")
    known = {kind_of("default", {name: getattr(spec, name) for name in KIND_FIELDS}): SPEEDS}
    seen = Seen(now=0.0, rows=[], past=[], last=None, decision=None)
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
    assert (job.kind, dict(job.prior_throughput)) == ("default/digits.model/64/1/true", SPEEDS)
    assert dict(added(HypotheticalJob(model_def="digits.model", minibatch_size=7)).prior_throughput) == {}


def test_a_job_without_a_model_is_of_no_kind() -> None:
    job = added(HypotheticalJob(min_workers=1, max_workers=2, records=10.0, minibatch_size=64))
    assert (job.kind, dict(job.prior_throughput)) == ("", {})
