"""The watch over limits: a job that cannot be looked at keeps no other from its limits, and is tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl_agent import limits
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.entry import ProcessEntry
from elasticdl_agent.limits import LimitWatch
from elasticdl_agent.processes.quotas import TOO_MUCH_DISK, OverQuota
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, ProcessStatus, Role
from elasticdl_runtime.lifecycle import within

pytestmark = pytest.mark.unit


class Killed:
    """A child that only notes its end."""

    def __init__(self) -> None:
        self.pid = 0
        self.gone = asyncio.Event()

    def kill(self) -> None:
        self.gone.set()


def entry(job_id: str, index: int = 0) -> Any:
    process = ProcessId(job_id, Role.WORKER, index, 0)
    child: Any = Killed()
    return ProcessEntry(ProcessSpec(process), ProcessStatus(process, ProcessState.RUNNING), child)


async def test_a_job_whose_disk_cannot_be_seen_keeps_no_other_from_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "QUOTA_CHECK_S", 0.01)
    hidden, full, other = entry("hidden-aaaaaa"), entry("full-aaaaaa"), entry("full-aaaaaa", 1)

    def look(job_id: str, workers: Any, uid: int | None) -> OverQuota | None:
        if job_id == "hidden-aaaaaa" and not full.child.gone.is_set():
            raise RuntimeError("planted")
        return OverQuota(TOO_MUCH_DISK, "too much")

    quotas: Any = SimpleNamespace(look=look)
    directories = AgentDirectories(tmp_path, tmp_path / "run")
    for one in (hidden, full, other):
        directories.log_file(one.spec.id).parent.mkdir(parents=True, exist_ok=True)
    watch = LimitWatch(directories, lambda: [hidden, full, other], lambda spec: None, range(0), quotas)
    try:
        await within(full.child.gone.wait(), 60)
        assert other.child.gone.is_set(), "all workers of a job are ended for what it takes"
        await within(hidden.child.gone.wait(), 60)
    finally:
        await watch.close()
