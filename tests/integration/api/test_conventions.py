"""What all routes share: versions, methods, entity tags, compression, names of requests, limits."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from elasticdl_api.web.versions import PREFIX
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import ADMIN, Api
from tests.integration.api.test_streams import Stream, limited

pytestmark = pytest.mark.integration
PLAIN = {"Accept-Encoding": "identity"}


async def test_the_same_routes_with_a_version_and_without(api: Api) -> None:
    spec = await api.spec()
    made = await api.http.post(f"{PREFIX}/jobs", json=spec)
    job_id = made.json()["id"]
    assert (made.status_code, made.headers["location"]) == (201, f"{PREFIX}/jobs/{job_id}")
    for path in (f"/jobs/{job_id}", "/jobs", "/cluster", "/scheduler/plan", "/metrics"):
        one, other = await api.http.get(path), await api.http.get(f"{PREFIX}{path}")
        assert (one.status_code, other.status_code) == (200, 200), path
        assert one.headers["content-type"] == other.headers["content-type"]
    strange = (
        "/v1",
        "/v1/",
        "/v1/v1/jobs",
        "/v1/healthz",
        "/v1/openapi.json",
        "/v1/internal/jobs/x/lease",
        "/v1jobs",
    )
    for path in strange:
        assert (await api.http.get(path)).status_code in (401, 404), path
        assert (await api.http.get(path, headers={"Authorization": ""})).status_code == 401, path
    documented = api.app.openapi()["paths"]
    assert f"{PREFIX}/jobs" in documented
    assert "/jobs" not in documented
    assert all(path.startswith((PREFIX, "/internal/", "/healthz", "/readyz")) for path in documented)


async def test_head_is_get_without_its_body(api: Api) -> None:
    job_id = await api.submit()
    digest = (await api.job(job_id))["spec"]["model_bundle"]
    for path in (f"/jobs/{job_id}", "/jobs", "/cluster", f"/bundles/{digest}", "/healthz", "/openapi.json"):
        got, head = await api.http.get(path, headers=PLAIN), await api.http.head(path, headers=PLAIN)
        assert (head.status_code, head.content) == (200, b""), path
        for name in ("content-type", "content-length", "etag"):
            assert head.headers.get(name) == got.headers.get(name), (path, name)
    assert (await api.http.head("/jobs/none")).status_code == 404
    assert (await api.http.head(f"/jobs/{job_id}/cancel")).status_code == 405
    # These bodies have no end.
    endless = await api.http.head(f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})
    assert (endless.status_code, endless.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert api.services.stream_slots.open == 0


async def test_methods_that_a_path_takes(api: Api) -> None:
    job_id = await api.submit()
    cases = {
        "/jobs": "GET, HEAD, OPTIONS, POST",
        f"{PREFIX}/jobs/{job_id}": "DELETE, GET, HEAD, OPTIONS, PATCH",
        f"/jobs/{job_id}/cancel": "OPTIONS, POST",
        "/cluster/reservations/x": "DELETE, GET, HEAD, OPTIONS, PUT",
        "/healthz": "GET, HEAD, OPTIONS",
    }
    for path, methods in cases.items():
        refused = await api.http.request("TRACE", path)
        assert (refused.status_code, refused.json()["code"], refused.headers["allow"]) == (
            405,
            "method_not_allowed",
            methods,
        ), path
        asked = await api.http.options(path)
        assert (asked.status_code, asked.headers["allow"], asked.content) == (204, methods, b""), path
    assert (await api.http.options("/nothing")).status_code == 404
    assert (await api.http.options("/jobs", headers={"Authorization": ""})).status_code == 401


async def test_a_tag_is_true_of_the_body(api: Api) -> None:
    """A heartbeat changes what a job's answer says, and did not change its tag."""
    job_id, master = await api.running()
    path = f"{PREFIX}/jobs/{job_id}"
    first = await api.http.get(path)
    tag = first.headers["etag"]
    same = await api.http.get(path, headers={"If-None-Match": f'W/"other", {tag}'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert "content-type" not in same.headers
    assert (await api.http.get(path, headers={"If-None-Match": "*"})).status_code == 304
    await master.heartbeat({"progress": {"records_done": 10}})
    changed = await api.http.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag
    # What a master reports refuses nobody who changes the settings; a change of them does.
    patched = await api.http.patch(path, json={"priority": 3}, headers={"If-Match": tag})
    assert (patched.status_code, patched.json()["priority"]) == (200, 3)
    stale = await api.http.patch(path, json={"priority": 4}, headers={"If-Match": changed.headers["etag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    for other in ('"x"', "W/" + patched.headers["etag"], '""', "4", '"99999999999999999999"'):
        assert (await api.http.patch(path, json={"priority": 4}, headers={"If-Match": other})).status_code == 412


async def test_every_answer_has_a_tag_that_changes_with_it(api: Api) -> None:
    job_id, master = await api.running()
    paths = ("/jobs", f"/jobs/{job_id}/events", f"/jobs/{job_id}/metrics", "/cluster", "/openapi.json")
    tags = {path: (await api.http.get(path)).headers["etag"] for path in paths}
    for path, tag in tags.items():
        again = await api.http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.headers["cache-control"]) == (304, "private, no-cache"), path
    await master.post("/evaluations", number=0, model_version=2, training_epoch=0, metrics={"accuracy": 0.9})
    for path in (f"/jobs/{job_id}/events", f"/jobs/{job_id}/metrics"):
        assert (await api.http.get(path, headers={"If-None-Match": tags[path]})).status_code == 200
    assert (await api.http.get("/jobs/none", headers={"If-None-Match": "*"})).status_code == 404
    assert (await api.http.post(f"/jobs/{job_id}/cancel", headers={"If-None-Match": "*"})).status_code == 202


async def test_answers_are_compressed_for_who_takes_that(api: Api) -> None:
    job_id = await api.submit()
    path = f"/jobs/{job_id}"
    plain = await api.http.get(path, headers=PLAIN)
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"
    async with api.http.stream("GET", path, headers={"Accept-Encoding": "br, gzip;q=0.5"}) as response:
        raw = b"".join([piece async for piece in response.aiter_raw()])
        assert response.headers["content-encoding"] == "gzip"
        assert int(response.headers["content-length"]) == len(raw) < len(plain.content)
        assert gzip.decompress(raw) == plain.content
        zipped = response.headers["etag"]
    assert zipped != plain.headers["etag"]
    for tag in (zipped, plain.headers["etag"]):
        assert (await api.http.get(path, headers={"If-None-Match": tag})).status_code == 304
    patched = await api.http.patch(path, json={"priority": 1}, headers={"If-Match": zipped})
    assert (patched.status_code, patched.headers.get("content-encoding")) == (200, None)
    refused = await api.http.get(path, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    async with Stream(api, f"{path}/events") as stream:
        assert "content-encoding" not in stream.headers


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("build-7.a:b+c/d=", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ('a"b', False),
        ("-a", False),
        ("a\x1b[31m", False),
    ],
)
async def test_a_request_has_a_name(api: Api, given: str, kept: bool) -> None:
    answer = await api.http.get("/jobs/none", headers={"X-Request-ID": given})
    name = answer.headers["x-request-id"]
    assert (name == given) == kept
    assert answer.json()["request_id"] == name
    assert answer.headers.get_list("x-request-id") == [name]
    found = (await api.http.get("/healthz", headers={"X-Request-ID": given})).headers["x-request-id"]
    assert (found == given) == kept


async def test_the_log_of_changes_names_the_request(api: Api) -> None:
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/cancel", headers={"X-Request-ID": "mine-1"})
    async with api.services.database.transaction() as connection:
        rows = (await connection.execute(t.audit_log.select().order_by(t.audit_log.c.id))).mappings().all()
    assert (rows[-1]["action"], rows[-1]["request_id"]) == ("job.cancel", "mine-1")
    assert rows[0]["request_id"]


async def test_a_failure_of_the_server_names_the_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(api.services.job_views, "read", fail)
    answer = await api.http.get("/jobs/x", headers={"X-Request-ID": "mine-2"})
    assert (answer.status_code, answer.json()["request_id"]) == (500, "mine-2")
    assert answer.headers["x-request-id"] == "mine-2"


async def test_a_token_may_ask_so_often(api: Api) -> None:
    one = limited(api, requests_per_s=0.01, requests_at_once=3)
    headers = await api.token("team-b", "read")
    other = await api.token("team-b", "read", name="another")
    async with one.http:
        answers = [await one.http.get("/cluster", headers=headers) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
        assert {answer.headers["ratelimit-limit"] for answer in answers} == {"3"}
        assert int(answers[-1].headers["ratelimit-reset"]) > 200
        assert 90 <= int(answers[-1].headers["retry-after"]) <= 100
        assert answers[-1].json()["code"] == "too_many_requests"
        assert (await one.http.get("/cluster", headers=other)).status_code == 200
        mine = [await one.http.get("/cluster") for _ in range(6)]
        assert {answer.status_code for answer in mine} == {200}
        assert "ratelimit-limit" not in mine[0].headers


async def test_a_namespace_may_have_limits_of_its_own(api: Api) -> None:
    headers = await api.token("team-b", "read")
    limits = {"requests_per_second": 3, "max_streams": 0}
    async with api.services.database.transaction() as connection:
        await connection.execute(update(t.namespaces).where(t.namespaces.c.name == "team-b").values(limits=limits))
    async with Stream(api, "/events", token=headers["Authorization"]) as stream:
        assert (stream.status, json.loads(stream.text)["code"]) == (429, "too_many_requests")
    assert (await api.http.get("/cluster", headers=headers)).headers["ratelimit-limit"] == "15"


async def test_an_address_that_sends_bad_tokens_has_to_wait_and_locks_nobody_out(api: Api) -> None:
    one = limited(api, failed_tokens_per_s=0.01, failed_tokens_at_once=3)
    known = await api.token("team-b", "read")
    late = await api.token("team-b", "read", name="late")
    job_id, master = await api.running()

    async def ask(token: str, path: str = "/cluster") -> httpx.Response:
        return await one.http.get(path, headers={"Authorization": token})

    async with one.http:
        assert (await ask(known["Authorization"])).status_code == 200
        statuses = [(await ask(f"Bearer wrong-{number}")).status_code for number in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        refused = await ask("Bearer wrong-again")
        assert (refused.json()["code"], int(refused.headers["retry-after"]) > 90) == ("too_many_requests", True)
        assert (await ask(f"Bearer {ADMIN}")).status_code == 200
        assert (await ask(known["Authorization"])).status_code == 200
        assert (await ask("", "/cluster")).status_code == 401
        assert (await ask("", "/healthz")).status_code == 200
        assert (await ask(master.headers["Authorization"], f"/internal/jobs/{job_id}/bundle")).status_code == 200
        # A token that nobody has shown here yet has to wait with the others from its address.
        assert (await ask(late["Authorization"])).status_code == 429
