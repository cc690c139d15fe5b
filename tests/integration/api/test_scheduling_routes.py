"""The routes that explain the scheduler, over a real Postgres and a real scheduler; the launcher is the fake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text

from elasticdl_api.settings import ApiSettings
from elasticdl_core.ports.launcher import DeviceInfo, ProcessId, ProcessSpec, Role
from elasticdl_core.scheduling import Plan, Quota, Resources, Snapshot, policy_by_name
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.loop import Scheduler
from elasticdl_scheduler.store import SchedulerStore
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


class Cluster:
    """The api with a scheduler, and users of two namespaces."""

    def __init__(self, api: Api, scheduler: Scheduler, leadership: Leadership) -> None:
        self.api = api
        self.scheduler = scheduler
        self.leadership = leadership

    async def decide(self) -> None:
        while await self.scheduler.decide_once():
            pass

    async def start(self, job_id: str, workers: int, **status: Any) -> None:
        """The job's master comes up, its workers take their slots, and it reports."""
        master = self.api.master(job_id)
        await master.lease()
        for index in range(workers):
            await self.api.launcher.launch(ProcessSpec(ProcessId(job_id, Role.WORKER, index, 0), slots=1))
        await master.post("/state", to="RUNNING", reason="up")
        if status:
            assert (await master.heartbeat(status)).status_code == 200

    async def get(self, path: str, token: str = "", **query: Any) -> Any:
        answer = await self.raw("GET", path, token, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ask(self, token: str = "", **question: Any) -> Any:
        answer = await self.raw("POST", "/scheduler/what-if", token, json=question)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def raw(self, method: str, path: str, token: str = "", **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.api.http.request(method, path, headers=headers, **options)

    async def submit(self, token: str = "", **fields: Any) -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"name": "digits", "model_def": "m.forward", "model_zoo": "/zoo", "training_data": "/d", **fields}
        answer = await self.api.http.post("/jobs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    """Jobs of any namespace may read what the tests' jobs name."""
    return settings.model_copy(update={"data_roots": "/zoo,/d"})


@pytest.fixture
async def cluster(api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    database = Database(database_url)
    leadership = Leadership(database, 3600.0)  # what a test does in between takes long on a busy machine

    async def make(*, policy: str = "goodput", quotas: dict[str, Quota] | None = None) -> Cluster:
        for name in ("ads", "vision"):
            await api.token(name, token=f"{name}-token")
        store = SchedulerStore(database, leadership, quotas or {})
        scheduler = Scheduler(database, leadership, store, api.launcher, policy_by_name(policy), 3600.0)
        await leadership.attempt()
        return Cluster(api, scheduler, leadership)

    monkeypatch.setattr("elasticdl_api.scheduling.cluster_view.SHARED_S", 0.0)
    monkeypatch.setattr("elasticdl_api.routes.jobs.check_model", _no_check)
    yield make
    await database.close()


async def _no_check(*_: Any) -> None:
    return None


def _status(done: int, total: int, **speeds: float) -> dict[str, Any]:
    return {
        "progress": {"records_done": done, "records_total": total},
        "throughput": {count.removeprefix("at"): speed for count, speed in speeds.items()},
        "samples_per_second": 100.0,
    }


async def test_before_any_scheduler_ran_the_routes_say_so(api: Api) -> None:
    job_id = await api.submit()
    explained = (await api.http.get(f"/jobs/{job_id}/explain")).json()
    assert explained["reason"]["code"] == "not_decided"
    assert explained["reason"]["text"] == "no scheduler leads: queued jobs wait until one does"
    assert explained["next"]["code"] == "at_max", "what a scheduler would decide is known all the same"
    plan = (await api.http.get("/scheduler/plan")).json()
    assert (plan["alive"], plan["sequence"], plan["policy"]) == (False, None, "goodput")
    empty = {"decisions": [], "next_page_token": None, "next_cursor": None}
    assert (await api.http.get("/scheduler/decisions")).json() == empty


async def test_a_waiting_job_is_told_who_holds_what_it_wants_and_what_would_help(cluster: Any) -> None:
    c = await cluster()
    first = await c.submit(min_workers=4, max_workers=4)
    await c.decide()
    await c.start(first, 4, **_status(1000, 5000, at4=100.0))
    second = await c.submit(name="late", min_workers=2, max_workers=3)
    await c.decide()
    found = await c.get(f"/jobs/{second}/explain")
    assert found["state"] == "QUEUED"
    assert found["workers"] == {"present": 0, "target": 0, "min": 2, "max": 3}
    assert found["reason"]["code"] == "waiting_for_capacity"
    assert "its minimum of 2 workers needs 2 slots, and 0 are left" in found["reason"]["text"]
    (blocker,) = found["blockers"]
    assert (blocker["job_id"], blocker["workers"], blocker["min_workers"]) == (first, 4, 4)
    assert blocker["ends_at"] is not None
    assert found["slots"] == {"total": 4, "used": 4, "free": 0, "leaving": 0}
    remedies = {str(one["change"]): one for one in found["remedies"]}
    assert remedies[str({"priorities": {second: 1}})]["workers"] == 3
    assert remedies[str({"priorities": {second: 1}})]["command"] == f"elasticdl jobs scale {second} --priority 1"
    assert remedies[str({"add_slots": 2})]["workers"] == 2
    # It starts when the other ends: 4000 records at 100 a second from the snapshot on.
    assert found["expected"]["starts_at"][:16] == blocker["ends_at"][:16]
    assert found["expected"]["ends_at"] is None
    assert found["remaining_records"] == 5000, "as the first one counted the same data"
    assert found["expected"]["why_unknown"] == "its speed is not measured yet, and no similar job ended before"
    running = await c.get(f"/jobs/{first}/explain")
    assert running["reason"]["code"] == "at_max"
    assert running["blockers"] == []
    assert running["remaining_records"] == 4000
    assert running["expected"]["seconds"] == pytest.approx(40.0, abs=3.0)
    assert running["expected"]["seconds_low"] < running["expected"]["seconds"] < running["expected"]["seconds_high"]
    assert running["speed"] == [{"workers": 4, "records_per_second": 100.0, "relative": 1.0, "basis": "measured"}]
    assert [one["after"] for one in running["decisions"]] == [4]


async def test_the_trouble_of_a_jobs_master_comes_before_what_the_scheduler_thinks(cluster: Any) -> None:
    c = await cluster()
    job_id = await c.submit(max_workers=4)
    await c.decide()
    trouble = "waiting for the task queue: Redis does not answer: no such file"
    await c.start(job_id, 4, degraded=trouble)
    found = (await c.get(f"/jobs/{job_id}/explain"))["reason"]
    assert found["code"] == "degraded"
    assert found["text"].startswith(f"{trouble} (workers: ")


async def test_an_undersized_job_is_told_why_and_its_curve(cluster: Any) -> None:
    c = await cluster(quotas={"default": Quota(limit=Resources(slots=3.0))})
    job_id = await c.submit(max_workers=4)
    await c.decide()
    await c.start(job_id, 3, **_status(0, 9000, at1=40.0, at2=78.0, at3=110.0))
    found = await c.get(f"/jobs/{job_id}/explain")
    assert found["workers"] == {"present": 3, "target": 3, "min": 1, "max": 4}
    assert found["reason"]["code"] == "team_share"
    assert found["quota"] == {"team": "default", "used": 3.0, "weight": 1.0, "guaranteed": None, "limit": 3.0}
    assert [one["basis"] for one in found["speed"]] == ["measured", "measured", "measured", "estimated"]
    assert found["speed"][3]["records_per_second"] > 110.0


@pytest.mark.parametrize("strategy", ["AllReduceStrategy", "auto"])
async def test_no_slot_is_given_to_a_worker_that_could_only_stand_by(cluster: Any, strategy: str) -> None:
    c = await cluster()
    named = {"microbatches": 2} if strategy == "AllReduceStrategy" else {}
    job_id = await c.submit(max_workers=3, distribution_strategy=strategy, **named)
    if named:
        told = await c.get(f"/jobs/{job_id}/events")
        assert "of at most 3 workers 2 can compute" in json.dumps(told)
    await c.decide()
    chosen = {"strategy": {"chosen": "AllReduceStrategy", "microbatches": 2}}
    await c.start(job_id, 2, **_status(0, 9000, at1=40.0, at2=78.0), **chosen)
    await c.decide()
    found = await c.get(f"/jobs/{job_id}/explain")
    assert (found["workers"]["target"], found["workers"]["max"]) == (2, 3)
    assert "more workers could only stand by" in found["reason"]["text"]
    assert [one["workers"] for one in found["speed"]] == [1, 2]
    assert found["remedies"] == []
    assert (await c.raw("PATCH", f"/jobs/{job_id}", json={"max_workers": 4})).status_code == 200
    assert "of at most 4 workers 2 can compute" in json.dumps(await c.get(f"/jobs/{job_id}/events"))


async def test_jobs_that_are_not_to_run_say_so(cluster: Any) -> None:
    c = await cluster()
    job_id = await c.submit()
    await c.raw("POST", f"/jobs/{job_id}/suspend")
    await c.decide()
    assert (await c.get(f"/jobs/{job_id}/explain"))["reason"]["code"] == "not_wanted"
    await c.raw("POST", f"/jobs/{job_id}/cancel")
    over = await c.get(f"/jobs/{job_id}/explain")
    assert over["reason"]["code"] == "ended"
    assert "CANCELLED" in over["reason"]["text"]
    assert (await c.raw("GET", "/jobs/nobody/explain")).status_code == 404


async def test_the_plan_shows_every_job_with_target_and_reason(cluster: Any) -> None:
    c = await cluster(policy="fair")
    jobs = [await c.submit(name=f"job-{i}", max_workers=4) for i in range(3)]
    await c.decide()
    plan = await c.get("/scheduler/plan")
    assert (plan["alive"], plan["policy"], plan["epoch"]) == (True, "fair", c.leadership.epoch)
    assert plan["nodes"] == [{"name": "local", "slots": 4.0}]
    assert {job["job_id"]: job["workers"]["target"] for job in plan["jobs"]} == dict(
        zip(jobs, (2, 1, 1), strict=True)
    )
    assert {job["reason"]["code"] for job in plan["jobs"]} == {"cluster_full"}
    (decision,) = (await c.get("/scheduler/decisions", limit=1))["decisions"]
    assert (plan["sequence"], plan["input_hash"]) == (decision["sequence"], decision["input_hash"])
    assert plan["passes"] > 0
    assert plan["age_s"] >= 0


async def test_what_if_tells_starts_ends_and_workers_before_and_after(cluster: Any) -> None:
    c = await cluster(policy="fair")
    job_id = await c.submit(max_workers=4)
    await c.decide()
    await c.start(job_id, 4, **_status(0, 4000, at1=25.0, at2=50.0, at4=100.0))
    answer = await c.ask(add=[{"name": "mine", "max_workers": 4, "records": 2000, "like": job_id}])
    mine, other = answer["jobs"]
    assert (mine["job_id"], mine["hypothetical"], mine["before"]) == ("what-if:mine", True, None)
    assert (mine["after"]["workers"], other["before"]["workers"], other["after"]["workers"]) == (2, 4, 2)
    assert mine["after"]["earliest"] < mine["after"]["ends_at"] < mine["after"]["latest"]
    assert other["delay_s"] > 10
    answer = await c.ask(add_slots=-2)
    assert (answer["slots_before"], answer["slots_after"]) == (4, 2)
    assert answer["jobs"][0]["after"]["workers"] == 2
    assert (await c.ask(sizes={job_id: {"max_workers": 1}}))["jobs"][0]["after"]["workers"] == 1
    answer = await c.ask(cancel=[job_id], add_nodes=[{"slots": 3}])
    assert (answer["jobs"][0]["after"], answer["slots_after"]) == (None, 7)
    assert (await c.ask(remove_nodes=["local"]))["slots_after"] == 0
    hasty = await c.ask(priorities={job_id: 7}, add=[{"min_workers": 4, "max_workers": 4, "priority": 3}])
    assert [one["after"]["workers"] for one in hasty["jobs"]] == [3, 1] or hasty["jobs"][0]["after"]["workers"] == 0
    assert hasty["jobs"][1]["priority"] == 7


async def test_devices_are_shown_explained_and_asked_about(cluster: Any) -> None:
    c = await cluster(policy="fair")
    c.api.launcher.devices = (DeviceInfo("gpu0", declared=True), DeviceInfo("gpu1", False, 81559, "H100"))
    whole = await c.submit(worker_resource_request="gpu=2")
    await c.decide()
    await c.api.master(whole).lease()
    worker = ProcessSpec(ProcessId(whole, Role.WORKER, 0, 0), slots=1, device_share=200)
    await c.api.launcher.launch(worker)
    late = await c.submit(worker_resource_request="gpu=0.5")
    await c.decide()
    shown = (await c.get("/cluster"))["devices"]
    assert [(one["name"], one["declared"], one["used"], one["workers"]) for one in shown] == [
        ("gpu0", True, 1.0, 1),
        ("gpu1", False, 1.0, 1),
    ]
    assert (shown[1]["memory_mib"], shown[1]["model"]) == (81559, "H100")
    assert [one["jobs"] for one in shown] == [[{"job_id": whole, "workers": 1, "used": 1.0}]] * 2
    has = (await c.get(f"/jobs/{whole}/explain"))["devices"]
    assert has == {"share": 2.0, "total": 2, "used": 2.0, "held": [{"worker": 0, "devices": ["gpu0", "gpu1"]}]}
    found = await c.get(f"/jobs/{late}/explain")
    assert found["devices"] == {"share": 0.5, "total": 2, "used": 2.0, "held": []}
    assert f"waits for 0.5 of a GPU: 2 of 2 in use by {whole}" in found["reason"]["text"]
    assert [one["job_id"] for one in found["blockers"]] == [whole]
    helps = {one["text"].partition(":")[0]: one["change"] for one in found["remedies"]}
    assert helps["with 1 more GPU"] == {"devices": 3}
    after = {one["job_id"]: one["after"]["workers"] for one in (await c.ask(devices=3))["jobs"]}
    assert after == {whole: 1, late: 1}
    asked = await c.ask(add=[{"name": "another", "worker_resource_request": "gpu=0.5", "priority": 9}])
    assert asked["jobs"][0]["after"]["workers"] == 1, "it goes first, and the whole machine gives way"
    asked = await c.ask(add=[{"name": "plain"}])
    assert asked["jobs"][0]["after"]["workers"] == 1
    plain = await c.submit()
    await c.decide()
    assert (await c.get(f"/jobs/{plain}/explain"))["devices"] is None


async def test_who_may_not_see_a_job_is_not_told_that_it_has_the_device(cluster: Any) -> None:
    c = await cluster(policy="fair")
    c.api.launcher.devices = (DeviceInfo("gpu0", declared=True),)
    theirs = await c.submit("vision-token", worker_resource_request="gpu=1")
    await c.decide()
    mine = await c.submit("ads-token", worker_resource_request="gpu=0.25")
    await c.decide()
    found = await c.get(f"/jobs/{mine}/explain", "ads-token")
    assert "waits for 0.25 of a GPU: 1 of 1 in use by another team's job" in found["reason"]["text"]
    assert theirs not in json.dumps(found)
    worker = ProcessSpec(ProcessId(theirs, Role.WORKER, 0, 0), slots=1, device_share=100)
    await c.api.launcher.launch(worker)
    (device,) = (await c.get("/cluster", "ads-token"))["devices"]
    assert (device["used"], device["workers"], device["jobs"]) == (1.0, 1, [])
    (device,) = (await c.get("/cluster", "vision-token"))["devices"]
    assert [one["job_id"] for one in device["jobs"]] == [theirs]


async def test_those_who_share_a_device_are_named_who_holds_most_first(cluster: Any) -> None:
    c = await cluster(policy="fair")
    c.api.launcher.devices = (DeviceInfo("gpu0", declared=True),)
    small, large = [await c.submit(worker_resource_request=f"gpu={share}") for share in (0.25, 0.3)]
    for job_id, index, share in ((small, 0, 25), (large, 0, 30), (large, 1, 30)):
        await c.api.launcher.launch(
            ProcessSpec(ProcessId(job_id, Role.WORKER, index, 0), slots=1, device_share=share)
        )
    (device,) = (await c.get("/cluster"))["devices"]
    assert (device["used"], device["workers"]) == (0.85, 3)
    assert device["jobs"] == [
        {"job_id": large, "workers": 2, "used": 0.6},
        {"job_id": small, "workers": 1, "used": 0.25},
    ]


async def test_a_job_that_does_not_exist_is_as_fast_as_past_jobs_of_its_model(cluster: Any) -> None:
    c = await cluster(policy="fair")
    past = await c.submit()
    await c.decide()
    await c.start(past, 1, **_status(100, 100, at1=25.0))
    master = c.api.master(past)
    await master.lease()
    assert (await master.post("/state", to="SUCCEEDED", reason="done")).status_code == 200
    question = {"max_workers": 1, "records": 2500.0}
    (known,) = (await c.ask(add=[{"model_def": "m.forward", **question}]))["jobs"]
    took = datetime.fromisoformat(known["after"]["ends_at"]) - datetime.fromisoformat(known["after"]["starts_at"])
    assert took.total_seconds() == pytest.approx(100.0, rel=0.3)
    (unknown,) = (await c.ask(add=[{"model_def": "m.other", **question}]))["jobs"]
    assert unknown["after"]["ends_at"] is None
    waits = await c.submit()
    waiting = (await c.get(f"/jobs/{waits}/explain"))["expected"]
    assert waiting["basis"] == "similar"
    assert 0 < waiting["seconds_low"] < waiting["seconds"] < waiting["seconds_high"], (
        "the past one counted its records"
    )


@pytest.mark.parametrize(
    ("question", "status", "said"),
    [
        ({}, 422, "no change"),
        ({"cancel": ["nobody"]}, 404, "no active job nobody"),
        ({"add": [{"like": "nobody"}]}, 404, "no active job nobody"),
        ({"remove_nodes": ["elsewhere"]}, 404, "no machine"),
        ({"add": [{"min_workers": 3, "max_workers": 2}]}, 422, "min_workers 3 is above max_workers 2"),
        ({"slots": "many"}, 422, "slots"),
        ({"devices": 65}, 422, "devices"),
        ({"add": [{"worker_resource_request": "gpu=1.5"}]}, 422, "neither a share of one device nor"),
        ({"slotz": 3}, 422, "slotz"),
    ],
)
async def test_what_if_refuses_what_makes_no_sense(
    cluster: Any, question: dict[str, Any], status: int, said: str
) -> None:
    c = await cluster()
    answer = await c.raw("POST", "/scheduler/what-if", json=question)
    assert answer.status_code == status
    assert said in answer.text
    assert answer.json()["fix"] or answer.json()["problems"]


async def _fingerprint(api: Api) -> dict[str, str]:
    found = {}
    async with api.services.database.transaction() as connection:
        for table in t.metadata.sorted_tables:
            rows = await connection.execute(text(f"SELECT t::text FROM {table.name} t ORDER BY 1"))
            found[table.name] = hashlib.sha256("\n".join(rows.scalars()).encode()).hexdigest()
    return found


async def test_explaining_and_asking_write_nothing(cluster: Any) -> None:
    c = await cluster()
    jobs = [await c.submit(min_workers=3, max_workers=4) for _ in range(2)]
    await c.decide()
    await c.start(jobs[0], 4, **_status(0, 4000, at4=100.0))
    before = await _fingerprint(c.api)
    launched = list(c.api.launcher.launched)
    await c.ask(
        add=[{"max_workers": 2, "priority": 9, "records_per_second": 10.0, "records": 100.0}],
        cancel=[jobs[0]],
        priorities={jobs[1]: 5},
        sizes={jobs[1]: {"min_workers": 1}},
        slots=9,
    )
    for path in (*(f"/jobs/{job_id}/explain" for job_id in jobs), "/scheduler/plan", "/scheduler/decisions"):
        await c.get(path)
    assert await _fingerprint(c.api) == before
    assert c.api.launcher.launched == launched


async def test_decisions_are_paged_filtered_and_can_be_replayed(cluster: Any) -> None:
    c = await cluster()
    jobs = []
    for i in range(4):
        jobs.append(await c.submit(name=f"job-{i}", max_workers=1))
        await c.decide()
    everything = (await c.get("/scheduler/decisions"))["decisions"]
    assert [one["changes"][0]["job_id"] for one in everything] == jobs[::-1]
    seen, cursor = [], None
    while True:
        page = await c.get("/scheduler/decisions", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += page["decisions"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == everything
    assert [one["sequence"] for one in (await c.get("/scheduler/decisions", job=jobs[2]))["decisions"]] == [
        everything[1]["sequence"]
    ]
    assert (await c.get("/scheduler/decisions", until=everything[-1]["at"]))["decisions"] == []
    assert len((await c.get("/scheduler/decisions", since=everything[1]["at"]))["decisions"]) == 2
    assert (await c.raw("GET", "/scheduler/decisions", params={"cursor": "x"})).status_code == 422
    assert (await c.raw("GET", "/scheduler/decisions", params={"since": "2026-01-01T00:00:00"})).status_code == 422
    (full,) = (await c.get("/scheduler/decisions", job=jobs[3], full="true"))["decisions"]
    snapshot = Snapshot.from_mapping(full["snapshot"])
    assert snapshot.digest() == full["input_hash"]
    assert pace(snapshot, policy_by_name(full["policy"]).plan(snapshot)) == Plan.from_mapping(full["plan"])


async def test_a_namespace_sees_its_own_jobs_and_only_numbers_of_others(cluster: Any) -> None:
    c = await cluster()
    theirs = await c.submit("vision-token", name="theirs", min_workers=3, max_workers=4)
    await c.decide()
    await c.start(theirs, 4, **_status(0, 4000, at4=100.0))
    mine = await c.submit("ads-token", name="mine", min_workers=2, max_workers=2)
    await c.decide()
    await c.submit("ads-token", name="after", max_workers=2)
    await c.decide()
    for path in (f"/jobs/{mine}/explain", "/scheduler/plan", "/scheduler/decisions"):
        answer = await c.raw("GET", path, "ads-token")
        assert answer.status_code == 200
        assert theirs not in answer.text, path
        assert theirs in (await c.raw("GET", path)).text or path == "/scheduler/decisions"
    found = await c.get(f"/jobs/{mine}/explain", "ads-token")
    assert found["blockers"] == []
    assert found["hidden_blockers"] == {"jobs": 1, "workers": 4}
    plan = await c.get("/scheduler/plan", "ads-token")
    assert plan["others"] == {"jobs": 1, "workers": 4}
    assert {job["namespace"] for job in plan["jobs"]} == {"ads"}
    answer = await c.raw("POST", "/scheduler/what-if", "ads-token", json={"add_slots": 4})
    assert theirs not in answer.text
    assert answer.json()["others"]["jobs"] == 1
    assert answer.json()["others"]["workers_before"] >= 3
    assert (await c.raw("GET", f"/jobs/{theirs}/explain", "ads-token")).status_code == 404
    refused = await c.raw("POST", "/scheduler/what-if", "ads-token", json={"cancel": [theirs]})
    assert refused.status_code == 404
    assert (await c.raw("GET", "/scheduler/decisions", "ads-token", params={"full": "true"})).status_code == 403
    assert (await c.get("/scheduler/decisions", "ads-token", job=theirs))["decisions"] == []


async def test_no_reason_or_event_names_a_job_of_another_namespace(cluster: Any) -> None:
    c = await cluster()
    for name, workers in (("ads", 2), ("vision", 1)):
        job_id = await c.submit(f"{name}-token", name=name, min_workers=workers, max_workers=workers)
        await c.decide()
        await c.start(job_id, workers)
    ahead = await c.submit("vision-token", name="ahead", min_workers=4, max_workers=4)
    await c.decide()
    mine = await c.submit("ads-token", name="mine")
    await c.decide()
    behind = "came first and waits for 4 workers"
    for path in (f"/jobs/{mine}", "/jobs"):
        found = await c.get(path, "ads-token")
        job = found["jobs"][0] if path == "/jobs" else found
        assert f"would delay another team's job, which {behind}" in job["target_reason"]
    changed = await c.raw("PATCH", f"/jobs/{mine}", "ads-token", json={"max_workers": 2})
    stopped = await c.raw("POST", f"/jobs/{mine}/suspend", "ads-token")
    for answer in (changed, stopped):
        assert behind in answer.json()["target_reason"]
        assert ahead not in answer.text
    # Whoever may see the other job is told its name, also where only one namespace is asked for.
    for jobs in ((await c.get("/jobs", namespace="ads"))["jobs"], [await c.get(f"/jobs/{mine}")]):
        assert f"would delay {ahead}, which {behind}" in jobs[0]["target_reason"]


async def test_an_evicted_job_is_not_told_who_of_another_namespace_came(cluster: Any) -> None:
    c = await cluster()
    mine = await c.submit("ads-token", name="mine", min_workers=2, max_workers=4)
    await c.decide()
    await c.start(mine, 4)
    theirs = await c.submit("vision-token", name="theirs", min_workers=4, max_workers=4, priority=5)
    await c.decide()

    async def evicting(token: str) -> Any:
        events = await c.get(f"/jobs/{mine}/events", token)
        return next(event for event in events if event["kind"] == "evicting")

    assert (await evicting(""))["detail"]["blockers"] == [theirs]
    hidden = await evicting("ads-token")
    assert hidden["detail"]["blockers"] == []
    assert hidden["message"].startswith("workers 4 -> 0: evicted")


async def test_prometheus_hears_of_the_scheduler(cluster: Any) -> None:
    c = await cluster()
    await c.submit(min_workers=4, max_workers=4)
    await c.submit(min_workers=4, max_workers=4)
    await c.decide()
    lines = (await c.raw("GET", "/metrics")).text.splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert values['elasticdl_jobs_by_reason{reason="waiting_for_capacity",state="QUEUED"}'] == 1
    assert values['elasticdl_jobs_by_reason{reason="at_max",state="STARTING"}'] == 1
    assert values["elasticdl_scheduler_alive"] == 1
    assert values["elasticdl_scheduler_changes_total"] == 1
    assert values["elasticdl_scheduler_passes_total"] >= 2
    assert values["elasticdl_scheduler_plan_age_seconds"] < 60
    assert values['elasticdl_slots{kind="free"}'] == 4
    assert json.dumps(values)


async def test_a_raised_minimum_ends_nobody(cluster: Callable[..., Any]) -> None:
    """Raising the fewest workers of a running job evicted a peer for good, and stopped the job itself."""
    c = await cluster(policy="fair")  # of four slots
    first = await c.submit(min_workers=1, max_workers=3)
    second = await c.submit(min_workers=1, max_workers=1)
    await c.decide()

    async def targets() -> dict[str, int]:
        return {job["job_id"]: job["workers"]["target"] for job in (await c.get("/scheduler/plan"))["jobs"]}

    assert await targets() == {first: 3, second: 1}
    refused = await c.raw("PATCH", f"/jobs/{first}", json={"min_workers": 5, "max_workers": 5})
    assert refused.status_code == 422
    assert "5 workers are more than the whole cluster of 4 slots" in refused.text
    raised = await c.raw("PATCH", f"/jobs/{first}", json={"min_workers": 4, "max_workers": 4})
    assert raised.status_code == 200, raised.text
    await c.decide()
    assert await targets() == {first: 3, second: 1}
    reason = (await c.get(f"/jobs/{first}/explain"))["reason"]
    assert reason["code"] == "raise_waits"
    assert f"until its raised minimum of 4 workers fits: the minimums of {second} go before it" in reason["text"]


async def test_who_leads_has_decided_lately(cluster: Callable[..., Any], database_url: str) -> None:
    """A dead scheduler's lease from before the clock was set back: /readyz said ok, and explain "has not looked"."""
    made = await cluster()
    said = "no scheduler leads: queued jobs wait"

    async def told() -> tuple[str, str]:
        ready = (await made.api.http.get("/readyz")).json()["components"]["scheduler"]
        return ready, (await made.get("/cluster"))["components"]["scheduler"]

    assert await told() == (said, said), "it has decided nothing yet"
    await made.decide()
    assert await told() == ("ok", "ok")
    database = Database(database_url)
    try:
        for moment in ("now() - interval '4 hours'", "now() + interval '4 hours'"):
            async with database.transaction() as connection:
                await connection.execute(text("UPDATE leadership SET expires_at = now() + interval '1 day'"))
                await connection.execute(text(f"UPDATE scheduler_passes SET at = {moment}"))
            assert await told() == (said, said)
            assert not (await made.get("/scheduler/plan"))["alive"]
    finally:
        await database.close()
