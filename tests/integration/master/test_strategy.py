"""A master whose job leaves the strategy to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_master.processes import INSPECTOR
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]
AUTO = {"distribution_strategy": "auto", "num_ps": 1}
SMALL = {"dense_bytes": 4000}
LARGE = {"embedding_bytes": 1 << 30, "tables": 1}


def inspectors(job: Job) -> list[ProcessId]:
    return [one for one in job.processes.specs if one.role is Role.WORKER and one.index == INSPECTOR]


def strategy(job: Job) -> dict[str, Any]:
    return (job.api.status or {}).get("strategy") or {}


async def test_a_worker_looks_at_the_model_and_the_choice_is_told(make_job: MakeJob) -> None:
    job = await make_job(**AUTO)
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert len(inspectors(job)) == 1
    assert strategy(job)["chosen"] == "ParameterServerStrategy"
    assert "1 embedding table" in strategy(job)["reason"]
    (told,) = [event for event in job.api.events if event["kind"] == "strategy"]
    assert told["detail"]["chosen"] == "ParameterServerStrategy"
    assert not [event for event in job.api.events if event["kind"] == "worker_lost"]


async def test_nobody_looks_at_the_model_of_a_job_that_says_how_it_is_trained(make_job: MakeJob) -> None:
    job = await make_job()
    job.start_master()
    assert await job.finish() == 0
    assert inspectors(job) == []
    assert strategy(job) == {
        "chosen": "ParameterServerStrategy",
        "deterministic": False,
        "reason": "it was asked for",
        "microbatches": None,
        "records_per_update": 5,
        "updates_per_epoch": 12,
    }
    (told,) = [event["message"] for event in job.api.events if event["kind"] == "updates"]
    assert told == "ParameterServerStrategy: 5 records an update (minibatch_size), 12 updates an epoch"


async def test_the_choice_is_made_once_whatever_becomes_of_masters_and_workers(make_job: MakeJob) -> None:
    job = await make_job(**AUTO, minibatch_size=64)
    job.processes.profile = SMALL
    job.start_master()
    await job.api.pulse.until(lambda: strategy(job).get("records_per_update") == 64, 60.0)
    assert (strategy(job)["chosen"], strategy(job)["microbatches"]) == ("AllReduceStrategy", 4)
    await job.kill_master()
    job.processes.profile = LARGE
    job.api.spec["max_workers"] = 30
    job.start_master()
    await job.api.pulse.until(lambda: job.runners[-1].machine is not None, 60.0)
    machine = job.runners[-1].machine
    assert machine is not None
    assert (machine.spec.distribution_strategy, machine.spec.microbatches) == ("AllReduceStrategy", 4)
    assert len(inspectors(job)) == 1


async def test_a_master_that_dies_before_the_choice_leaves_it_to_the_next(make_job: MakeJob) -> None:
    job = await make_job(**AUTO)
    job.processes.profile = None
    job.start_master()
    await job.api.pulse.until(lambda: len(inspectors(job)) == 1, 60.0)
    await job.kill_master()
    job.processes.profile = LARGE
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert len(inspectors(job)) == 2


async def test_a_worker_that_dies_over_the_model_means_parameter_servers(make_job: MakeJob) -> None:
    job = await make_job(**AUTO)
    job.processes.profile = None
    job.start_master()
    await job.api.pulse.until(lambda: inspectors(job)[0] in job.processes.workers if inspectors(job) else False, 60.0)
    job.processes.kill(inspectors(job)[0])
    assert await job.finish() == 0
    assert "ended before it could say" in strategy(job)["reason"]


async def test_a_cancelled_job_does_not_wait_for_the_choice(make_job: MakeJob) -> None:
    job = await make_job(**AUTO)
    job.processes.profile = None
    job.start_master()
    await job.api.pulse.until(lambda: len(inspectors(job)) == 1, 60.0)
    job.api.state, job.api.desired = JobState.CANCELLING, "cancel"
    assert await job.finish() == 0
    assert job.api.state is JobState.CANCELLED
    assert not [event for event in job.api.events if event["kind"] == "strategy"]
