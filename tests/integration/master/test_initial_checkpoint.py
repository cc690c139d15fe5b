"""Jobs with parameter servers that begin with another job's checkpoint: it is the same one for every master."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskType
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]
ON_SERVERS = {"distribution_strategy": "ParameterServerStrategy"}
LATER = 987654


async def trained(make_job: MakeJob) -> Job:
    """A job with a checkpoint."""
    job = await make_job()
    job.start_master()
    assert await job.finish() == 0
    return job


def folder_of(first: Job) -> Path:
    return first.folder / "job" / "checkpoints"


def newest(first: Job) -> Path:
    return Path(first.api.checkpoints[max(first.api.checkpoints)]["directory"])


def add_newer(first: Job) -> None:
    """The job that trains has saved once more."""
    later = folder_of(first) / "version-later"
    shutil.copytree(newest(first), later)
    manifest = json.loads((later / "manifest.json").read_text())
    for file in manifest["files"]:
        content = json.loads((later / file["name"]).read_text())
        data = json.dumps({**content, "version": LATER}).encode()
        (later / file["name"]).write_bytes(data)
        file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest.update(version=LATER, created_at=manifest["created_at"] + 1.0)
    (later / "manifest.json").write_text(json.dumps(manifest))


async def evaluation(make_job: MakeJob, first: Job, **changes: Any) -> Job:
    """A job that evaluates what another one trained, up to its last task and no further."""
    job = await make_job(
        **ON_SERVERS,
        type="evaluation",
        training_data="",
        validation_data="yes",
        checkpoint_dir_for_init=str(folder_of(first)),
        **changes,
    )
    job.processes.holds_back = lambda task: task.type is TaskType.EVALUATION and task.index == 2
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.evaluated) == 2, 60.0)
    return job


@pytest.mark.parametrize("lost", [(), (Role.PS,)], ids=["the master", "the master and a parameter server"])
async def test_the_next_master_evaluates_the_same_checkpoint_though_there_is_a_newer_one(
    make_job: MakeJob, lost: tuple[Role, ...]
) -> None:
    first = await trained(make_job)
    job = await evaluation(make_job, first)
    await job.kill_master()
    add_newer(first)
    for role in lost:
        job.processes.kill(job.processes.living(role)[0])
    job.processes.holds_back = lambda task: False
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED, job.api.detail
    (published,) = job.api.evaluations
    assert published["model_version"] == max(first.api.checkpoints) == job.api.status["model_version"]
    assert not any((job.folder / "job").glob("initial*")), "what nobody reads any more is removed"


async def test_a_checkpoint_that_was_removed_is_missed_only_where_it_must_be_read_again(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await evaluation(make_job, first)
    await job.kill_master()
    shutil.rmtree(folder_of(first))
    job.processes.holds_back = lambda task: False
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED, job.api.detail


async def test_servers_that_cannot_read_the_checkpoint_again_fail_the_job_and_say_why(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await evaluation(make_job, first)
    shutil.rmtree(folder_of(first))
    job.processes.kill(job.processes.living(Role.PS)[0])
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert "cannot start from checkpoint" in job.api.reason
    assert job.api.detail["fix"] == "use another checkpoint, or give another checkpoint_dir_for_init"


async def training(make_job: MakeJob, first: Job, **changes: Any) -> Job:
    """A job that goes on from what another one trained, in the midst of it and no further."""
    job = await make_job(**ON_SERVERS, checkpoint_dir_for_init=str(folder_of(first)), **changes)
    job.processes.fail_on = lambda task, position: job.processes.gate.clear() if task.index == 4 else None
    job.start_master()
    await job.api.pulse.until(lambda: not job.processes.gate.is_set(), 60.0)
    job.processes.fail_on = lambda task, position: None
    return job


async def test_training_goes_on_without_the_checkpoint_that_it_began_with(make_job: MakeJob) -> None:
    first = await trained(make_job)
    job = await training(make_job, first, checkpoint_steps=4)
    await job.api.pulse.until(lambda: bool(job.api.checkpoints), 60.0)
    await job.kill_master()
    shutil.rmtree(folder_of(first))
    for server in job.processes.living(Role.PS):
        job.processes.kill(server)
    job.start_master()
    job.processes.gate.set()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED, job.api.detail
    assert job.api.status["start_version"] == max(first.api.checkpoints)


async def test_updates_are_counted_from_where_the_job_began_though_there_is_a_newer_checkpoint(
    make_job: MakeJob,
) -> None:
    first = await trained(make_job)
    job = await training(make_job, first)
    await job.kill_master()
    add_newer(first)
    job.start_master()
    job.processes.gate.set()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED, job.api.detail
    assert job.api.status["start_version"] == max(first.api.checkpoints)
    assert job.api.status["model_version"] < LATER


async def test_a_checkpoint_that_another_job_begins_with_is_removed_later(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=4, keep_checkpoint_max=1)
    job.processes.fail_on = lambda task, position: job.processes.gate.clear() if task.index == 2 else None
    job.start_master()
    await job.api.pulse.until(lambda: bool(job.api.checkpoints), 60.0)
    (first,) = (Path(one["directory"]) for one in job.api.checkpoints.values())
    job.api.in_use.add(str(first))
    job.processes.fail_on = lambda task, position: None
    job.processes.gate.set()
    await job.api.pulse.until(lambda: len(job.api.checkpoints) > 2, 60.0)
    assert (first / "manifest.json").is_file()
    job.api.in_use.clear()
    assert await job.finish() == 0
    assert not first.exists()
    assert len(job.api.checkpoints) == 1
