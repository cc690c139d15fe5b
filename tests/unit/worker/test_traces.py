"""Traces: nothing depends on them, so what cannot be written is given up; and they are bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.loop import ExitReason
from elasticdl_worker.reporting.traces import TraceWriter
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit
TASK = Task(TaskId(TaskType.TRAINING, 0, 0, 0, 10), Shard("a", 0, 10))


async def test_a_trace_that_cannot_be_written_repeats_no_task(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "worker-0.0.jsonl").symlink_to("/dev/full")
    spec = make_spec()
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    records = add_training(master, spec)
    assert await work(master, parameters) is ExitReason.FINISHED
    await master.stop()
    assert not master.failures
    assert sum(report.account.applied for report in master.reports) == records
    assert "No space left on device" in master.reports[-1].trace_trouble


def test_a_folder_that_is_not_there_and_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("in the way")
    writer = TraceWriter(tmp_path, "worker-0.0")
    writer.append(TASK, "1.1.a", 0, 10)
    writer.close()
    assert "cannot write" in writer.trouble


def test_a_long_trace_is_put_aside_once(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, "worker-0.0", max_bytes=1000)
    for number in range(100):
        writer.append(TASK, f"1.{number}.a", 0, 10)
    writer.close()
    files = sorted((tmp_path / "traces").iterdir())
    assert [file.name for file in files] == ["worker-0.0.before.jsonl", "worker-0.0.jsonl"]
    assert all(file.stat().st_size < 1200 for file in files)
    assert json.loads(files[1].read_text().splitlines()[-1])["token"] == "1.99.a"


def test_lines_of_tasks_in_turns_name_their_own_task_and_lease(tmp_path: Path) -> None:
    other = Task(TaskId(TaskType.TRAINING, 3, 1, 10, 20), Shard("a", 10, 20))
    writer = TraceWriter(tmp_path, "worker-0.0")
    for task, token in [(TASK, "1.1.a"), (other, "1.2.a"), (TASK, "1.1.a"), (TASK, "1.3.a")]:
        writer.append(task, token, task.shard.start, task.shard.end, version=5)
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "traces" / "worker-0.0.jsonl").read_text().splitlines()]
    found = [(line["task"], line["token"], line["epoch"], line["start"], line["end"]) for line in lines]
    own = [(str(TASK.id), token, 0, 0, 10) for token in ("1.1.a", "1.1.a", "1.3.a")]
    assert found == [own[0], (str(other.id), "1.2.a", 3, 10, 20), *own[1:]]
    assert all(line["version"] == 5 and line["at"] > 0 for line in lines)
