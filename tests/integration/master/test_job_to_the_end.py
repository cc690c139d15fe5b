from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]


async def test_training_ends_with_every_record_applied_once_and_an_export(make_job: MakeJob) -> None:
    job = await make_job(validation_data="yes")
    job.api.target = 2
    job.start_master()
    assert await job.finish() == 0
    assert job.api.transitions == ["RUNNING", "SUCCEEDED"]
    for counts in job.counts():
        assert set(counts) == job.records()
        assert set(counts.values()) == {1}
    assert sum(end - start for *_, start, end in job.processes.traces) == 120
    assert [e["metrics"]["n"] for e in job.api.evaluations] == [25, 25]
    assert [e["training_epoch"] for e in job.api.evaluations] == [1, 2]
    (export,) = job.processes.exports
    (manifest,) = job.api.checkpoints.values()
    assert export["manifest"]["files"] == manifest["files"]
    assert export["checkpoint_directory"] == manifest["directory"]
    assert export["formats"] == ["auto"]
    assert export["output"] == str(job.folder / "job" / "artifacts" / "model")
    assert [(a["name"], a["path"]) for a in job.api.artifacts] == [("model/model.keras", "model/model.keras")]
    assert job.api.plan["shards"] == [[str(job.folder / "data.csv"), 0, 60]]
    known = {**job.api.plan["fingerprints"], **job.api.plan["validation_fingerprints"]}
    assert set(known) == {str(job.folder / "data.csv"), str(job.folder / "val.csv")}
    progress = job.api.status["progress"]
    assert progress["records_done"] == progress["records_total"] == 120
    assert job.api.status["duplicates"] == 0
    assert job.processes.living(Role.WORKER) == job.processes.living(Role.PS) == []


async def test_a_prediction_job_reads_all_records_once(make_job: MakeJob) -> None:
    trained = await make_job()
    trained.start_master()
    assert await trained.finish() == 0
    job = await make_job(
        type="prediction",
        training_data="",
        prediction_data=str(trained.folder / "data.csv"),
        checkpoint_dir_for_init=str(trained.folder / "job" / "checkpoints"),
    )
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert len(job.api.done) == 6
    assert job.api.checkpoints == {}


async def test_an_evaluation_job_publishes_one_evaluation(make_job: MakeJob) -> None:
    trained = await make_job()
    trained.start_master()
    assert await trained.finish() == 0
    job = await make_job(
        type="evaluation",
        training_data="",
        validation_data="yes",
        checkpoint_dir_for_init=str(trained.folder / "job" / "checkpoints"),
    )
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    (evaluation,) = job.api.evaluations
    assert evaluation["metrics"] == {"accuracy": 0.5, "n": 25}
    assert evaluation["model_version"] == max(trained.api.checkpoints)


async def test_metrics_that_are_no_numbers_are_published_and_end_nothing(make_job: MakeJob) -> None:
    job = await make_job(validation_data="yes")
    job.processes.metrics = lambda number: {"auc": math.nan, "mse": math.inf, "least": -math.inf}
    job.processes.training_metrics = {"auc": math.nan, "accuracy": 0.5}
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    published = [{name: e["metrics"][name] for name in ("auc", "mse", "least")} for e in job.api.evaluations]
    assert published == [{"auc": "NaN", "mse": "Infinity", "least": "-Infinity"}] * 2
    assert job.api.status["metrics"]["auc"] == "NaN"
    assert job.api.status["training_metrics"] == {"auc": "NaN", "accuracy": 0.5}


async def test_an_evaluation_over_no_records_says_so(make_job: MakeJob) -> None:
    job = await make_job(validation_data="yes")
    job.processes.evaluated_records = lambda task: 0
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert [e["metrics"] for e in job.api.evaluations] == [{}, {}]
    assert job.api.status["evaluation"] == "no records"
    assert [e["kind"] for e in job.api.events].count("evaluation_empty") == 2
