"""The routes of masters: leases and epochs, reports, the durable ledger."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from sqlalchemy import text

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.bundles import digest_of
from tests.integration.api.conftest import MODULE, Api, make_zip

pytestmark = pytest.mark.integration
PLAN = {"shards": [["a", 0, 10], ["b", 0, 5]], "records_per_task": 5, "seed": 0, "shuffle": True, "rounds": 2}


async def test_lease_gives_a_new_epoch_and_fences_the_old_one(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id, workers=2)
    first, second = api.master(job_id, 1), api.master(job_id, 2)
    answer = await first.lease()
    assert (answer["epoch"], answer["state"], answer["desired"]) == (1, "STARTING", "run")
    assert answer["ledger"] == {"plan": None, "rounds": [], "done": [], "accounts": {}}
    assert answer["bundle"] == digest_of(make_zip({"model.py": MODULE}))
    assert (await first.heartbeat()).json() == {"desired": "run", "target_workers": 0, "lease_s": 8}
    twin = api.master(job_id, 1)
    held = await twin.request("POST", "/lease", json={"holder": "twin"})
    assert (held.status_code, held.json()["code"]) == (409, "held")
    assert (await second.lease())["epoch"] == 2  # a newer incarnation takes over at once
    for response in (
        await first.heartbeat(),
        await first.post("/state", to="RUNNING", reason=""),
        await first.post("/events", events=[]),
        await first.post("/done", tasks=["t:0:0:0:5"]),
        await first.request("PUT", "/plan", json={"epoch": 1, "plan": PLAN}),
        await first.post("/checkpoints", manifest={"version": 1}),
        await first.request("DELETE", "/checkpoints/1?epoch=1"),
        await first.post("/evaluations", number=0, model_version=0, training_epoch=0, metrics={}),
        await first.post("/artifacts", name="a", path="a", size=1, sha256="0" * 64),
        await first.request("POST", "/lease", json={"holder": "master-0.1"}),
    ):
        assert (response.status_code, response.json()["code"]) == (409, "fenced"), response.request.url
    assert (await second.heartbeat()).status_code == 200


async def test_the_same_holder_may_lease_again(api: Api) -> None:
    _, master = await api.running()
    assert (await master.lease())["epoch"] == 2


async def test_the_next_master_hears_what_the_last_one_measured(api: Api) -> None:
    job_id, first = await api.running()
    assert (await api.master(job_id, 1).lease())["measured"] == {}
    first.epoch = 2
    measured = {
        "throughput": {"1": 10.0},
        "rescale_cost_s": 2.0,
        "worker_seconds": 30.0,
        "loss": 0.5,
        "metrics": {"auc": 0.7},
        "metrics_version": 3,
    }
    assert (await first.heartbeat({**measured, "model_version": 4})).status_code == 200
    assert (await api.master(job_id, 2).lease())["measured"] == measured


async def test_ledger_survives_and_is_idempotent(api: Api) -> None:
    job_id, master = await api.running()
    put = {"epoch": master.epoch, "plan": PLAN}
    assert (await master.request("PUT", "/plan", json=put)).status_code == 204
    assert (await master.request("PUT", "/plan", json=put)).status_code == 204
    other = await master.request("PUT", "/plan", json={**put, "plan": {**PLAN, "seed": 1}})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    tasks = ["t:0:0:0:5", "t:0:1:5:8", "t:0:1:8:10", "t:0:2:0:5", "t:1:0:0:5", "e:0:0:0:5"]
    assert (await master.post("/done", tasks=tasks)).json() == {"new": 6}
    assert (await master.post("/done", tasks=[*tasks, "t:1:1:5:10", "t:1:1:5:10"])).json() == {"new": 1}
    said = {"skipped": [{"reason": "nan", "records": 3, "example": "records 0 to 3 of a"}]}
    accounts = {"t:0:0:0:5": said, "t:0:1:5:8": said}
    assert (await master.post("/done", tasks=[], accounts=accounts)).json() == {"new": 0}
    assert (await master.post("/done", tasks=[], accounts={"t:0:1:5:8": {}})).json() == {"new": 0}
    wrong = await master.post("/done", tasks=["nonsense"])
    assert wrong.status_code == 422
    for version in (10, 20):
        response = await master.post("/checkpoints", manifest={"version": version, "files": []})
        assert response.status_code == 204
    assert (await master.request("DELETE", f"/checkpoints/10?epoch={master.epoch}")).status_code == 204
    body = {"epoch": master.epoch}
    assert (await master.request("DELETE", "/checkpoints/11", json=body)).status_code == 204
    assert (await master.request("DELETE", "/checkpoints/11")).status_code == 422
    assert (await master.post("/checkpoints", manifest={})).status_code == 422
    await master.post("/evaluations", number=0, model_version=5, training_epoch=0, metrics={"accuracy": 0.5})
    answer = await api.master(job_id, 2).lease()
    assert answer["ledger"]["plan"] == PLAN
    assert sorted(answer["ledger"]["done"]) == sorted([*tasks, "t:1:1:5:10"])
    assert answer["ledger"]["accounts"] == {"t:0:0:0:5": said}
    assert answer["ledger"]["rounds"] == [{"round": 0, "tasks": 4, "records": 15}]
    assert answer["checkpoints"] == [{"version": 20, "files": []}]
    assert answer["evaluations"] == [
        {"number": 0, "model_version": 5, "training_epoch": 0, "metrics": {"accuracy": 0.5}}
    ]
    assert (await api.job(job_id))["checkpoints"][0]["version"] == 20


async def test_a_master_that_begins_adds_to_the_status_of_the_one_before(api: Api) -> None:
    job_id, first = await api.running()
    progress = {"records_done": 5, "records_total": 9}
    assert (await first.heartbeat({"progress": progress, "loss": 0.5, "degraded": None})).status_code == 200
    assert (await first.heartbeat({"degraded": "waiting for the task queue"})).status_code == 200
    shown = (await api.http.get(f"/jobs/{job_id}")).json()["status"]
    assert shown == {"progress": progress, "loss": 0.5, "degraded": "waiting for the task queue"}
    assert (await first.heartbeat({"progress": progress})).status_code == 200
    assert (await api.http.get(f"/jobs/{job_id}")).json()["status"] == {"progress": progress}


async def test_heartbeat_tells_what_is_wanted(api: Api) -> None:
    job_id, master = await api.running()
    for what, desired in (("suspend", "suspend"), ("resume", "run"), ("cancel", "cancel")):
        await api.http.post(f"/jobs/{job_id}/{what}")
        assert (await master.heartbeat()).json()["desired"] == desired
    assert (await master.post("/state", to="CANCELLED", reason="stopped")).json() == {"state": "CANCELLED"}
    assert (await master.heartbeat()).json()["desired"] == "cancel"


async def test_suspend_and_resume(api: Api) -> None:
    job_id, master = await api.running()
    await api.http.post(f"/jobs/{job_id}/suspend")
    assert (await master.post("/state", to="SUSPENDED", reason="saved")).json() == {"state": "SUSPENDED"}
    gone = await master.request("POST", "/lease", json={"holder": "again"})
    assert (gone.status_code, gone.json()["code"]) == (409, "fenced")
    await api.http.post(f"/jobs/{job_id}/resume")
    job = await api.job(job_id)
    assert (job["state"], job["desired"]) == ("QUEUED", "run")
    await api.admit(job_id)
    assert (await api.master(job_id, 2).lease())["state"] == "STARTING"


async def test_a_cancellation_wins_over_what_the_master_meant(api: Api) -> None:
    for meant in ("SUCCEEDED", "SUSPENDED", "QUEUED", "FAILED"):
        job_id, master = await api.running()
        await api.http.post(f"/jobs/{job_id}/cancel")
        assert (await master.post("/state", to="RUNNING", reason="")).json() == {"state": "CANCELLING"}
        assert (await master.post("/state", to=meant, reason="")).json() == {"state": "CANCELLED"}


async def test_an_eviction_of_a_job_that_shall_be_suspended_suspends_it(api: Api) -> None:
    job_id, master = await api.running()
    await api.http.post(f"/jobs/{job_id}/suspend")
    assert (await master.post("/state", to="QUEUED", reason="evicted")).json() == {"state": "SUSPENDED"}
    assert (await api.job(job_id))["reason"] == "suspend was asked for", "not what its master began to stop for"


async def test_failure_keeps_the_traceback(api: Api) -> None:
    job_id, master = await api.running()
    detail = {"traceback": "Traceback: line 3\0", "fix": "return a scalar"}
    assert (await master.post("/state", to="FAILED", reason="loss raised", detail=detail)).status_code == 200
    job = await api.job(job_id)
    assert job["error"] == {"message": "loss raised", "fix": "return a scalar", "traceback": "Traceback: line 3"}
    again = await master.post("/state", to="FAILED", reason="loss raised")
    assert again.json() == {"state": "FAILED"}
    illegal = await master.post("/state", to="SUCCEEDED", reason="")
    assert (illegal.status_code, illegal.json()["code"]) == (409, "conflict")


async def test_bundle_of_the_job(api: Api) -> None:
    _, master = await api.running()
    response = await master.request("GET", "/bundle")
    assert response.content == make_zip({"model.py": MODULE})


async def test_artifact_paths_stay_inside(api: Api, tmp_path) -> None:
    output = tmp_path / "out"
    (output / "saved").mkdir(parents=True)
    (output / "saved" / "a.txt").write_text("a")
    job_id, master = await api.running(output=str(output))
    for path in ("../x", "/etc/passwd", f"{output}/../x", "a/../../x"):
        refused = await master.post("/artifacts", name="x", path=path, size=1, sha256="0" * 64)
        assert refused.status_code == 422, path
    for digest in ("", "ab", "A" * 64):
        assert (await master.post("/artifacts", name="x", path="x", size=1, sha256=digest)).status_code == 422
    digest = hashlib.sha256(b"a").hexdigest()
    response = await master.post(
        "/artifacts", name="saved/a.txt", path=f"{output}/saved/a.txt", size=1, sha256=digest
    )
    assert response.status_code == 204
    assert (await api.http.get(f"/jobs/{job_id}/artifacts/saved/a.txt")).text == "a"


async def test_only_the_master_of_the_job_is_let_in(api: Api) -> None:
    job_id, _ = await api.running()
    other, _ = await api.running()
    body = {"holder": "h"}
    for role in (Role.WORKER, Role.PS):
        response = await api.master(job_id, role=role).request("POST", "/lease", json=body)
        assert response.status_code == 403
    stranger = api.master(other)
    stranger.base = f"/internal/jobs/{job_id}"
    assert (await stranger.request("POST", "/lease", json=body)).status_code == 401
    assert (await api.http.post(f"/internal/jobs/{job_id}/lease", json=body)).status_code == 401
    assert (await api.http.get("/jobs", headers=api.master(job_id).headers)).status_code == 401


async def test_events_of_a_job_are_numbered_in_the_order_of_their_commits(api: Api) -> None:
    job_id, master = await api.running()
    batches = [
        master.post("/events", events=[{"kind": "n", "message": str(n), "detail": {}} for n in range(20)])
        for _ in range(8)
    ]
    await asyncio.gather(*batches)
    events = (await api.http.get(f"/jobs/{job_id}/events?limit=1000")).json()
    messages = [event["message"] for event in events if event["kind"] == "n"]
    assert messages == [str(n) for n in range(20)] * 8


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 1e300, -1e18, "NaN", "1969-01-01T00:00:00Z"]
)
async def test_a_loss_at_a_time_that_no_calendar_has_is_left_out_and_said(api: Api, at: Any) -> None:
    _, master = await api.running()
    answer = await master.heartbeat({}, [{"model_version": 1, "loss": 0.5, "at": at}])
    (reason,) = answer.json()["refused"]["losses"]
    assert (answer.status_code, reason.partition(":")[0].split(".")[0]) == (200, "at")
    assert (await master.heartbeat({}, [{"model_version": 1, "loss": 0.5, "at": 1.8e9}])).status_code == 200


async def test_lives_of_processes_are_kept_each_stage_once(api: Api) -> None:
    job_id, master = await api.running()
    worker = {"role": "worker", "index": 0, "incarnation": 0}

    def told(stage: str, at: float, **more: Any) -> dict[str, Any]:
        return {**worker, "stage": stage, "at": 1_700_000_000 + at, **more}

    async def tell(*lives: dict[str, Any], living: Any = None) -> None:
        response = await master.post("/processes", lives=list(lives), living=living)
        assert response.status_code == 204, response.text

    await tell(told("launched", 0), told("ready", 1))
    await tell(told("ready", 9), told("drained", 2))
    await tell(told("ended", 3, cause="drained", exit_code=0))
    await tell(told("ended", 4, cause="crashed", exit_code=1, message="late"))
    other = {"role": "worker", "index": 1, "incarnation": 0}
    await tell({**other, "stage": "launched", "at": 1_700_000_005})
    await tell(living=[])
    page = (await api.http.get(f"/jobs/{job_id}/processes")).json()
    of_master, first, second = page["processes"]
    assert (of_master["role"], of_master["state"], of_master["cause"]) == ("master", "ready", None)
    assert [first[f"{name}_at"][17:19] for name in ("launched", "ready", "drained", "ended")] == [
        "20",
        "21",
        "22",
        "23",
    ]
    assert (first["state"], first["cause"], first["exit_code"], first["message"]) == ("ended", "drained", 0, "")
    assert (second["cause"], second["exit_code"]) == ("lost", None), "it was not among those that there are"
    kinds = [one["kind"] for one in (await api.http.get(f"/jobs/{job_id}/events")).json()]
    assert [kind for kind in kinds if kind.startswith("worker_")] == [
        "worker_started",
        "worker_ready",
        "worker_drained",
        "worker_ended",
        "worker_started",
    ]
    assert (await master.post("/processes", lives=[{**told("ended", 1), "role": "master"}])).status_code == 204


async def test_pages_of_processes_hold_each_once(api: Api) -> None:
    job_id, master = await api.running()
    lives = [
        {"role": role, "index": index, "incarnation": 0, "stage": "launched", "at": 1_700_000_000}
        for role in ("ps", "worker")
        for index in range(12)
    ]
    await master.post("/processes", lives=lives)
    found, token = [], None
    while True:
        params = {"limit": 5} | ({"page_token": token} if token else {})
        page = (await api.http.get(f"/jobs/{job_id}/processes", params=params)).json()
        found += [(one["role"], one["index"]) for one in page["processes"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert found == [("master", 0), *(("ps", n) for n in range(12)), *(("worker", n) for n in range(12))]
    only = (await api.http.get(f"/jobs/{job_id}/processes?role=ps")).json()["processes"]
    assert len(only) == 12


async def test_a_master_that_takes_over_ends_the_one_before(api: Api) -> None:
    job_id, _ = await api.running()
    second = api.master(job_id, 2)
    await second.lease()
    await second.post("/state", to="FAILED", reason="boom")
    first, last = (await api.http.get(f"/jobs/{job_id}/processes")).json()["processes"]
    assert (first["incarnation"], first["cause"]) == (1, "superseded")
    assert (last["incarnation"], last["state"], last["cause"], last["message"]) == (2, "ended", "stopped", "boom")


async def test_a_checkpoint_is_not_forgotten_while_another_job_begins_with_it(api: Api) -> None:
    _, master = await api.running()
    first, second = "/data/checkpoints/version-10-a", "/data/checkpoints/version-10-b"
    assert (await master.post("/checkpoints", manifest={"version": 10, "directory": second})).status_code == 204
    user = await api.submit(checkpoint_dir_for_init=first)

    async def forget(directory: str) -> httpx.Response:
        query = urlencode({"epoch": master.epoch, "directory": directory})
        return await master.request("DELETE", f"/checkpoints/10?{query}")

    refused = await forget(first)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert user in refused.json()["detail"]
    assert (await api.http.post(f"/jobs/{user}/cancel")).status_code == 202
    assert (await forget(first)).status_code == 204
    left = await master.lease()
    assert [one["directory"] for one in left["checkpoints"]] == [second], "it is of the same version, and elsewhere"
    assert (await forget(second)).status_code == 204
    assert (await master.lease())["checkpoints"] == []


async def test_one_item_that_cannot_be_taken_does_not_refuse_a_report(api: Api) -> None:
    job_id, master = await api.running()
    losses: list[Any] = [
        {"model_version": 1, "loss": 0.5},
        {"model_version": -1, "loss": 0.5},
        {"model_version": 2, "loss": "none"},
        "a loss",
        {"model_version": 3, "loss": 0.25},
    ]
    numbers = {"training." + "m" * 400: [1.0], "": [1.0], "x": [], "loss": [0.5]}
    series = [{"tier": 0, "start": 5, "samples": 1, "numbers": numbers}, {"tier": 77, "start": 5, "samples": 1}]

    answer = await master.post("/heartbeat", status={}, losses=losses, series=series)

    assert answer.status_code == 200
    assert (answer.json()["desired"], [len(one) for one in answer.json()["refused"].values()]) == ("run", [3, 1])
    assert [point["loss"] for point in (await api.http.get(f"/jobs/{job_id}/metrics")).json()["losses"]] == [
        0.5,
        0.25,
    ]
    found = (await api.http.get(f"/jobs/{job_id}/series", params={"names": "loss", "since": 0})).json()
    assert [one["name"] for one in found["series"]] == ["loss"]

    events = [{"kind": "a", "message": "m" * 300_000}, {"kind": ""}, {"kind": "b"}]
    assert (await master.post("/events", events=events)).status_code == 204
    life = {"role": "worker", "index": 0, "incarnation": 0, "stage": "launched", "at": 1.8e9, "message": "m" * 20_000}
    assert (await master.post("/processes", lives=[{**life, "index": -1}, life])).status_code == 204
    name = "名" * 1000
    artifact = {"name": name, "path": "a", "size": 1, "sha256": "0" * 64}
    assert (await master.post("/artifacts", **artifact)).status_code == 204
    shown = (await api.http.get(f"/jobs/{job_id}/events", params={"limit": 1000})).json()
    assert {"a", "b"} <= {event["kind"] for event in shown}
    assert len([event for event in shown if event["kind"] == "report_refused"]) == 2
    failed = await master.post("/state", to="FAILED", reason="r" * 300_000)
    assert failed.status_code == 200
    assert (await api.job(job_id))["state"] == "FAILED"


async def test_artifacts_with_long_names_have_pages_and_longer_ones_are_refused(api: Api) -> None:
    job_id, master = await api.running()
    names = sorted(["名" * 1000, "é" * 1000, "\x01" * 1000, "😀" * 1000])
    for name in names:
        report = {"name": name, "path": "a", "size": 1, "sha256": "0" * 64}
        assert (await master.post("/artifacts", **report)).status_code == 204
    assert (await master.post("/artifacts", **{**report, "name": "x" * 1001})).status_code == 422
    found, token = [], None
    while True:
        params = {"limit": 1} | ({"page_token": token} if token else {})
        page = (await api.http.get(f"/v1/jobs/{job_id}/artifacts", params=params)).json()
        found += [one["name"] for one in page["artifacts"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert sorted(found) == names


async def test_a_checkpoint_that_another_namespace_uses_is_kept_without_saying_by_which_job(api: Api) -> None:
    _, master = await api.running()
    await api.token("others", "submit")
    used = "spec = spec || jsonb_build_object('checkpoint_dir_for_init', '/ck/v1')"
    for changes, said in ((f"{used}, namespace = 'others'", "a job of another namespace begins"), (used, "job ")):
        user = await api.submit()
        async with api.services.database.transaction() as connection:
            await connection.execute(text(f"UPDATE jobs SET {changes} WHERE id = :id"), {"id": user})
        answer = await master.request("DELETE", f"/checkpoints/1?epoch={master.epoch}&directory=/ck/v1")
        assert (answer.status_code, answer.json()["detail"][: len(said)]) == (409, said)
        assert (user in answer.text) is (said == "job ")


async def test_checkpoints_of_a_folder_that_a_job_begins_with_stay_until_it_has_one_of_its_own(api: Api) -> None:
    """It has taken the newest of some moment, which the other job goes on to remove as one of its old ones."""
    _, master = await api.running()
    _, beginning = await api.running(checkpoint_dir_for_init="/ck/")

    async def forget() -> int:
        return (await master.request("DELETE", f"/checkpoints/1?epoch={master.epoch}&directory=/ck/v1")).status_code

    assert await forget() == 409
    answer = await beginning.post("/checkpoints", manifest={"version": 3, "files": [], "directory": "/own/v3"})
    assert answer.status_code == 204, answer.text
    assert await forget() == 204
