"""Records that are passed over: counted once, durable, shown, and a state of their own in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskId
from elasticdl_proto.v1 import master_pb2
from tests.integration.master.conftest import Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]


def account(records: int, **skipped: int) -> master_pb2.Account:
    fed = records - skipped.get("corrupt", 0)
    return master_pb2.Account(
        fed=fed,
        applied=fed - skipped.get("nan", 0),
        skipped=[
            master_pb2.Skip(reason=reason, records=count, example=f"{reason} of data.csv")
            for reason, count in skipped.items()
        ],
    )


def in_second_and_fourth(task: TaskId) -> master_pb2.Account:
    if task.index == 1:
        return account(task.records, nan=5)
    return account(task.records, corrupt=2) if task.index == 3 else account(task.records)


async def test_a_job_that_skipped_records_ends_in_a_state_of_its_own(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.account_of = in_second_and_fourth
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    assert job.api.status["skipped"] == [
        {"of": "main", "reason": "corrupt", "records": 4, "example": "corrupt of data.csv"},
        {"of": "main", "reason": "nan", "records": 10, "example": "nan of data.csv"},
    ]
    assert job.api.detail["skipped"] == job.api.status["skipped"]
    assert {task: [one["records"] for one in entry["skipped"]] for task, entry in job.api.accounts.items()} == {
        "t:0:1:10:20": [5],
        "t:1:1:10:20": [5],
        "t:0:3:30:40": [2],
        "t:1:3:30:40": [2],
    }
    told = [event["message"] for event in job.api.events if event["kind"] == "skipped"]
    assert told[0].endswith(" of data.csv")
    assert len(told) <= 4


async def test_the_next_master_knows_what_was_skipped(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.account_of = in_second_and_fourth
    job.processes.gate.clear()
    job.start_master()
    await job.api.pulse.until(lambda: bool(job.processes.living(Role.WORKER)))
    job.processes.gate.set()
    await job.api.pulse.until(lambda: len(job.processes.traces) >= 14)
    job.processes.gate.clear()
    await job.kill_master()
    job.processes.gate.set()
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    assert sum(entry["records"] for entry in job.api.status["skipped"]) == 14


async def test_what_is_done_again_after_a_restore_counts_once(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.account_of = in_second_and_fourth
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) >= 14)
    job.processes.kill(job.processes.living(Role.PS)[0])
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    assert sum(entry["records"] for entry in job.api.status["skipped"]) == 14
    assert len(job.api.accounts) == 4


async def test_the_rest_of_a_damaged_file_is_told(make_job: MakeJob) -> None:
    job = await make_job(data_reader_params={"on_corrupt": "skip", "kind": "tfrecord"}, data="damaged")
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    (entry,) = job.api.status["skipped"]
    assert (entry["of"], entry["reason"], entry["records"]) == ("main", "corrupt", None)
    assert str(job.folder / "data.csv") in entry["example"]
    assert "unknown number of records" in next(e["message"] for e in job.api.events if e["kind"] == "skipped")


async def test_rows_that_were_left_out_are_counted_in_records(make_job: MakeJob) -> None:
    """A ``feed`` that gives each record twice: ten rows of a task in bad minibatches are five records of it."""

    def repeated(task: TaskId) -> master_pb2.Account:
        left_out = 10 if task.index == 1 else 0
        skipped = [master_pb2.Skip(reason="nan", records=left_out, example="nan of data.csv")] if left_out else []
        fed = 2 * task.records
        return master_pb2.Account(fed=fed, applied=fed - left_out, skipped=skipped)

    job = await make_job()
    job.processes.account_of = repeated
    job.processes.tallied = lambda task, records: 2 * records - records * (task.index == 1)
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    assert [entry["records"] for entry in job.api.status["skipped"]] == [10]
    audit = job.api.status["audit"]
    assert (audit["state"], audit["skipped"], audit["duplicates"]) == ("passed", 10, 0)
    assert audit["committed"] == audit["planned"] - 10


async def test_the_reason_tells_of_an_early_end_and_of_skips(make_job: MakeJob) -> None:
    job = await make_job(validation_data="yes", num_epochs=3)
    stopping = {"monitor": "accuracy", "patience": 1, "mode": "max", "min_delta": 0.0}
    job.processes.description["callbacks"]["early_stopping"] = stopping
    job.processes.account_of = in_second_and_fourth
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED_WITH_SKIPS
    left = job.api.status["progress"]["records_total"] // 3
    assert job.api.reason == (
        f"accuracy did not improve on 0.5 in 1 evaluations; {left} of {3 * left} records were left out on purpose, "
        "and 14 were passed over"
    )
