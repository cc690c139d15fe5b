"""What the master does not take of a worker: the job ends or says so, and never waits for ever."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_core.shard import Shard
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_core.task import TaskType
from elasticdl_master.json_forms import check_result
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.lifecycle import within
from elasticdl_worker.group import master_session as attending
from elasticdl_worker.group.master_session import MasterSession
from elasticdl_worker.master.client import MasterClient
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.accounts import TaskAccount
from tests.fakes.master import FakeMaster

pytestmark = pytest.mark.unit
BYTES = os.fsdecode(b"m\xff")


class DeafMaster(FakeMaster):
    """Takes no report, and, on demand, no failure either."""

    deaf = False

    async def Report(self, request: pb.ReportRequest, caller: str) -> pb.ReportResponse:
        raise InvalidInputError("the result of the task does not have its form", fix="use this version's worker")

    async def Fail(self, request: pb.FailRequest, caller: str) -> pb.FailResponse:
        if self.deaf:
            raise InvalidInputError("that neither", fix="leave")
        return await super().Fail(request, caller)

    async def Meet(self, request: pb.MeetRequest, caller: str) -> pb.MeetResponse:
        raise InvalidInputError("that is no task", fix="use this version's worker")


async def _report(master: FakeMaster, result: Any, account: TaskAccount | None = None) -> None:
    await master.start()
    master.add(TaskType.EVALUATION, Shard("a", 0, 10))
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    try:
        session = Session(client, short_task_s=math.inf)
        lease = await asyncio.to_thread(session.lease_task)
        assert lease is not None
        await asyncio.to_thread(session.report, lease, 10, result, 1, account)
        await asyncio.sleep(0)
        await session.flush()
    finally:
        await client.close()
        await master.stop()


async def test_a_refused_report_fails_its_task(make_spec: Any, tmp_path: Path) -> None:
    """It was logged and dropped: the job stayed RUNNING at 100 % for ever, with its slot held."""
    master = DeafMaster(make_spec(), tmp_path)
    await _report(master, {"records": 10})
    (failure,) = master.failures
    assert failure.kind == "infrastructure"
    assert failure.task_id
    assert "the result of the task does not have its form" in failure.message


async def test_what_cannot_even_be_said_fails_its_task(make_spec: Any, tmp_path: Path) -> None:
    master = FakeMaster(make_spec(), tmp_path)
    await _report(master, {"records": object()})
    assert "not JSON serializable" in master.failures[0].message


async def test_a_worker_that_is_not_heard_at_all_ends(make_spec: Any, tmp_path: Path) -> None:
    master = DeafMaster(make_spec(), tmp_path)
    master.deaf = True
    with pytest.raises(ElasticDLError, match="does not take the report of task"):
        await _report(master, {"records": 10})


async def test_a_member_that_is_not_heard_leaves(
    make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attending, "_PAUSE_S", 0.0)
    monkeypatch.setattr(attending, "_LEAST_S", 0.0)
    master = DeafMaster(make_spec(), tmp_path)
    await master.start()
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    session = Session(client, heartbeat_s=0.0)
    master_session = MasterSession(client, session, "worker-0.0", b"here", lambda why: None)
    master_session.start()
    try:
        with pytest.raises(ElasticDLError, match="does not take what a member of the group says: that is no task"):
            await within(session.send_heartbeats(), 60)
    finally:
        await master_session.close()
        await client.close()
        await master.stop()
    assert "that is no task" in master.failures[0].message


async def test_text_that_is_not_unicode_is_escaped_on_its_way(make_spec: Any, tmp_path: Path) -> None:
    master = FakeMaster(make_spec(), tmp_path)
    skips = Skips.of(SkipReason.CORRUPT, 1, f"record 0 of {BYTES}")
    result = {"states": {BYTES: {"total": 1.0}}, "records": 9}
    await _report(master, result, TaskAccount(9, 9, skips))
    (report,) = master.reports
    assert report.account.skipped[0].example == "record 0 of m\\xff"
    check_result(report.result)
    assert b"m\\\\xff" in report.result

    failing = FakeMaster(make_spec(), tmp_path)
    await failing.start()
    client = MasterClient(failing.address, lambda: "token", patience_s=60)
    session = Session(client)
    await asyncio.to_thread(session.fail, None, ValueError(f"no file {BYTES}"))
    await client.close()
    await failing.stop()
    assert failing.failures[0].message == "ValueError: no file m\\xff"
