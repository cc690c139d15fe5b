"""What the api does by itself: delivery of launch intents, care for masters, clearing away."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from elasticdl_api.background.known_files import SPARED_S, is_new, look
from elasticdl_api.background.leftovers import LeftoverCleanup
from elasticdl_api.background.loops import background
from elasticdl_api.background.relay import Relay
from elasticdl_api.background.watchdog import MAX_FAILURES, Watchdog
from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, ProcessStatus, Role
from elasticdl_runtime.cluster.paths import KNOWN_FILES
from tests.fakes.launcher import FakeLauncher
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def _master(job_id: str, incarnation: int = 1) -> ProcessId:
    return ProcessId(job_id, Role.MASTER, 0, incarnation)


async def _sql(api: Api, statement: str, **values: Any) -> list[Any]:
    async with api.services.database.transaction() as connection:
        result = await connection.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []


async def _expire_lease(api: Api, job_id: str) -> None:
    await _sql(api, "UPDATE jobs SET master_lease_expires_at = now() - interval '1 s' WHERE id = :id", id=job_id)


async def _launched(api: Api, *, state: str = "RUNNING") -> str:
    """A job whose master runs and holds the lease."""
    job_id = await api.submit()
    await api.admit(job_id)
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    master = api.master(job_id)
    await master.lease()
    if state == "RUNNING":
        await master.post("/state", to="RUNNING", reason="")
    return job_id


async def _intents(api: Api, job_id: str) -> list[tuple[str, str | None]]:
    query = "SELECT id, outcome FROM launch_intents WHERE job_id = :id ORDER BY incarnation"
    return [(row.id.removeprefix(f"{job_id}/"), row.outcome) for row in await _sql(api, query, id=job_id)]


class Refusing(FakeLauncher):
    """A launcher that refuses to launch."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    async def launch(self, spec: ProcessSpec) -> None:
        if self.error is not None:
            raise self.error
        await super().launch(spec)


class Down(FakeLauncher):
    """A launcher that does not answer."""

    async def list(self, job_id: str | None = None) -> Any:
        raise UnavailableError("the agent is down")


# -- relay -----------------------------------------------------------------------------------------------------------


async def test_the_relay_launches_each_master_once(api: Api) -> None:
    job_id = await api.submit()
    relays = [Relay(api.services.intents, api.launcher, api.services.reaches) for _ in range(4)]
    await relays[0].step()
    assert api.launcher.launched == []
    await api.admit(job_id)
    await asyncio.gather(*(relay.step() for relay in relays))
    ((process, tenant),) = [(spec.id, spec.tenant) for spec in api.launcher.launched]
    assert (process, tenant.namespace, tenant.restricted) == (_master(job_id), "default", False)
    assert await _intents(api, job_id) == [("master/0/1", "")]


async def test_a_job_of_the_administrator_brings_the_places_that_it_names(api: Api) -> None:
    """Where a launcher closes files to all workers, theirs too, they need them."""
    named = {"training_data": "/data/a,/data/b/part-*", "validation_data": "file:///data/c", "output": "/models/x"}
    job_id = await api.submit(**named)
    await api.admit(job_id)
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    (launched,) = api.launcher.launched
    assert not launched.tenant.restricted
    assert {"/data/a", "/data/b/", "/data/c"} <= set(launched.tenant.readable)
    assert launched.tenant.writable == ("/models/x",)


async def test_an_intent_survives_a_launcher_that_is_down(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    launcher = Refusing(UnavailableError("down"))
    with pytest.raises(UnavailableError):
        await Relay(api.services.intents, launcher, api.services.reaches).step()
    assert await _intents(api, job_id) == [("master/0/1", None)]
    launcher.error = None
    await Relay(api.services.intents, launcher, api.services.reaches).step()
    assert [spec.id for spec in launcher.launched] == [_master(job_id)]


async def test_a_conflict_is_put_off_and_a_refusal_is_recorded(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    launcher = Refusing(ConflictError("the job is being stopped"))
    relay = Relay(api.services.intents, launcher, api.services.reaches)
    await relay.step()
    query = "SELECT delivered_at IS NULL AND deliver_after > now() FROM launch_intents"
    assert (await _sql(api, query))[0][0] is True
    await _sql(api, "UPDATE launch_intents SET deliver_after = now()")
    launcher.error = InvalidInputError("no such image")
    await relay.step()
    assert await _intents(api, job_id) == [("master/0/1", "refused: no such image")]
    await Watchdog(api.services.intents, launcher).step()
    assert [name for name, _ in await _intents(api, job_id)] == ["master/0/1", "master/0/2"]


async def test_intents_of_a_cancelled_job_are_dropped(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    await api.http.post(f"/jobs/{job_id}/cancel")
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    assert api.launcher.launched == []
    assert await _intents(api, job_id) == [("master/0/1", "dropped")]
    await Watchdog(api.services.intents, api.launcher).step()
    assert (await api.job(job_id))["state"] == "CANCELLED"


# -- watchdog --------------------------------------------------------------------------------------------------------


async def test_a_master_that_exits_is_replaced_at_once_by_one_replica_only(api: Api) -> None:
    job_id = await _launched(api)
    watchdogs = [Watchdog(api.services.intents, api.launcher) for _ in range(3)]
    await watchdogs[0].step()
    assert len(await _intents(api, job_id)) == 1
    api.launcher.finish(_master(job_id), -9)
    await asyncio.gather(*(watchdog.step() for watchdog in watchdogs))
    assert [name for name, _ in await _intents(api, job_id)] == ["master/0/1", "master/0/2"]
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    assert [spec.id.incarnation for spec in api.launcher.launched] == [1, 2]
    assert (await api.master(job_id, 2).lease())["state"] == "RUNNING"
    await watchdogs[0].step()
    assert len(await _intents(api, job_id)) == 2


async def test_what_keeps_a_master_from_its_start_is_in_the_jobs_status_until_it_begins(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    watchdog = Watchdog(api.services.intents, api.launcher)
    for message in ("waits for a node: 0/3 nodes are available", "the image x:1 cannot be pulled: push it"):
        api.launcher.say(ProcessStatus(_master(job_id), ProcessState.PENDING, message=message))
        await watchdog.step()
        shown = (await api.job(job_id))["status"]["degraded"]
        assert shown == f"master-0.1 {message}".replace("1 the", "1 waits: the")
    assert shown in (await api.http.get(f"/jobs/{job_id}/explain")).json()["reason"]["text"]
    master = api.master(job_id)
    await master.lease()
    await master.heartbeat(status={"progress": {"records_done": 0}, "degraded": None})
    await watchdog.step()
    assert (await api.job(job_id))["status"]["degraded"] is None
    api.launcher.say(
        ProcessStatus(_master(job_id), ProcessState.EXITED, 127, "cannot_start", message="no such image")
    )
    await watchdog.step()
    assert (await api.http.get(f"/jobs/{job_id}/events")).json()[-1]["message"] == (
        "the master could not be started: no such image"
    )


async def test_a_silent_master_is_replaced_after_a_grace_that_a_restarted_api_counts_anew(api: Api) -> None:
    job_id = await _launched(api)
    await _expire_lease(api, job_id)
    clock = Clock()
    watchdog = Watchdog(api.services.intents, api.launcher, clock)
    await watchdog.step()
    clock.now += 9.9
    await watchdog.step()
    await Watchdog(api.services.intents, api.launcher, clock).step()
    assert len(await _intents(api, job_id)) == 1
    clock.now += 0.2
    await watchdog.step()
    assert len(await _intents(api, job_id)) == 2
    assert (await api.launcher.list())[0].state is ProcessState.EXITED  # the silent one was told to leave


async def test_a_heartbeat_in_time_clears_the_suspicion(api: Api) -> None:
    job_id = await _launched(api)
    master = api.master(job_id)
    master.epoch = 1
    await _expire_lease(api, job_id)
    clock = Clock()
    watchdog = Watchdog(api.services.intents, api.launcher, clock)
    await watchdog.step()
    assert (await master.heartbeat()).status_code == 200
    clock.now += 60
    await watchdog.step()
    await _expire_lease(api, job_id)
    await watchdog.step()
    assert len(await _intents(api, job_id)) == 1


async def test_an_outage_of_the_agent_blames_no_master(api: Api) -> None:
    job_id = await _launched(api)
    await _expire_lease(api, job_id)
    clock = Clock()
    watchdog = Watchdog(api.services.intents, api.launcher, clock)
    await watchdog.step()
    watchdog._launcher = Down()
    clock.now += 60
    with pytest.raises(UnavailableError):
        await watchdog.step()
    watchdog._launcher = api.launcher
    await watchdog.step()
    assert len(await _intents(api, job_id)) == 1


async def test_a_master_that_keeps_failing_fails_the_job_with_a_growing_back_off(api: Api) -> None:
    job_id = await _launched(api)
    watchdog = Watchdog(api.services.intents, api.launcher)
    for incarnation in range(1, MAX_FAILURES + 2):
        api.launcher.finish(_master(job_id, incarnation), 1)
        await watchdog.step()
        await _sql(api, "UPDATE launch_intents SET deliver_after = now()")
        await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    job = await api.job(job_id)
    assert job["state"] == "FAILED"
    assert "exited with code 1" in job["error"]["message"]
    assert "role=master" in job["error"]["fix"]
    assert len(api.launcher.launched) == MAX_FAILURES + 1
    events = (await api.http.get(f"/jobs/{job_id}/events")).json()
    delays = [event["detail"]["delay_s"] for event in events if "delay_s" in event["detail"]]
    assert delays == [0, 1, 2, 4, 8]


async def _failures(api: Api, job_id: str) -> int:
    (row,) = await _sql(api, "SELECT master_failures FROM jobs WHERE id = :id", id=job_id)
    return int(row[0])


async def test_progress_forgives_the_masters_that_were_lost_on_the_way_but_only_new_progress(api: Api) -> None:
    job_id = await _launched(api)
    watchdog = Watchdog(api.services.intents, api.launcher)

    async def lose_master(incarnation: int) -> None:
        api.launcher.finish(_master(job_id, incarnation), 1)
        await watchdog.step()
        await _sql(api, "UPDATE launch_intents SET deliver_after = now()")
        await Relay(api.services.intents, api.launcher, api.services.reaches).step()

    async def reach(incarnation: int, records: int) -> None:
        master = api.master(job_id, incarnation)
        await master.lease()
        await master.heartbeat(status={"progress": {"records_done": records}})

    for incarnation in range(1, 2 * MAX_FAILURES):
        await lose_master(incarnation)
        assert await _failures(api, job_id) == 1
        await reach(incarnation + 1, 100 * incarnation)
        assert await _failures(api, job_id) == 0
    assert (await api.job(job_id))["state"] == "RUNNING"
    for incarnation in range(2 * MAX_FAILURES, 3 * MAX_FAILURES):
        await lose_master(incarnation)
        await reach(incarnation + 1, 500)  # less than it once was: the same work again
    assert await _failures(api, job_id) == MAX_FAILURES
    await lose_master(3 * MAX_FAILURES)
    assert (await api.job(job_id))["state"] == "FAILED"


async def test_planned_stops_never_fail_a_job(api: Api) -> None:
    job_id = await _launched(api)
    watchdog = Watchdog(api.services.intents, api.launcher)
    for incarnation in range(1, 2 * MAX_FAILURES):
        api.launcher.finish(_master(job_id, incarnation), 0)
        await watchdog.step()
        await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    assert (await api.job(job_id))["state"] == "RUNNING"
    assert await _failures(api, job_id) == 0


async def test_failures_long_ago_are_forgiven(api: Api) -> None:
    job_id = await _launched(api)
    await _sql(
        api,
        "UPDATE jobs SET master_failures = 9, master_failed_at = now() - interval '11 minutes' WHERE id = :id",
        id=job_id,
    )
    api.launcher.finish(_master(job_id), 1)
    await Watchdog(api.services.intents, api.launcher).step()
    assert (await api.job(job_id))["state"] == "RUNNING"
    assert len(await _intents(api, job_id)) == 2


async def test_cancelling_ends_when_the_master_is_gone_or_does_not_answer(api: Api) -> None:
    clock = Clock()
    watchdog = Watchdog(api.services.intents, api.launcher, clock)
    gone, deaf = await _launched(api), await _launched(api)
    for job_id in (gone, deaf):
        await api.http.post(f"/jobs/{job_id}/cancel")
    api.launcher.finish(_master(gone), 0)
    await watchdog.step()
    assert (await api.job(gone))["state"] == "CANCELLED"
    assert (await api.job(deaf))["state"] == "CANCELLING"
    clock.now += 21
    await watchdog.step()
    assert (await api.job(deaf))["state"] == "CANCELLED"
    master = api.master(deaf)
    master.epoch = 1
    assert (await master.heartbeat()).json()["code"] == "fenced"


async def test_a_job_that_is_suspended_before_its_master_lived_needs_none(api: Api) -> None:
    job_id = await _launched(api, state="STARTING")
    await api.http.post(f"/jobs/{job_id}/suspend")
    api.launcher.finish(_master(job_id), 1)
    await Watchdog(api.services.intents, api.launcher).step()
    assert (await api.job(job_id))["state"] == "SUSPENDED"


# -- left-over processes ---------------------------------------------------------------------------------------------


async def _living(api: Api) -> set[str]:
    return {str(s.id.role) for s in await api.launcher.list() if s.state is not ProcessState.EXITED}


async def test_nothing_of_a_job_that_is_over_is_left(api: Api) -> None:
    job_id = await _launched(api)
    for role in (Role.PS, Role.WORKER):
        await api.launcher.launch(ProcessSpec(ProcessId(job_id, role, 0, 1)))
    cleanup = LeftoverCleanup(api.services.intents, api.launcher, Clock())
    await cleanup.step()
    master = api.master(job_id)
    master.epoch = 1
    await master.post("/state", to="SUCCEEDED", reason="done")
    await cleanup.step()
    assert await _living(api) == {"master", "ps", "worker"}  # the master has a moment to put things away
    await _sql(api, "UPDATE jobs SET finished_at = now() - interval '9 s'")
    await cleanup.step()
    assert await _living(api) == set()


async def test_orphans_of_a_dead_master_are_ended_at_once_and_an_active_job_is_left_alone(api: Api) -> None:
    over, active = await _launched(api), await _launched(api)
    await api.launcher.launch(ProcessSpec(ProcessId(over, Role.WORKER, 0, 1)))
    await api.launcher.launch(ProcessSpec(ProcessId(active, Role.WORKER, 0, 1)))
    master = api.master(over)
    master.epoch = 1
    await master.post("/state", to="FAILED", reason="x")
    api.launcher.finish(_master(over), 1)
    await LeftoverCleanup(api.services.intents, api.launcher, Clock()).step()
    living = {str(s.id) for s in await api.launcher.list() if s.state is not ProcessState.EXITED}
    assert living == {f"{active}/master/0/1", f"{active}/worker/0/1"}


async def test_processes_of_a_suspended_job_are_ended_one_by_one(api: Api) -> None:
    job_id = await _launched(api)
    await api.launcher.launch(ProcessSpec(ProcessId(job_id, Role.WORKER, 0, 1)))
    await api.http.post(f"/jobs/{job_id}/suspend")
    master = api.master(job_id)
    master.epoch = 1
    await master.post("/state", to="SUSPENDED", reason="saved")
    cleanup = LeftoverCleanup(api.services.intents, api.launcher, Clock())
    await cleanup.step()
    assert await _living(api) == {"master", "worker"}
    await _sql(api, "ALTER TABLE jobs DISABLE TRIGGER USER")
    await _sql(api, "UPDATE jobs SET updated_at = now() - interval '21 s'")
    await _sql(api, "ALTER TABLE jobs ENABLE TRIGGER USER")
    await cleanup.step()
    assert await _living(api) == set()


async def test_processes_of_nobody_are_ended_after_a_while(api: Api) -> None:
    clock = Clock()
    await api.launcher.launch(ProcessSpec(ProcessId("nobody-aaaaaa", Role.WORKER, 0, 1)))
    cleanup = LeftoverCleanup(api.services.intents, api.launcher, clock)
    await cleanup.step()
    clock.now += 29
    await cleanup.step()
    assert await _living(api) == {"worker"}
    clock.now += 2
    await cleanup.step()
    assert await _living(api) == set()


async def test_processes_of_nobody_are_spared_while_the_database_is_new(api: Api) -> None:
    """An api that was given the wrong database ended all jobs of the cluster within half a minute."""
    clock, directory = Clock(), api.services.settings.data_dir
    await look(directory, api.services.retention)
    await api.launcher.launch(ProcessSpec(ProcessId("nobody-aaaaaa", Role.WORKER, 0, 1)))
    async with api.services.database.transaction() as connection:
        await connection.execute(text("DELETE FROM leadership WHERE name LIKE 'looks at %'"))
    new = functools.partial(is_new, directory, api.services.retention)
    cleanup = LeftoverCleanup(api.services.intents, api.launcher, clock, new)
    for _ in range(4):
        await cleanup.step()
        clock.now += 31
    assert await _living(api) == {"worker"}
    file = directory / KNOWN_FILES
    file.write_text(json.dumps({**json.loads(file.read_text()), "replaced": time.time() - 2 * SPARED_S}))
    await cleanup.step()
    assert await _living(api) == set()


# -- all together ----------------------------------------------------------------------------------------------------


async def test_the_background_launches_and_replaces_on_its_own(api: Api) -> None:
    async with background(api.services):
        job_id = await api.submit()
        await api.admit(job_id)
        for incarnation in (1, 2):
            async with asyncio.timeout(60):
                async for status in api.launcher.watch(job_id):
                    if status.id == _master(job_id, incarnation) and status.state is ProcessState.RUNNING:
                        break
            api.launcher.finish(_master(job_id, incarnation), -9)
