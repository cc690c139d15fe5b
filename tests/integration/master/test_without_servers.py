"""Jobs that do not train, without parameter servers: each worker reads the checkpoint that the master names."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskType
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]
ALONE = {"distribution_strategy": "AllReduceStrategy", "num_ps": 1, "training_data": ""}


async def trained(make_job: MakeJob) -> Job:
    """A job with a checkpoint."""
    job = await make_job()
    job.start_master()
    assert await job.finish() == 0
    return job


def evaluation(first: Job, **changes: Any) -> dict[str, Any]:
    """The fields of a job that evaluates what another one trained."""
    checkpoints = str(first.folder / "job" / "checkpoints")
    fields = {"type": "evaluation", "validation_data": "yes", "checkpoint_dir_for_init": checkpoints}
    return {**ALONE, **fields, **changes}


def newest(first: Job) -> Path:
    return Path(first.api.checkpoints[max(first.api.checkpoints)]["directory"])


def launched(job: Job, role: Role) -> int:
    return sum(one.role is role for one in job.processes.specs)


async def half_evaluated(job: Job) -> None:
    """Lets the job come to its last task, and no further."""
    job.processes.holds_back = lambda task: task.type is TaskType.EVALUATION and task.index == 2
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.evaluated) == 2, 60.0)


def check_once(job: Job, first: Job) -> None:
    """One evaluation, with each task done once, of the checkpoint that there was."""
    assert job.api.state is JobState.SUCCEEDED, job.api.detail
    (published,) = job.api.evaluations
    assert published["metrics"] == {"accuracy": 0.5, "n": 25}
    assert published["model_version"] == max(first.api.checkpoints)
    assert len(job.processes.evaluated) == len(dict(job.processes.evaluated)) == 3
    assert set(job.processes.read) == {str(job.folder / "job" / "initial")}
    assert launched(job, Role.PS) == 0


async def test_an_evaluation_has_workers_alone(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await make_job(**evaluation(first))
    job.start_master()
    assert await job.finish() == 0
    check_once(job, first)
    assert job.api.status["ps"] == []
    assert job.api.status["model_version"] == max(first.api.checkpoints)
    assert not (job.folder / "job" / "initial").exists(), "what nobody reads any more is removed"
    told = [event["message"] for event in job.api.events if event["kind"] == "restored"]
    assert told == [f"the workers hold the checkpoint of version {max(first.api.checkpoints)}"]


async def test_a_prediction_has_workers_alone(make_job: MakeJob) -> None:
    first = await trained(make_job)
    data = {"prediction_data": str(first.folder / "data.csv")}
    job = await make_job(**evaluation(first, type="prediction", validation_data="", **data))
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert len(job.api.done) == 6
    assert launched(job, Role.PS) == 0


async def test_auto_goes_by_the_tables_of_the_checkpoint(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await make_job(**evaluation(first, distribution_strategy="auto"))
    job.start_master()
    assert await job.finish() == 0
    check_once(job, first)
    assert job.api.status["strategy"]["chosen"] == "AllReduceStrategy"
    (told,) = [event for event in job.api.events if event["kind"] == "strategy"]
    assert "the checkpoint has no tables" in told["message"]
    assert launched(job, Role.WORKER) == 1, "nobody looked at the model"


async def test_the_next_master_and_its_workers_go_on_with_the_same_checkpoint(make_job: MakeJob) -> None:
    """Though it was removed meanwhile by the job that made it, and though there is a newer one."""
    first = await trained(make_job)
    job = await make_job(**evaluation(first))
    await half_evaluated(job)
    await job.kill_master()
    later = newest(first).with_name("version-later")
    shutil.move(newest(first), later)
    manifest = later / "manifest.json"
    version = max(first.api.checkpoints)
    text = manifest.read_text()
    assert f'"version": {version}' in text
    manifest.write_text(text.replace(f'"version": {version}', '"version": 987654'))

    job.start_master()
    await job.api.pulse.until(lambda: job.runners[-1].machine is not None, 60.0)
    (worker,) = job.processes.living(Role.WORKER)
    job.processes.kill(worker)
    job.processes.holds_back = lambda task: False
    assert await job.finish() == 0
    check_once(job, first)
    assert len(job.processes.read) == 2, "a worker took the place of the one that was killed"


async def test_a_queue_that_forgot_everything_costs_an_evaluation_its_work_and_no_more(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await make_job(**evaluation(first))
    await half_evaluated(job)
    await job.kill_master()
    with contextlib.closing(redis.Redis.from_url(job.redis.url)) as client:
        client.flushall()
    job.start_master()
    job.processes.holds_back = lambda task: False
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    (published,) = job.api.evaluations
    assert published["metrics"] == {"accuracy": 0.5, "n": 25}


async def test_a_suspended_evaluation_goes_on_with_its_checkpoint(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await make_job(**evaluation(first))
    await half_evaluated(job)
    job.api.desired = "suspend"
    assert await job.finish() == 0
    assert job.api.state is JobState.SUSPENDED
    shutil.rmtree(newest(first).parent)
    job.api.desired, job.api.state = "run", JobState.STARTING
    job.processes.holds_back = lambda task: False
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert launched(job, Role.PS) == 0


@pytest.mark.parametrize(("harm", "words"), [("gone", "is not whole"), ("altered", "is damaged")])
async def test_a_damaged_checkpoint_fails_the_job_before_anything_is_done(
    make_job: MakeJob, harm: str, words: str
) -> None:
    first = await trained(make_job)
    part = next(path for path in newest(first).iterdir() if path.name.startswith("ps-"))
    if harm == "gone":
        part.unlink()
    else:
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(bytes(data))
    job = await make_job(**evaluation(first))
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert words in job.api.reason
    assert "give another checkpoint_dir_for_init" in job.api.detail["fix"]
    assert job.processes.evaluated == []
