"""Tokens, namespaces, who one is, and who changed what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text

from elasticdl_core.access import is_mistyped
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


async def _make(api: Api, headers: dict[str, str] | None = None, **wanted: Any) -> httpx.Response:
    return await api.http.post("/tokens", json={"name": "one", **wanted}, headers=headers or {})


def _bearer(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def test_a_token_is_made_used_listed_and_revoked(api: Api) -> None:
    assert (await api.http.put("/namespaces/team-a", json={})).status_code == 201
    made = await _make(api, name="ada-laptop", namespace="team-a", scope="submit", owner="ada", expires_in_s=3600)
    headers, token = _bearer(made), made.json()["token"]
    assert made.headers["cache-control"] == "no-store"
    assert not is_mistyped(token)
    me = (await api.http.get("/whoami", headers=headers)).json()
    assert (me["user"], me["namespace"], me["home"], me["scope"]) == ("ada", "team-a", "team-a", "submit")
    assert me["token_id"] == made.json()["id"]
    ends = datetime.fromisoformat(me["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=55) < ends < timedelta(minutes=61)
    (listed,) = (await api.http.get("/tokens")).json()["tokens"]
    assert (listed["name"], listed["state"], listed["created_by"]) == ("ada-laptop", "valid", "admin")
    assert listed["last_used_at"] is not None and "token" not in listed and "sha256" not in listed
    for _ in range(2):
        assert (await api.http.delete(f"/tokens/{listed['id']}")).status_code == 204
    assert (await api.http.get("/whoami", headers=headers)).status_code == 401
    assert (await api.http.get("/tokens")).json()["tokens"] == []
    (ended,) = (await api.http.get("/tokens?ended=true")).json()["tokens"]
    assert ended["state"] == "revoked"
    found = (await api.http.get("/audit")).json()["entries"]
    assert [one["action"] for one in found] == ["token.revoke", "token.create", "namespace.create"]
    async with api.services.database.transaction() as connection:
        kept = (await connection.execute(text("SELECT string_agg(t::text, '') FROM tokens t"))).scalar_one()
        kept += (await connection.execute(text("SELECT string_agg(t::text, '') FROM audit_log t"))).scalar_one()
    assert token not in kept


async def test_a_token_makes_none_that_may_more(api: Api) -> None:
    admin = await api.token("team-a", "admin")
    await api.token("team-b", "read")
    assert _bearer(await _make(api, admin, scope="admin"))
    for wanted, detail in (
        ({"namespace": "team-b"}, "makes tokens of that namespace only"),
        ({"of_cluster": True}, "makes tokens of that namespace only"),
    ):
        refused = await _make(api, admin, name="two", **wanted)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        assert detail in refused.json()["detail"] and refused.json()["fix"]
    for scope in ("read", "submit"):
        assert (await _make(api, await api.token("team-a", scope), name="three")).status_code == 403
    reader_of_all = _bearer(await _make(api, name="all", of_cluster=True))
    assert (await _make(api, reader_of_all, name="four")).status_code == 403
    assert (await api.http.get("/cluster/reservations", headers=reader_of_all)).status_code == 200
    assert (await api.http.delete("/cluster/reservations/x", headers=reader_of_all)).status_code == 403


async def test_a_token_makes_none_that_outlives_it(api: Api) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    admin = await api.token("team-a", "admin", expires_at=soon)
    assert (await _make(api, admin, expires_in_s=600)).status_code == 201
    for wanted in ({}, {"expires_in_s": 7200}):
        refused = await _make(api, admin, name="two", **wanted)
        assert refused.status_code == 403 and "would outlive" in refused.json()["detail"]


async def test_administrators_of_a_namespace_see_and_revoke_its_tokens_only(api: Api) -> None:
    admin = await api.token("team-a", "admin")
    await api.token("team-b", "submit", name="theirs")
    await api.token(None, "read", name="of-the-cluster")
    listed = (await api.http.get("/tokens", headers=admin)).json()["tokens"]
    assert [one["name"] for one in listed] == ["team-a-admin"]
    assert (await api.http.get("/tokens?namespace=team-b", headers=admin)).json()["tokens"] == []
    for other in ("theirs", "of-the-cluster"):
        assert (await api.http.delete(f"/tokens/{other}", headers=admin)).status_code == 404
    assert len((await api.http.get("/tokens")).json()["tokens"]) == 3


async def test_tokens_and_entries_come_page_by_page(api: Api) -> None:
    for number in range(5):
        await api.token("team-a", "read", name=f"t{number}")
    for name in ("x", "y", "z"):
        assert (await api.http.put(f"/namespaces/{name}", json={})).status_code == 201

    async def pages(path: str, key: str, what: str) -> list[list[str]]:
        found, token = [], ""
        while True:
            answer = (await api.http.get(f"{path}?limit=2{token}")).json()
            found.append([one[what] for one in answer[key]])
            if answer["next_page_token"] is None:
                return found
            token = f"&page_token={answer['next_page_token']}"

    assert await pages("/tokens", "tokens", "name") == [["t4", "t3"], ["t2", "t1"], ["t0"]]
    assert await pages("/audit", "entries", "target") == [["z", "y"], ["x"]]
    assert (await api.http.get("/tokens?page_token=nobody")).status_code == 422


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "x" * 65},
        {"name": "a\x1b[31m"},
        {"scope": "write"},
        {"namespace": "Team"},
        {"namespace": "default", "of_cluster": True},
        {"of_cluster": "true"},
        {"owner": "a\nb"},
        {"expires_in_s": 0},
        {"expires_in_s": 1.5},
        {"expires_in_s": 10**12},
        {"expires_at": "2030-01-01T00:00:00Z"},
    ],
)
async def test_what_is_no_token_is_refused(api: Api, wanted: dict[str, Any]) -> None:
    answer = await _make(api, **wanted)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid_input"
    async with api.services.database.transaction() as connection:
        assert (await connection.execute(select(func.count()).select_from(t.tokens))).scalar_one() == 0


async def test_names_of_tokens_and_namespaces_are_checked_where_they_lead(api: Api) -> None:
    missing = await _make(api, namespace="nobodys")
    assert missing.status_code == 404 and "elasticdl namespaces create nobodys" in missing.json()["fix"]
    assert (await _make(api)).status_code == 201
    again = await _make(api)
    assert again.status_code == 409 and "'one'" in again.json()["detail"]
    (one,) = (await api.http.get("/tokens")).json()["tokens"]
    assert (await api.http.delete(f"/tokens/{one['id']}")).status_code == 204
    assert (await _make(api)).status_code == 201  # the name of a revoked one is free


async def test_there_are_not_more_tokens_than_allowed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_api.store.tokens.MOST_TOKENS", 2)
    assert [(await _make(api, name=name)).status_code for name in "abc"] == [201, 201, 409]


async def test_a_namespace_is_made_changed_looked_at_and_removed(api: Api) -> None:
    url = "/namespaces/team-a"
    made = await api.http.put(url, json={"data_roots": ["/data/a/", "gs://bucket/a/"], "limits": {"max_streams": 5}})
    assert made.status_code == 201
    assert made.json()["data_roots"] == ["/data/a", "gs://bucket/a/"]
    changed = await api.http.put(url, json={"limits": {"requests_per_second": 9}})
    assert changed.status_code == 200
    assert changed.json()["data_roots"] == ["/data/a", "gs://bucket/a/"]
    assert changed.json()["limits"] == {"requests_per_second": 9}
    assert (await api.http.put(url, json={})).status_code == 200
    reader, stranger = await api.token("team-a", "read"), await api.token("team-b", "admin")
    assert (await api.http.get(url, headers=reader)).json()["tokens"] == 1
    assert (await api.http.get(url, headers=stranger)).status_code == 404
    assert [one["name"] for one in (await api.http.get("/namespaces", headers=reader)).json()["namespaces"]] == [
        "team-a"
    ]
    names = [one["name"] for one in (await api.http.get("/namespaces")).json()["namespaces"]]
    assert names == ["default", "team-a", "team-b"]
    assert (await api.http.delete(url)).status_code == 204
    assert (await api.http.get("/jobs", headers=reader)).status_code == 401
    assert (await api.http.delete(url)).status_code == 404
    actions = [
        (one["action"], one["detail"]) for one in (await api.http.get("/audit?target=team-a")).json()["entries"]
    ]
    assert actions == [
        ("namespace.delete", {}),
        ("namespace.change", {"limits": {"requests_per_second": 9}}),
        ("namespace.create", {"data_roots": ["/data/a", "gs://bucket/a/"], "limits": {"max_streams": 5}}),
    ]


async def test_a_namespace_with_jobs_stays_and_so_does_the_default_one(api: Api) -> None:
    await api.submit()
    refused = await api.http.delete("/namespaces/default")
    assert refused.status_code == 409 and refused.json()["fix"]
    await api.token("team-a", "read")
    async with api.services.database.transaction() as connection:
        await connection.execute(t.jobs.update().values(namespace="team-a"))
    refused = await api.http.delete("/namespaces/team-a")
    assert refused.status_code == 409 and "1 jobs" in refused.json()["detail"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"data_roots": ["data"]},
        {"data_roots": ["/a/../b"]},
        {"data_roots": ["/a\0"]},
        {"data_roots": [""]},
        {"data_roots": ["/a"] * 101},
        {"data_roots": "/a"},
        {"limits": {"cpus": 3}},
        {"limits": {"max_streams": -1}},
        {"owner": "ada"},
    ],
)
async def test_what_is_no_namespace_is_refused(api: Api, wanted: dict[str, Any]) -> None:
    answer = await api.http.put("/namespaces/team-a", json=wanted)
    assert answer.status_code == 422, answer.text
    assert (await api.http.get("/namespaces/team-a")).status_code == 404


@pytest.mark.parametrize(
    ("below", "words"),
    [("", "lies within"), ("jobs", "lies within"), ("..", "holds"), ("/", "holds"), ("link", "holds")],
)
async def test_the_cluster_s_own_data_are_no_data_root(api: Api, below: str, words: str) -> None:
    home = api.services.settings.data_dir
    root = home.parent if below == ".." else home / below
    if below == "link":
        root = home.parent / "link"
        root.symlink_to(home.parent)
    answer = await api.http.put("/namespaces/team-a", json={"data_roots": ["/data/a", str(root)]})
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["detail"] and str(home) in answer.json()["detail"]
    assert "beside it" in answer.json()["fix"]
    assert (await api.http.get("/namespaces/team-a")).status_code == 404
    assert (await api.http.get("/audit?target=team-a")).json()["entries"] == []
    beside = await api.http.put("/namespaces/team-a", json={"data_roots": [f"{home}-of-team-a"]})
    assert beside.status_code == 201


async def test_administrators_of_a_namespace_see_its_entries_only(api: Api) -> None:
    ours, theirs = await api.token("default", "admin"), await api.token("team-b", "admin")
    job_id = await api.submit()
    assert (await api.http.put("/cluster/reservations/shop", json={"slots": 1})).status_code == 200
    assert (await api.http.get("/audit", headers=theirs)).json()["entries"] == []
    actions = [one["action"] for one in (await api.http.get("/audit", headers=ours)).json()["entries"]]
    assert actions == ["job.submit", "bundle.upload"]
    for query, number in (
        (f"target={job_id}", 1),
        ("actor=admin", 3),
        ("actor=ada", 0),
        ("action=reservation.put", 1),
        ("since=2999-01-01T00:00:00Z", 0),
        ("until=2999-01-01T00:00:00Z", 3),
        ("namespace=default", 2),
    ):
        assert len((await api.http.get(f"/audit?{query}")).json()["entries"]) == number, query
    for bad in ("since=2026-01-01", "until=9999-12-31T23:59:59-12:00", "page_token=x", "limit=0", "action=%00"):
        assert (await api.http.get(f"/audit?{bad}")).status_code == 422, bad


async def test_who_and_which(api: Api) -> None:
    me = (await api.http.get("/whoami")).json()
    assert (me["user"], me["namespace"], me["home"], me["scope"]) == ("admin", None, "default", "admin")
    told = (await api.http.get("/version")).json()
    assert set(told) == {"version", "python"}


async def test_a_job_has_no_higher_priority_than_its_namespace_allows(api: Api) -> None:
    """Whoever might submit at all overran what others are guaranteed, by priority 1000."""
    answer = await api.http.put("/namespaces/default", json={"limits": {"max_priority": 5}})
    assert answer.status_code == 200, answer.text
    answer = await api.http.post("/jobs", json=await api.spec(priority=6))
    (problem,) = answer.json()["problems"]
    assert (answer.status_code, problem["field"]) == (422, "priority")
    assert problem["message"] == "a job of default may have priority 5 at most"
    job_id = await api.submit(priority=5)
    assert (await api.http.patch(f"/jobs/{job_id}", json={"priority": 6})).status_code == 422
    await api.http.put("/namespaces/default", json={"limits": {"max_priority": -3}})
    assert (await api.http.patch(f"/jobs/{job_id}", json={"priority": 4})).status_code == 200, "lowered, it may be"
    assert (await api.http.patch(f"/jobs/{job_id}", json={"priority": 5})).status_code == 422


async def test_quotas_of_namespaces_are_set_while_the_cluster_runs(api: Api) -> None:
    """They could be given at the start of the cluster only, and contradictions were taken silently."""
    slots = (await api.http.get("/cluster")).json()["slots"]["total"]

    async def put(name: str, **limits: int) -> tuple[int, str]:
        answer = await api.http.put(f"/namespaces/{name}", json={"limits": limits})
        return answer.status_code, answer.text

    assert (await put("ads", guaranteed_slots=slots - 1, max_slots=slots, weight=2))[0] == 201
    status, text = await put("ads", guaranteed_slots=3, max_slots=2)
    assert (status, "above max_slots 2" in text) == (422, True)
    status, text = await put("search", guaranteed_slots=2)
    assert status == 422 and f"{slots + 1} slots would be guaranteed in all, and the cluster has {slots}" in text
    assert (await put("search", guaranteed_slots=1))[0] == 201
    assert (await put("ads", max_slots=2))[0] == 200
    assert (await put("search", guaranteed_slots=slots))[0] == 200, "the other one is given back"
    (entry,) = (await api.http.get("/audit?limit=1")).json()["entries"]
    assert (entry["action"], entry["detail"]) == ("namespace.change", {"limits": {"guaranteed_slots": slots}})


async def test_a_job_has_no_more_parameter_servers_than_its_namespace_or_the_cluster_allows(api: Api) -> None:
    """They take no slots: nothing else bounds them."""
    most = api.services.settings.most_ps
    for limit, refused in ((None, most + 1), (3, 4)):
        if limit is not None:
            answer = await api.http.put("/namespaces/default", json={"limits": {"max_ps": limit}})
            assert answer.status_code == 200, answer.text
        for path, name in (("/jobs", "num_ps"), ("/jobs", "num_ps_pods")):
            answer = await api.http.post(path, json=await api.spec(**{name: refused}))
            (problem,) = answer.json()["problems"]
            assert (answer.status_code, problem["field"]) == (422, "num_ps")
            assert f"may have {limit or most} parameter servers" in problem["message"]
            assert "max_ps of the namespace, or ELASTICDL_MAX_PS" in problem["fix"]
        answer = await api.http.post("/jobs", json=await api.spec(num_ps=limit or most))
        assert answer.status_code == 201, answer.text
    assert len((await api.http.get("/jobs")).json()["jobs"]) == 2
