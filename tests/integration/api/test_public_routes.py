"""The public routes, against a real database."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.lifecycle import end_all
from tests.integration.api.conftest import MODULE, Api, Master, make_zip

pytestmark = pytest.mark.integration


async def test_submit_and_look(api: Api) -> None:
    response = await api.http.post("/jobs", json=await api.spec(labels={"team": "a"}))
    assert response.status_code == 201
    job = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert response.headers["etag"].startswith('"1-')
    assert job["id"].startswith("digits-")
    assert (job["state"], job["namespace"], job["max_workers"]) == ("QUEUED", "default", 3)
    assert job["spec"]["minibatch_size"] == 64
    assert await api.job(job["id"]) == job
    events = (await api.http.get(f"/jobs/{job['id']}/events")).json()
    assert [(event["kind"], event["detail"]["to"]) for event in events] == [("state", "QUEUED")]


async def test_idempotency_key_gives_one_job_and_refuses_another_body(api: Api) -> None:
    spec = await api.spec()
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(api.http.post("/jobs", json=spec, headers=headers) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await api.http.post("/jobs", json={**spec, "num_epochs": 2}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    (job,) = (await api.http.get("/jobs")).json()["jobs"]
    cancelled = await api.http.post(f"/jobs/{job['id']}/cancel")
    assert (cancelled.json()["state"], cancelled.json()["desired"]) == ("CANCELLED", "cancel")
    assert (await api.http.delete(f"/jobs/{job['id']}")).status_code == 204
    again = await api.http.post("/jobs", json=spec, headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "idempotency_conflict")
    assert job["id"] in again.json()["detail"] and "was deleted" in again.json()["detail"]
    assert (await api.http.get("/jobs")).json()["jobs"] == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"minibatch_sise": 3}, "minibatch_sise"),
        ({"name": "last"}, "name"),
        ({"minibatch_size": "64"}, "minibatch_size"),
        ({"min_workers": 5, "max_workers": 2}, "max_workers"),
        ({"max_workers": 2**40}, "max_workers"),
        ({"model_bundle": "sha256:" + "0" * 64}, "model_bundle"),
        ({"model_bundle": "md5:1"}, "model_bundle"),
        ({"model_bundle": "", "model_zoo": "relative/zoo"}, "model_zoo"),
        ({"envs": {"ELASTICDL_X": "1"}}, "envs"),
    ],
)
async def test_a_wrong_specification_is_refused_by_field(api: Api, changes: dict[str, Any], field: str) -> None:
    response = await api.http.post("/jobs", json=await api.spec(**changes))
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "invalid_spec"
    assert field in [item["field"] for item in problem["problems"]]
    assert all(item["fix"] for item in problem["problems"])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.py": "def custom_model(:\n"}, "model.py:1"),
        ({"model.py": MODULE.replace("def loss", "def lost")}, "does not define 'loss'"),
        ({"other.py": MODULE}, "names the file model.py"),
    ],
)
async def test_a_module_that_cannot_work_is_refused_at_the_door(
    api: Api, files: dict[str, str | bytes], words: str
) -> None:
    response = await api.http.post("/jobs", json=await api.spec(model_bundle=await api.upload(files)))
    assert (response.status_code, response.json()["code"]) == (422, "user_code")
    assert words in response.json()["detail"]
    assert response.json()["fix"]


async def test_a_model_zoo_path_is_checked_too(api: Api, tmp_path: Any) -> None:
    (tmp_path / "model.py").write_text(MODULE)
    spec = await api.spec(model_bundle="", model_zoo=str(tmp_path))
    assert (await api.http.post("/jobs", json=spec)).status_code == 201
    (tmp_path / "model.py").unlink()
    assert (await api.http.post("/jobs", json=spec)).status_code == 422


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed"),
        (b"[]", "application/json", 400, "malformed"),
        (b'{"a": NaN}', "application/json", 400, "malformed"),
        (b'{"model_def": "a\\u0000.b"}', "application/json", 400, "malformed"),
        (b'{"model_def": "\\ud800"}', "application/json", 400, "malformed"),
        (b'{"a": 1, "a": 2}', "application/json", 400, "malformed"),
        (b"\xff", "application/json", 400, "malformed"),
        (b"[" * 100_000, "application/json", 400, "malformed"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b" " * (1 << 20) + b"{}", "application/json", 413, "too_large"),
        (b"{}", "application/json", 422, "invalid_spec"),
    ],
)
async def test_bodies_that_are_no_specification(
    api: Api, body: bytes, content_type: str, status: int, code: str
) -> None:
    response = await api.http.post("/jobs", content=body, headers={"Content-Type": content_type})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.json()["fix"]


async def test_list_filters_and_pages(api: Api) -> None:
    ids = [await api.submit(name=f"job{number % 2}", labels={"n": str(number)}) for number in range(5)]
    await api.http.post(f"/jobs/{ids[0]}/cancel")

    async def found(query: str) -> list[str]:
        response = await api.http.get(f"/jobs?{query}")
        assert response.status_code == 200, response.text
        return [job["id"] for job in response.json()["jobs"]]

    assert await found("") == ids[::-1]
    assert await found("state=CANCELLED") == [ids[0]]
    assert await found("state=CANCELLED&state=QUEUED") == ids[::-1]
    assert await found("name=job1") == [ids[3], ids[1]]
    assert await found("label=n=2") == [ids[2]]
    assert await found("namespace=other") == []
    seen, token = [], ""
    while True:
        page = (await api.http.get(f"/jobs?limit=2{token}")).json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next_page_token"] is None:
            break
        token = f"&page_token={page['next_page_token']}"
    assert seen == ids[::-1]
    for bad in ("limit=0", "state=X", "page_token=x", "page_token=bnVsbA", "label=x", "name=A"):
        assert (await api.http.get(f"/jobs?{bad}")).status_code == 422, bad


async def test_change_with_etag(api: Api) -> None:
    job_id = await api.submit()
    path = f"/jobs/{job_id}"
    response = await api.http.patch(path, json={"max_workers": 5}, headers={"If-Match": '"1"'})
    assert response.status_code == 200
    assert (response.json()["max_workers"], response.json()["spec"]["max_workers"]) == (5, 5)
    assert response.headers["etag"].startswith('"2-')
    stale = await api.http.patch(path, json={"priority": 1}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert (await api.http.patch(path, json={"priority": 1}, headers={"If-Match": "*"})).status_code == 200
    assert (await api.http.patch(path, json={"priority": 2})).json()["priority"] == 2
    for wrong in ({"num_epochs": 3}, {"max_workers": 0}, {"min_workers": 9}, {"priority": "high"}):
        response = await api.http.patch(path, json=wrong)
        assert (response.status_code, response.json()["code"]) == (422, "invalid_spec"), wrong
    assert (await api.http.patch(path, json={})).headers["etag"].startswith('"4-')
    await api.http.post(f"{path}/cancel")
    assert (await api.http.patch(path, json={"priority": 3})).status_code == 409


async def test_requests_by_state(api: Api) -> None:
    job_id = await api.submit()

    async def ask(what: str) -> tuple[int, str]:
        response = await api.http.post(f"/jobs/{job_id}/{what}")
        return response.status_code, response.json().get("state", response.json().get("code"))

    assert await ask("resume") == (202, "QUEUED")
    assert await ask("suspend") == (202, "SUSPENDED")
    assert await ask("suspend") == (202, "SUSPENDED")
    assert await ask("resume") == (202, "QUEUED")
    await api.admit(job_id)
    assert await ask("suspend") == (202, "STARTING")
    assert (await api.job(job_id))["desired"] == "suspend"
    assert await ask("resume") == (202, "STARTING")
    assert (await api.job(job_id))["desired"] == "run"
    assert await ask("cancel") == (202, "CANCELLING")
    assert await ask("cancel") == (202, "CANCELLING")
    assert await ask("resume") == (409, "conflict")


async def test_delete_only_what_is_over(api: Api) -> None:
    job_id = await api.submit()
    folder = api.services.settings.job_dir(job_id)
    folder.mkdir(parents=True)
    (folder / "log").write_text("x")
    refused = await api.http.delete(f"/jobs/{job_id}")
    assert (refused.status_code, refused.json()["fix"]) == (409, "cancel it first, and wait until it is over")
    await api.http.post(f"/jobs/{job_id}/cancel")
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 204
    assert not folder.exists()
    for path in ("", "/events", "/logs", "/metrics", "/artifacts", "/artifacts/x"):
        assert (await api.http.get(f"/jobs/{job_id}{path}")).status_code == 404
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 404


async def test_what_another_job_begins_with_is_not_deleted(api: Api) -> None:
    """Its checkpoint went with it, and the other job failed."""
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/cancel")
    folder = api.services.settings.job_dir(job_id) / "checkpoints"
    for named in (folder, folder / "version-0000000010-a"):
        user = await api.submit(checkpoint_dir_for_init=str(named))
        refused = await api.http.delete(f"/jobs/{job_id}")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert user in refused.json()["detail"] and "when that job is over" in refused.json()["fix"]
        assert (await api.http.post(f"/jobs/{user}/cancel")).status_code == 202
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 204


async def test_bundles(api: Api) -> None:
    data = make_zip({"model.py": MODULE})
    path = f"/bundles/{digest_of(data)}"
    assert (await api.http.head(path)).status_code == 404
    wrong = await api.http.put(path, content=data + b"x")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "malformed")
    assert (await api.http.put(path, content=data)).status_code == 201
    assert (await api.http.put(path, content=data)).status_code == 200
    assert (await api.http.head(path)).status_code == 200
    assert (await api.http.get(path)).content == data
    assert (await api.http.put("/bundles/sha256:zz", content=data)).status_code == 422
    for bad in (b"no zip", make_zip({"../evil.py": ""}), make_zip({"/etc/evil.py": ""})):
        response = await api.http.put(f"/bundles/{digest_of(bad)}", content=bad)
        assert (response.status_code, response.json()["code"]) == (422, "invalid_input")
    assert [p.name for p in api.services.settings.bundles_dir.iterdir()] == [f"{digest_of(data)[7:]}.zip"]


async def test_logs_are_streamed_by_line(api: Api) -> None:
    job_id = await api.submit()
    process = ProcessId(job_id, Role.WORKER, 0, 0)
    missing = await api.http.get(f"/jobs/{job_id}/logs")
    assert missing.status_code == 404
    await api.launcher.launch(ProcessSpec(process))
    api.launcher.print(process, b"".join(b"line %d\n" % number for number in range(50)))
    full = await api.http.get(f"/jobs/{job_id}/logs?role=worker&index=0")
    assert full.headers["content-type"] == "text/plain; charset=utf-8"
    assert full.text.splitlines() == [f"line {number}" for number in range(50)]
    assert (await api.http.get(f"/jobs/{job_id}/logs?tail=2")).text == "line 48\nline 49\n"
    assert (await api.http.get(f"/jobs/{job_id}/logs?tail=0")).text == ""
    long = "x" * 20_000
    api.launcher.print(process, f"{long}1\n{long}2\n".encode())
    assert (await api.http.get(f"/jobs/{job_id}/logs?tail=2")).text == f"{long}1\n{long}2\n"
    assert (await api.http.get(f"/jobs/{job_id}/logs?role=cook")).status_code == 422


async def test_a_log_is_followed_until_the_job_is_over(api: Api) -> None:
    """It ended with the worker, though the job went on with another incarnation of it."""
    job_id, master = await api.running()
    first, second = (ProcessId(job_id, Role.WORKER, 0, incarnation) for incarnation in (1, 2))
    await api.launcher.launch(ProcessSpec(first))
    follow = asyncio.create_task(api.http.get(f"/jobs/{job_id}/logs?follow=true"))
    api.launcher.print(first, b"before\n")
    api.launcher.finish(first)
    await api.http.get(f"/jobs/{job_id}")  # meanwhile the follower reads that nothing runs
    await api.launcher.launch(ProcessSpec(second))
    api.launcher.print(second, b"after\n")
    api.launcher.finish(second)
    assert not follow.done()
    assert (await master.post("/state", to="SUCCEEDED", reason="over")).status_code == 200
    async with asyncio.timeout(60):
        assert (await follow).text == "before\nafter\n"


async def _print(api: Api, job_id: str, data: bytes) -> None:
    process = ProcessId(job_id, Role.WORKER, 0, 0)
    await api.launcher.launch(ProcessSpec(process))
    api.launcher.print(process, data)


async def test_logs_since_a_time_and_lines_with_a_text(api: Api) -> None:
    job_id = await api.submit()
    text = "".join(f"step {number} loss [0.{number}]\n" for number in range(9)) + "the end [0."
    await _print(api, job_id, text.encode())
    whole = (await api.http.get(f"/jobs/{job_id}/logs", params={"grep": "[0."})).text
    assert whole == text
    found = await api.http.get(f"/jobs/{job_id}/logs", params={"grep": "s [0.7]"})
    assert found.text == "step 7 loss [0.7]\n"
    assert (await api.http.get(f"/jobs/{job_id}/logs?grep=nowhere")).text == ""
    assert (await api.http.get(f"/jobs/{job_id}/logs?grep=step&tail=2")).text == "step 8 loss [0.8]\n"
    for since, seconds in (("2001-09-09T01:46:40Z", 1e9), ("2001-09-09T03:46:40.5+02:00", 1e9 + 0.5)):
        assert (await api.http.get(f"/jobs/{job_id}/logs", params={"since": since})).text == text
        assert api.launcher.asked_since == seconds
    for wrong in ("yesterday", "2001-09-09T01:46:40", "0000-00-00T00:00:00Z", "x" * 99):
        assert (await api.http.get(f"/jobs/{job_id}/logs", params={"since": wrong})).status_code == 422
    for edge in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        assert (await api.http.get(f"/jobs/{job_id}/logs", params={"since": edge})).status_code == 200
    assert (await api.http.get(f"/jobs/{job_id}/logs", params={"grep": "x" * 1001})).status_code == 422


async def test_an_endless_line_is_searched_in_parts(api: Api) -> None:
    job_id = await api.submit()
    await _print(api, job_id, b"x" * (3 << 20) + b"needle")
    assert (await api.http.get(f"/jobs/{job_id}/logs?grep=needle")).text.endswith("needle")
    assert (await api.http.get(f"/jobs/{job_id}/logs?grep=thread")).text == ""


async def report(master: Master, name: str, content: bytes, path: str = "") -> None:
    digest = hashlib.sha256(content).hexdigest()
    response = await master.post("/artifacts", name=name, path=path or name, size=len(content), sha256=digest)
    assert response.status_code == 204, response.text


async def test_an_artifact_that_was_changed_is_not_served(api: Api, tmp_path: Path) -> None:
    job_id, master = await api.running(output=str(tmp_path / "out"))
    folder = tmp_path / "out"
    (folder / "saved").mkdir(parents=True)
    for name in ("model.keras", "saved/a", "saved/b"):
        (folder / name).write_bytes(b"as it was")
        await report(master, name, b"as it was", f"{folder}/{name}")
    (folder / "saved" / "unreported").write_bytes(b"not the job's")
    url = f"/jobs/{job_id}/artifacts"
    for _ in range(2):
        assert (await api.http.get(f"{url}/model.keras")).content == b"as it was"
    with zipfile.ZipFile(io.BytesIO((await api.http.get(f"{url}/saved")).content)) as unpacked:
        assert sorted(unpacked.namelist()) == ["a", "b"]
    before = (folder / "model.keras").stat()
    for name in ("model.keras", "saved/b"):
        (folder / name).write_bytes(b"as it is!")
    os.utime(folder / "model.keras", ns=(before.st_atime_ns, before.st_mtime_ns))
    for name in ("model.keras", "saved", "saved/b"):
        refused = await api.http.get(f"{url}/{name}")
        assert (refused.status_code, refused.json()["code"]) == (409, "artifact_changed"), name
        assert b"as it is" not in refused.content
    assert (await api.http.get(f"{url}/saved/a")).content == b"as it was"
    (folder / "saved" / "a").unlink()
    assert (await api.http.get(f"{url}/saved/a")).status_code == 404


async def test_artifacts_are_fetched_and_links_are_not_followed(api: Api) -> None:
    job_id, master = await api.running()
    folder = api.services.settings.job_dir(job_id) / "artifacts"
    (folder / "saved" / "variables").mkdir(parents=True)
    (folder / "model.keras").write_bytes(b"model")
    (folder / "saved" / "saved_model.pb").write_bytes(b"graph")
    (folder / "saved" / "variables" / "data").write_bytes(b"v" * 300_000)
    secret = api.services.settings.data_dir / "token"
    secret.write_text("secret")
    (folder / "saved" / "leak").symlink_to(secret)
    (folder / "stolen").symlink_to(secret)
    (folder / "up").symlink_to(api.services.settings.data_dir)
    saved = ("saved/saved_model.pb", "saved/variables/data")
    for name in ("model.keras", *saved, "stolen", "up/token", "saved/leak"):
        await report(master, name, (folder / name).read_bytes())
    listed = (await api.http.get(f"/jobs/{job_id}/artifacts")).json()
    assert [item["name"] for item in listed] == ["model.keras", "saved/leak", *saved, "stolen", "up/token"]
    fetched = await api.http.get(listed[0]["url"])
    assert (fetched.content, fetched.headers["content-length"]) == (b"model", "5")
    assert (await api.http.get(f"/jobs/{job_id}/artifacts/saved/variables/data")).content == b"v" * 300_000
    assert (await api.http.get(f"/jobs/{job_id}/artifacts/saved")).status_code == 404
    archive = await api.http.get(f"/jobs/{job_id}/artifacts/saved/variables")
    assert archive.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(archive.content)) as unpacked:
        assert unpacked.testzip() is None
        assert sorted(unpacked.namelist()) == ["data"]
    for name in ("exported/model.pb", "exported/variables/part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
        await report(master, name, name.encode())
    archive = await api.http.get(f"/jobs/{job_id}/artifacts/exported")
    with zipfile.ZipFile(io.BytesIO(archive.content)) as unpacked:
        assert sorted(unpacked.namelist()) == ["model.pb", "variables/part"]
    assert (await api.http.get(f"/jobs/{job_id}/artifacts/export")).status_code == 404
    for name in ("stolen", "up/token", "saved/leak", "saved/../../token", "saved/%2e%2e/model.keras", "none"):
        assert (await api.http.get(f"/jobs/{job_id}/artifacts/{name}")).status_code == 404, name


async def test_events_stream_goes_on_after_the_last_id_and_ends(api: Api) -> None:
    job_id, master = await api.running()
    await master.heartbeat({"progress": {"records_done": 10}})
    listed = (await api.http.get(f"/jobs/{job_id}/events")).json()
    listening = asyncio.create_task(api.services.wakeups.run())
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(listed[1]["id"])}
    reading = asyncio.create_task(api.http.get(f"/jobs/{job_id}/events", headers=headers))
    assert (await master.post("/events", events=[{"kind": "note", "message": "hello"}])).status_code == 204
    assert (await master.post("/state", to="SUCCEEDED", reason="all done")).status_code == 200
    text = (await reading).text
    await end_all(listening)
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    blocks = [block for block in blocks if "event" in block]
    events = [json.loads(block["data"]) for block in blocks if block["event"] == "event"]
    assert [event["id"] for event in events][: len(listed) - 2] == [event["id"] for event in listed[2:]]
    assert [event["kind"] for event in events][-2:] == ["note", "state"]
    statuses = [json.loads(block["data"]) for block in blocks if block["event"] == "status"]
    assert statuses[0]["status"] == {"progress": {"records_done": 10}}
    assert blocks[-1]["event"] == "end"
    assert json.loads(blocks[-1]["data"])["state"] == "SUCCEEDED"
    bad = await api.http.get(f"/jobs/{job_id}/events", headers={**headers, "Last-Event-ID": "x"})
    assert bad.status_code == 422


async def test_metrics_hold_losses_and_evaluations(api: Api) -> None:
    job_id, master = await api.running()
    losses = [{"model_version": 1, "loss": 0.5, "at": 1.7e9}, {"model_version": 2, "loss": "NaN", "at": None}]
    assert (await master.heartbeat(losses=losses)).status_code == 200
    assert (await master.heartbeat(losses=losses)).status_code == 200
    await master.post("/evaluations", number=0, model_version=2, training_epoch=0, metrics={"accuracy": 0.9})
    metrics = (await api.http.get(f"/jobs/{job_id}/metrics")).json()
    assert [(item["model_version"], item["loss"]) for item in metrics["losses"]] == [(1, 0.5), (2, "NaN")]
    assert [item["metrics"] for item in metrics["evaluations"]] == [{"accuracy": 0.9}]
    assert (await api.job(job_id))["evaluations"] == metrics["evaluations"]


async def test_cluster_health_and_prometheus(api: Api) -> None:
    await api.submit()
    cluster = (await api.http.get("/cluster")).json()
    assert cluster["slots"] == {"total": 4, "used": 0, "reserved": 0}
    assert cluster["jobs"] == {"QUEUED": 1}
    assert cluster["components"]["scheduler"].startswith("no scheduler")
    assert (await api.http.get("/healthz")).json()["status"] == "ok"
    ready = (await api.http.get("/readyz")).json()["components"]
    assert ready == {"database": "ok", "agent": "ok", "scheduler": cluster["components"]["scheduler"]}
    text = (await api.http.get("/metrics")).text
    assert 'elasticdl_jobs{state="QUEUED"} 1.0' in text
    assert 'elasticdl_api_requests_total{method="POST",route="/jobs",status="201"}' in text


async def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    missing = await api.http.get("/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    wrong = await api.http.put("/jobs")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]
    for odd in ("/jobs/%00", "/jobs/x%ff", "/jobs/..%2f..", "/jobs/" + "a" * 500):
        assert (await api.http.get(odd)).status_code == 404, odd


async def test_another_namespace_is_not_there(api: Api) -> None:
    job_id = await api.submit()
    writer, reader = await api.token("team-b", "submit"), await api.token("team-b", "read")
    assert (await api.http.get("/jobs", headers=writer)).json()["jobs"] == []
    assert (await api.http.get(f"/jobs/{job_id}", headers=writer)).status_code == 404
    assert (await api.http.post(f"/jobs/{job_id}/cancel", headers=writer)).status_code == 404
    spec = await api.spec()
    assert (await api.http.post("/jobs", json=spec, headers=writer)).status_code == 422  # the bundle is not theirs
    assert (await api.http.get("/jobs", headers=reader)).status_code == 200
    assert (await api.http.post("/jobs", json=spec, headers=reader)).status_code == 403


async def test_values_that_json_cannot_hold_are_reported_as_strings(api: Api) -> None:
    job_id, master = await api.running()
    body = json.dumps({"epoch": master.epoch, "status": {"loss": math.nan, "text": "a\0b"}, "losses": []})
    headers = {**master.headers, "Content-Type": "application/json"}
    response = await api.http.post(f"{master.base}/heartbeat", content=body, headers=headers)
    assert response.status_code == 200
    assert (await api.job(job_id))["status"] == {"loss": "NaN", "text": "ab"}
