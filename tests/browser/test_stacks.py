"""One click shows where all processes of a job stand, told apart by what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from elasticdl_core.ports.launcher import ProcessId, Role
from tests.browser.visits import Visit
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser
JOB = "stacks-live01"


def test_stacks_of_all_processes(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Callable[[RecordedCluster], httpx.Client]
) -> None:
    recorded.add_job(JOB, state="RUNNING", reason="workers registered", target_workers=2, max_workers=2)
    recorded.launch(*(ProcessId(JOB, role, index, 1) for role in (Role.PS, Role.WORKER) for index in range(2)))
    client, until = api(recorded), time.monotonic() + 120
    while any(one["error"] for one in client.get(f"/jobs/{JOB}/stacks").json()["processes"]):
        assert time.monotonic() < until, "the processes did not come up"
    here = visit(recorded, path=f"/#/jobs/{JOB}/stacks")
    page = here.page
    expect(page.locator(".head")).to_contain_text("4 processes in ")
    told = client.get(f"/jobs/{JOB}/stacks").json()["processes"]
    assert {(one["role"], one["index"]) for one in told} == {(r, i) for r in ("ps", "worker") for i in range(2)}
    frames = {frame["function"] for one in told for thread in one["threads"] for frame in thread["frames"]}
    assert frames and not any(one["error"] for one in told), told
    for one in told:
        expect(page.locator("main")).to_contain_text(f"{one['role']} {one['index']}")
    page.get_by_role("button", name="Worker").click()
    expect(page.locator("main")).not_to_contain_text("ps 0")
    expect(page.locator("main")).to_contain_text("worker 1")
    expect(page.locator(".frames li").first).to_be_visible()
    page.get_by_role("button", name="Take them again").click()
    expect(page.locator(".head")).to_contain_text("4 processes in ")
    assert here.findings() == []


def test_a_job_without_processes_says_so(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    recorded.add_job("stacks-none01")
    page = visit(recorded, path="/#/jobs/stacks-none01/stacks").page
    expect(
        page.get_by_text("No process of this job runs").or_(page.get_by_text("Stacks not available"))
    ).to_be_visible()
