"""Jobs that ask for shares of a device, decided by the scheduler service over a real Postgres."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import DeviceUse
from elasticdl_core.scheduling import Snapshot, policy_by_name
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime import scheduling

pytestmark = pytest.mark.integration


def asking(request: str) -> dict[str, Any]:
    return {"max_workers": 1, "spec": json.dumps({"model_def": "m.f", "worker_resource_request": request})}


async def test_two_jobs_share_a_device_and_a_third_waits_for_one_to_end(world: Any) -> None:
    world.slots.devices = 1
    for job_id in ("a", "b", "c"):
        await world.submit(job_id, **asking("gpu=0.5"))
    await world.submit("plain", max_workers=1)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 1, "b": 1, "c": 0, "plain": 1}
    waiting = await world.job("c")
    assert (waiting["state"], "waits for 0.5 of a GPU: 1 of 1 in use by a, b" in waiting["target_reason"]) == (
        "QUEUED",
        True,
    )
    world.slots.used = {"a": 1, "b": 1, "plain": 1}
    world.slots.device_uses = [DeviceUse("a", 0, (0,), 50), DeviceUse("b", 0, (0,), 50)]
    for job_id in ("a", "b", "plain"):
        await world.running(job_id)

    # The snapshot that is written down says the same when it is read back and decided on again.
    row = await world.sql.fetchrow("SELECT * FROM plans ORDER BY id DESC LIMIT 1")
    snapshot = Snapshot.from_mapping(scheduling.unpacked(json.loads(row["snapshot"])))
    assert snapshot.digest() == row["input_hash"]
    assert pace(snapshot, policy_by_name(row["policy"]).plan(snapshot)).targets() == await world.targets()

    # The job is over, its worker still leaves: its share is promised, and not given yet.
    await world.change("a", JobState.RUNNING, JobState.SUCCEEDED)
    await scheduler.decide_once()
    assert (await world.targets())["c"] == 0
    assert "until the former users" in (await world.job("c"))["target_reason"]
    del world.slots.used["a"], world.slots.device_uses[0]
    await scheduler.decide_once()
    assert (await world.targets())["c"] == 1
    told = json.loads((await world.sql.fetchrow("SELECT * FROM scheduler_passes"))["capacity"])
    devices, uses = scheduling.devices_from_json(told)
    assert ([device.name for device in devices], uses) == (["gpu0"], (DeviceUse("b", 0, (0,), 50),))


async def test_a_whole_device_evicts_who_is_less_important_and_a_job_without_a_device_goes_on(world: Any) -> None:
    world.slots.devices = 1
    await world.submit("half", **asking("gpu=0.5"))
    await world.submit("plain", max_workers=1)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("half")
    await world.running("plain")
    world.slots.used = {"half": 1, "plain": 1}
    world.slots.device_uses = [DeviceUse("half", 0, (0,), 50)]
    await world.submit("whole", priority=5, **asking("gpu=1"))
    await scheduler.decide_once()
    assert ((await world.job("half"))["desired"], (await world.job("plain"))["desired"]) == ("evict", "run")
    assert "evicted" in (await world.job("half"))["target_reason"]
    assert (await world.targets())["whole"] == 0
    world.slots.used, world.slots.device_uses = {"plain": 1}, []
    await world.change("half", JobState.RUNNING, JobState.QUEUED)
    await scheduler.decide_once()
    assert (await world.targets())["whole"] == 1


async def test_without_devices_the_job_is_told_what_would_help(world: Any) -> None:
    await world.submit("a", **asking("gpu=2"))
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert "this cluster has no GPU" in (await world.job("a"))["target_reason"]
