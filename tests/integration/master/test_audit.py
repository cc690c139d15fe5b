"""The audit at a job's end, against parameter servers that tally what they applied."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskId
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]


async def test_a_job_without_faults_passes_with_exact_numbers(make_job: MakeJob) -> None:
    job = await make_job()
    job.api.target = 2
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert job.api.status["audit"] == {
        "state": "passed",
        "reason": "",
        "planned": 120,
        "committed": 120,
        "skipped": 0,
        "duplicates": 0,
    }
    assert (job.api.status["duplicates"], job.api.status["redone"]) == (0, 0)
    assert [event["message"] for event in job.api.events if event["kind"] == "audit"] == [
        "audit passed: 120 records planned, 120 in the model, 0 passed over"
    ]


async def test_records_that_are_not_in_the_model_fail_the_job_with_their_range(make_job: MakeJob) -> None:
    def lose(task: TaskId, records: int) -> int:
        return 0 if (task.epoch, task.index) == (1, 3) and records else records

    job = await make_job(shuffle=False)
    job.processes.tallied = lose
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert "SUCCEEDED" not in job.api.transitions
    path = job.folder / "data.csv"
    assert f"10 of the 10 records of task t:1:3:30:40, records 30 to 40 of {path}" in job.api.detail["message"]
    assert job.api.status["audit"]["state"] == "failed"
    assert job.api.status["audit"]["committed"] == 110


async def test_records_that_are_in_the_model_twice_are_counted_exactly(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.tallied = lambda task, records: 3 * records if (task.epoch, task.index) == (0, 2) else records
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert job.api.status["duplicates"] == job.api.status["audit"]["duplicates"] == 20
    (told,) = [event["message"] for event in job.api.events if event["kind"] == "audit"]
    assert told.endswith("120 in the model, 0 passed over, 20 of them more than once")


async def test_records_that_one_server_has_twice_are_counted_exactly(make_job: MakeJob) -> None:
    """A push was refused by the other one, when this had applied its part; then the task was done again."""
    job = await make_job()
    of_each_server = itertools.cycle((2, 1))
    job.processes.tallied = lambda task, records: (
        next(of_each_server) * records if (task.epoch, task.index) == (0, 2) else records
    )
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    audit = job.api.status["audit"]
    assert (audit["state"], audit["committed"], audit["duplicates"]) == ("passed", 120, 10)


async def test_a_master_that_redoes_nothing_after_a_restore_is_found_out(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger believes that all is done; the parameter servers know better."""
    monkeypatch.setattr("elasticdl_master.state.epochs.Epochs.roll_back", lambda epochs, snapshot: (0, []))
    job = await make_job(checkpoint_steps=4)
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: bool(job.api.checkpoints))
    for server in job.processes.servers.values():
        server.refuse_saves = "the disk is full"
    saved = max(manifest["records_done"] for manifest in job.api.checkpoints.values())
    epochs = job.runners[-1].machine.epochs
    await job.api.pulse.until(lambda: epochs.records_done >= saved + 30)
    job.processes.kill(job.processes.living(Role.PS)[0])
    for server in job.processes.servers.values():
        server.refuse_saves = ""
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert "the audit found that the model lacks records" in job.api.detail["message"]


async def test_what_was_lost_and_done_again_is_no_duplicate(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=4)
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(
        lambda: job.api.checkpoints and max(s.version for s in job.processes.servers.values()) > 10
    )
    job.processes.kill(job.processes.living(Role.PS)[1])
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    counts = job.counts()
    audited = job.api.status["audit"]
    assert (audited["state"], audited["committed"]) == ("passed", 120)
    assert audited["duplicates"] == max(sum(times - 1 for times in count.values()) for count in counts)


async def test_a_checkpoint_without_a_tally_leaves_the_audit_incomplete(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.gate.clear()
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.servers) == 2)
    for server in job.processes.servers.values():
        server.tally_complete = False
    job.processes.gate.set()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert job.api.status["audit"]["state"] == "incomplete"
    assert "does not say which records" in job.api.status["audit"]["reason"]
