"""Devices in the page: how much of each is given out and to whom, what a job asks of them, and why it waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from playwright.sync_api import expect

from elasticdl_core.ports.launcher import DeviceInfo, DeviceUse
from tests.browser.visits import DESKTOP, PHONE, Visit
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster
from tests.fakes.recorded_rows import Clock, insert_rows, job_row, status, use_devices, use_slots, worker
from tests.integration.conftest import PostgresServer

pytestmark = pytest.mark.browser
SHARING, ALONE, LATE, FOREIGN = "sharing-dev001", "alone-dev001", "late-dev001", "foreign-dev001"
DEVICES = (DeviceInfo("gpu0", declared=True), DeviceInfo("gpu1", False, 81_559, "NVIDIA H100 80GB HBM3"))
USES = (
    DeviceUse(SHARING, 0, (0,), 40),
    DeviceUse(SHARING, 1, (0,), 40),
    DeviceUse(FOREIGN, 0, (0,), 15),
    DeviceUse(ALONE, 0, (1,), 100),
)


async def seed(connection: asyncpg.Connection, data: Path) -> None:
    """Three jobs that hold devices, one of them of another namespace, and one that waits for half of one."""
    clock = Clock.start()

    def running(job_id: str, workers: int, gpu: str, **changes: Any) -> dict[str, Any]:
        told = [worker(index) for index in range(workers)]
        return job_row(
            clock,
            job_id,
            state="RUNNING",
            target_workers=workers,
            min_workers=workers,
            max_workers=workers,
            started_at=clock.ago(600),
            target_reason=f"it has as many as it can use: {workers} of {workers} workers",
            target_detail={"code": "at_max", "text": "it has as many as it can use", "blockers": []},
            status=status(done=51_200, total=614_400, epoch=0, epochs=1, workers=told),
            spec={"worker_resource_request": gpu},
            **changes,
        )

    waits = job_row(
        clock,
        LATE,
        target_reason="it waits for 0.5 of a GPU",
        target_detail={"code": "waiting_for_capacity", "text": "it waits for 0.5 of a GPU", "blockers": [ALONE]},
        spec={"worker_resource_request": "gpu=0.5"},
        created_at=clock.ago(30),
    )
    await connection.execute("INSERT INTO namespaces (name) VALUES ('others') ON CONFLICT DO NOTHING")
    jobs = [
        running(SHARING, 2, "gpu=0.4"),
        running(ALONE, 1, "gpu=1"),
        running(FOREIGN, 1, "gpu=0.15", namespace="others"),
    ]
    await insert_rows(connection, "jobs", [*jobs, waits])
    await use_slots(data, {SHARING: 2, ALONE: 1, FOREIGN: 1})
    await use_devices(data, DEVICES, USES)


@pytest.fixture(scope="module")
def devices(server: PostgresServer) -> Iterator[RecordedCluster]:
    with recorded_cluster(server, seed) as cluster:
        yield cluster


def assert_well_made(here: Visit) -> None:
    for size, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
        here.page.set_viewport_size(size)
        here.page.emulate_media(color_scheme=scheme)
        assert here.overflow() <= 0
        assert here.findings() == []


def test_the_cluster_says_what_is_given_out_of_each_device_and_to_whom(
    visit: Callable[..., Visit],
    api: Callable[[RecordedCluster], httpx.Client],
    devices: RecordedCluster,
) -> None:
    here = visit(devices, path="/#/")
    rows = here.page.get_by_role("region", name="Devices").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("gpu0")
    expect(rows.nth(0)).to_contain_text("declared")
    expect(rows.nth(0)).to_contain_text("95.0 %")
    expect(rows.nth(0)).to_contain_text(re.compile(r"sharing\s*0\.8 by 2 workers"))
    expect(rows.nth(0)).to_contain_text(re.compile(r"foreign\s*0\.15 by 1 worker"))
    expect(rows.nth(1)).to_contain_text("NVIDIA H100 80GB HBM3, 79.6 GiB")
    expect(rows.nth(1).get_by_role("link", name="alone")).to_have_attribute("href", f"#/jobs/{ALONE}")
    shown = here.page.locator(".stat").filter(has_text="GPUs in use")
    total = sum(one["used"] for one in api(devices).get("/cluster").json()["devices"])
    expect(shown).to_contain_text(f"{total:g} / 2")
    assert_well_made(here)


def test_jobs_of_other_namespaces_are_counted_and_not_named(
    visit: Callable[..., Visit], devices: RecordedCluster
) -> None:
    page = visit(devices, path="/#/", token=devices.make_token("read", "default")).page
    first = page.get_by_role("region", name="Devices").locator("tbody tr").first
    expect(first).to_contain_text("1 worker of other namespaces")
    expect(first).to_contain_text("sharing")
    expect(page.locator("main")).not_to_contain_text("foreign")


def test_a_job_says_what_it_asks_of_the_devices_and_why_it_waits(
    visit: Callable[..., Visit], devices: RecordedCluster
) -> None:
    here = visit(devices, path=f"/#/jobs/{LATE}/why")
    main = here.page.locator("main")
    expect(here.page.locator(".stat").filter(has_text="Devices")).to_contain_text("gpu=0.5")
    expect(main.locator(".facts")).to_contain_text(re.compile(r"Each worker takes\s*0\.5 of a GPU"))
    expect(main.locator(".facts")).to_contain_text(re.compile(r"Devices of the cluster\s*1\.95 of 2 in use"))
    expect(main.locator(".said")).to_contain_text(f"waits for 0.5 of a GPU: 1.95 of 2 in use by {ALONE}, {SHARING}")
    expect(main).to_contain_text("with 1 more GPU")
    expect(main.locator(".facts")).not_to_contain_text("Devices of its workers")
    assert_well_made(here)


def test_a_job_says_which_devices_its_workers_have(visit: Callable[..., Visit], devices: RecordedCluster) -> None:
    page = visit(devices, path=f"/#/jobs/{SHARING}/why").page
    expect(page.locator(".facts").first).to_contain_text("worker 0: gpu0; worker 1: gpu0")


def test_where_there_are_no_devices_nothing_is_said_of_them(
    visit: Callable[..., Visit], fresh: RecordedCluster
) -> None:
    page = visit(fresh, path="/#/").page
    page.locator(".stats").wait_for()
    expect(page.get_by_role("region", name="Devices")).to_have_count(0)
    expect(page.locator(".stats")).not_to_contain_text("GPUs")
