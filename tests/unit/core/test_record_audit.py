"""The audit from outside: what is marked as done against what workers wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticdl_core.record_audit import AuditedJob, RecordTraces, audit_records

pytestmark = pytest.mark.unit
PLAN = {"shards": [["a", 0, 60], ["b", 0, 40]], "records_per_task": 50, "rounds": 2}
MARKS = [f"t:{epoch}:{part}" for epoch in range(2) for part in ("0:0:50", "1:50:60", "2:0:40")]
PASSED = {"audit": {"state": "passed", "planned": 200, "duplicates": 3}}
JOB = AuditedJob("training", "SUCCEEDED", True, PLAN, dict.fromkeys(MARKS), PASSED)


def traced(marks: list[str], owner: str = "worker-0.0") -> RecordTraces:
    traces = RecordTraces("training")
    for number, mark in enumerate(marks):
        _, _, _, start, end = mark.split(":")
        line = {"task": mark, "token": f"1.{number}", "start": int(start), "end": int(end), "version": number}
        traces.add(owner, line)
    return traces


def test_what_every_trace_confirms_is_held_and_adds_up() -> None:
    found = audit_records(JOB, traced(MARKS))
    assert (found["verdict"], found["findings"], found["redone"], found["duplicates"]) == ("held", [], 0, 3)
    assert found["total"] == {"planned": 200, "committed": 200, "leased": 0, "todo": 0, "skipped": 0}
    assert [row["committed"] for row in found["epochs"]] == [100, 100]
    assert found["workers"] == [
        {"owner": "worker-0.0", "records": 200, "tasks": 6, "first_version": 0, "last_version": 5}
    ]


def test_a_mark_that_no_worker_can_account_for_breaks_the_promise() -> None:
    found = audit_records(JOB, traced(MARKS[:-1]))
    assert found["verdict"] == "broken"
    assert found["findings"] == ["marked as done, and in no worker's trace: 40 records of task 2 of epoch 2"]


def test_traces_that_are_known_to_be_cut_prove_nothing() -> None:
    traces = traced(MARKS[:-1])
    traces.trouble = "a disk was full"
    found = audit_records(JOB, traces)
    assert (found["verdict"], len(found["findings"])) == ("held", 1)


def test_a_job_that_succeeded_with_records_left_is_broken_unless_training_ended_by_its_rules() -> None:
    short = replace(JOB, done=dict.fromkeys(MARKS[:3]))
    found = audit_records(short, traced(MARKS[:3]))
    assert (found["verdict"], found["total"]["todo"]) == ("broken", 100)
    stopped = replace(short, status={"audit": {"state": "passed", "planned": 100, "duplicates": 0}})
    assert audit_records(stopped, traced(MARKS[:3]))["verdict"] == "held"
    cancelled = replace(short, state="CANCELLED", status={})
    assert audit_records(cancelled, traced(MARKS[:3]))["verdict"] == "held"


def test_what_is_done_again_in_parts_or_skipped_is_counted_once() -> None:
    skips = {"skipped": [{"reason": "corrupt", "records": 5, "example": "a:3"}]}
    done: dict[str, Any] = {**dict.fromkeys(MARKS), "t:0:0:0:20": skips, "t:0:0:0:50": skips}
    traces = traced([*MARKS, "t:0:0:0:20"])
    found = audit_records(replace(JOB, done=done), traces)
    assert found["epochs"][0] == {"epoch": 1, "planned": 100, "committed": 95, "leased": 0, "todo": 0, "skipped": 5}
    assert (found["redone"], found["verdict"]) == (20, "held")


def test_a_running_job_shows_what_is_leased() -> None:
    running = replace(
        JOB,
        state="RUNNING",
        terminal=False,
        done=dict.fromkeys(MARKS[:3]),
        status={"ledger": {"epoch": 1, "leased": 50}},
    )
    found = audit_records(running, traced(MARKS[:3]))
    assert (found["verdict"], found["total"]) == (
        "running",
        {"planned": 200, "committed": 100, "leased": 50, "todo": 50, "skipped": 0},
    )
    assert audit_records(replace(running, plan=None, done={}), RecordTraces("training"))["epochs"] == []


@pytest.mark.parametrize(
    "line",
    [None, 7, {}, {"task": "x"}, {"task": "t:0:0:0:50", "token": "1", "start": 0, "end": 10**9}, {"task": MARKS}],
)
def test_a_line_that_is_none_is_told_and_counts_nothing(line: object) -> None:
    traces = traced(MARKS)
    traces.add("worker-0.0", line)
    found = audit_records(JOB, traces)
    assert "wrote what is no line" in found["findings"][0]
    assert found["workers"][0]["records"] == 200
