"""Lists: one way to page through all of them, and jobs in any order, by text, counted."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from elasticdl_api.store.records import BRIEF, brief_status
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api, Master

pytestmark = pytest.mark.integration


async def _pages(api: Api, path: str, items: str, limit: int) -> list[Any]:
    found: list[Any] = []
    token = None
    joiner = "&" if "?" in path else "?"
    while True:
        answer = await api.http.get(f"{path}{joiner}limit={limit}" + (f"&page_token={token}" if token else ""))
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert len(body[items]) <= limit
        found += body[items]
        token = body["next_page_token"]
        if token is None:
            return found


async def test_all_lists_are_paged_alike(api: Api) -> None:
    job_id, master = await api.running()
    for number in range(5):
        await master.post("/events", events=[{"kind": "note", "message": str(number)}])
        await master.post("/checkpoints", manifest={"version": number * 10})
        await master.post("/evaluations", number=number, model_version=number, training_epoch=0, metrics={})
        folder = api.services.settings.job_dir(job_id) / "artifacts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{number}").write_bytes(b"x")
        await master.post("/artifacts", name=f"part-{number}", path=f"part-{number}", size=1, sha256="ab" * 32)
        await api.http.put(f"/cluster/reservations/r{number}", json={"slots": 0})
        await api.http.post("/tokens", json={"name": f"token-{number}"})
        await api.submit()
    lists = {
        "/v1/jobs": "jobs",
        f"/v1/jobs/{job_id}/events": "events",
        f"/v1/jobs/{job_id}/checkpoints": "checkpoints",
        f"/v1/jobs/{job_id}/evaluations": "evaluations",
        f"/v1/jobs/{job_id}/artifacts": "artifacts",
        "/v1/cluster/reservations": "reservations",
        "/v1/audit": "entries",
        "/v1/scheduler/decisions": "decisions",
        "/v1/tokens": "tokens",
    }
    for path, items in lists.items():
        whole = (await api.http.get(f"{path}?limit=500")).json()[items]
        assert await _pages(api, path, items, 2) == whole, path
        assert len(whole) > 4 or items == "decisions", path
        for bad in ("page_token=", "page_token=eyJ4IjogMX0", "page_token=%00", "limit=0", "limit=x", "limt=2"):
            refused = await api.http.get(f"{path}?{bad}")
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), f"{path}?{bad}"


async def test_what_comes_and_goes_between_pages_loses_and_doubles_nothing(api: Api) -> None:
    async def add(name: str) -> None:
        assert (await api.http.put(f"/v1/cluster/reservations/{name}", json={"slots": 0})).is_success

    for number in range(6):
        await add(f"r{number}")
    found: list[str] = []
    query = "limit=2"
    while True:
        body = (await api.http.get(f"/v1/cluster/reservations?{query}")).json()
        found += [one["name"] for one in body["reservations"]]
        if body["next_page_token"] is None:
            break
        if query == "limit=2":
            # One that was seen, the one at which the page ended, and the next one go; one comes before, one after.
            for name in (*found, "r2"):
                assert (await api.http.delete(f"/v1/cluster/reservations/{name}")).is_success
            await add("a-first")
            await add("z-last")
        query = f"limit=2&page_token={body['next_page_token']}"
    assert found == ["r0", "r1", "r3", "r4", "r5", "z-last"]


@pytest.mark.parametrize(
    ("path", "items", "newest_first"),
    [
        ("/v1/jobs?sort=created_at", "jobs", False),
        ("/v1/jobs?sort=-created_at", "jobs", True),
        ("/v1/jobs/{job}/events?", "events", False),
        ("/v1/audit?", "entries", True),
    ],
)
async def test_what_comes_between_pages_moves_no_other(api: Api, path: str, items: str, newest_first: bool) -> None:
    """Nothing comes twice or is passed over; what is new is behind the last page, or before the first."""
    job_id, master = await api.running()
    path = path.format(job=job_id)

    async def add() -> None:
        await master.post("/events", events=[{"kind": "note", "message": "one more"}])
        await api.submit()

    async def listed() -> list[Any]:
        body = (await api.http.get(f"{path}&limit=500")).json()
        return [one["id"] for one in body[items]]

    for _ in range(5):
        await add()
    before = await listed()
    found: list[Any] = []
    token, pages = "", 0
    while token is not None:
        body = (await api.http.get(f"{path}&limit=2{token and f'&page_token={token}'}")).json()
        found += [one["id"] for one in body[items]]
        token, pages = body["next_page_token"], pages + 1
        if pages < 3:
            await add()
    after = await listed()
    assert len(after) >= len(before) + 2
    assert found == (before if newest_first else after)


async def test_a_token_is_of_its_list_and_its_filters(api: Api) -> None:
    for number in range(3):
        await api.submit(name=f"job{number}")
    token = (await api.http.get("/v1/jobs?limit=1")).json()["next_page_token"]
    for query in ("name=job1", "sort=name", "q=job", "state=QUEUED"):
        refused = await api.http.get(f"/v1/jobs?limit=1&page_token={token}&{query}")
        assert refused.status_code == 422, query
        assert "page_token" in refused.json()["detail"]
    assert (await api.http.get(f"/v1/audit?page_token={token}")).status_code == 422
    for path in ("/v1/audit", "/v1/tokens"):
        for number in range(2):
            await api.http.post("/tokens", json={"name": f"{path[4:]}-{number}"})
        token = (await api.http.get(f"{path}?limit=1")).json()["next_page_token"]
        assert (await api.http.get(f"{path}?limit=1&page_token={token}")).status_code == 200
        assert (await api.http.get(f"{path}?limit=1&page_token={token}&namespace=default")).status_code == 422
    token = (await api.http.get("/v1/jobs?limit=1")).json()["next_page_token"]
    assert (await api.http.get(f"/jobs?limit=2&page_token={token}")).json()["next_page_token"] is None


async def test_lists_without_a_version_are_as_they_were(api: Api) -> None:
    job_id = await api.submit()
    assert (await api.http.get(f"/jobs/{job_id}/events")).json() == (
        await api.http.get(f"/v1/jobs/{job_id}/events")
    ).json()["events"]
    assert (await api.http.get(f"/jobs/{job_id}/artifacts")).json() == []
    assert (await api.http.get(f"/v1/jobs/{job_id}/artifacts")).json() == {"artifacts": [], "next_page_token": None}


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("created_at", "b"),
        ("-created_at", "c"),
        ("name", "a"),
        ("-name", "c"),
        ("priority", "c"),
        ("-priority", "a"),
        ("state", "b"),
        ("-state", "c"),
        ("-updated_at", "b"),
        ("owner", None),
    ],
)
async def test_jobs_in_any_order(api: Api, sort: str, first: str | None) -> None:
    made = {name: await api.submit(name=name, priority=priority) for name, priority in (("b", 5), ("a", 7), ("c", 1))}
    await api.http.post(f"/jobs/{made['b']}/cancel")
    path = f"/v1/jobs?sort={sort}"
    whole = [job["name"] for job in (await api.http.get(path)).json()["jobs"]]
    assert first is None or whole[0] == first
    assert sorted(whole) == ["a", "b", "c"]
    assert [job["name"] for job in await _pages(api, path, "jobs", 1)] == whole


async def test_a_filter_that_is_given_twice_is_refused(api: Api) -> None:
    """Of ``ids=A&ids=B`` the last one counted alone."""
    for query in ("ids=a&ids=b", "limit=5&limit=6", "name=a&name=a"):
        answer = await api.http.get(f"/jobs?{query}")
        assert answer.status_code == 422 and "2 times" in answer.json()["detail"], answer.text
    assert (await api.http.get("/jobs?state=QUEUED&state=RUNNING&label=a=b&label=c=d")).status_code == 200


async def test_jobs_by_text_and_their_number(api: Api) -> None:
    for name in ("mnist-one", "mnist-two", "other"):
        await api.submit(name=name)

    async def ask(query: str) -> tuple[int, int | None]:
        body = (await api.http.get(f"/v1/jobs?{query}")).json()
        return len(body["jobs"]), body["total"]

    assert await ask("") == (3, None)
    assert await ask("total=true&limit=1") == (1, 3)
    assert await ask("q=MNIST&total=true&limit=1") == (1, 2)
    assert await ask("q=two") == (1, None)
    assert await ask("q=ADMIN&total=true") == (3, 3)
    assert await ask("q=%25&total=true") == (0, 0)
    assert await ask("q=_&total=true") == (0, 0)
    assert await ask("namespace=elsewhere&total=true") == (0, 0)
    stranger = await api.token("team-b", "read")
    assert (await api.http.get("/v1/jobs?total=true", headers=stranger)).json()["total"] == 0
    for bad in ("sort=created", "sort=spec", "total=2", "q=" + "x" * 101, "q=%00"):
        assert (await api.http.get(f"/v1/jobs?{bad}")).status_code == 422, bad


async def _reporting(api: Api, name: str, done: Any, workers: Any, eta: Any) -> Master:
    """The master of a job, which reported that; what is None was not reported."""
    _, master = await api.running(name=name)
    progress = {"records_done": done, "records_total": 100}
    told = {"progress": progress, "workers": workers, "eta_seconds": eta, "samples_per_second": 2.5, "ps": [{}]}
    answer = await master.heartbeat({key: value for key, value in told.items() if value is not None})
    assert answer.status_code == 200, answer.text
    return master


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("progress", "bcxa"),
        ("-progress", "xcba"),
        ("workers", "acbx"),
        ("-workers", "xbca"),
        ("end", "xbca"),
        ("-end", "cbxa"),
    ],
)
async def test_jobs_by_what_their_masters_report(api: Api, sort: str, order: str) -> None:
    """What nobody knows comes last in both directions; what is over ends before all that goes on."""
    at_work, ended = {"index": 0, "state": "running"}, {"index": 1, "state": "ended"}
    await api.submit(name="a")
    await _reporting(api, "b", 10, [at_work, ended], 5.5)
    await _reporting(api, "c", 20.5, [ended], 1e6)
    over = await _reporting(api, "x", 99, [at_work, at_work], 3.0)
    if sort.endswith("end"):
        over_id = (await api.http.get("/v1/jobs?name=x")).json()["jobs"][0]["id"]
        assert (await api.http.post(f"/v1/jobs/{over_id}/cancel")).status_code == 202
        assert (await over.post("/state", to="CANCELLED", reason="stopped")).json() == {"state": "CANCELLED"}
    path = f"/v1/jobs?sort={sort}"
    assert "".join(job["name"] for job in (await api.http.get(path)).json()["jobs"]) == order
    assert "".join(job["name"] for job in await _pages(api, path, "jobs", 1)) == order


@pytest.mark.parametrize("odd", [None, "NaN", "12", True, [], {}, -1e308, 1e308, 10**400, 5e-324, 0])
async def test_what_lists_are_ordered_by_takes_whatever_is_reported(api: Api, odd: Any) -> None:
    job_id, master = await api.running()
    status = {"progress": {"records_done": odd, "records_total": odd}, "eta_seconds": odd, "workers": odd}
    answer = await master.heartbeat(status)
    assert answer.status_code == 200, answer.text
    for sort in ("progress", "-end", "workers"):
        for view in ("full", "summary"):
            listed = await api.http.get(f"/v1/jobs?sort={sort}&view={view}&limit=1")
            assert [job["id"] for job in listed.json()["jobs"]] == [job_id], (sort, view)


@pytest.mark.parametrize(
    "workers",
    [
        [{"state": "running"}, {"state": "ended"}, {"state": None}, {"state": 5}, {"state": {}}, {}, 7, None, "x"],
        {"state": "running"},
        {"state": "ended"},
        "running",
        None,
    ],
)
async def test_lists_count_workers_as_streams_do(api: Api, workers: Any) -> None:
    """Lists have the number from the database, streams from what the master reported."""
    _, master = await api.running()
    status = {"workers": workers, "loss": None, "samples_per_second": 5.5, "ps": [{"index": 0}], "other": 1}
    assert (await master.heartbeat(status)).status_code == 200
    (listed,) = (await api.http.get("/v1/jobs?view=summary")).json()["jobs"]
    assert listed["status"] == brief_status(status)
    assert {"loss", "samples_per_second", "workers_present"} <= listed["status"].keys() <= {*BRIEF, "workers_present"}


async def test_jobs_by_ids_and_owner(api: Api) -> None:
    one, two, _ = [await api.submit(name=name) for name in ("one", "two", "three")]
    mine = await api.submit(name="mine")
    async with api.services.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id == mine).values(owner="ada lovelace"))

    async def ask(query: str) -> list[str]:
        answer = await api.http.get(f"/v1/jobs?sort=created_at&{query}")
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]

    assert await ask(f"ids={two},{one},{two},no-such") == [one, two]
    assert await ask(f"ids={one}&q=two") == []
    assert await ask("owner=ada%20lovelace") == [mine]
    assert await ask("owner=nobody") == []
    assert len(await ask("owner=admin")) == 3
    stranger = await api.token("team-b", "read")
    assert (await api.http.get(f"/v1/jobs?ids={one}", headers=stranger)).json()["jobs"] == []
    many = ",".join(f"job-{number}" for number in range(501))
    for bad in (
        f"ids={many}",
        "ids=%00",
        "ids=,",
        "ids=",
        "ids=&owner=admin",
        "ids=a%20b",
        "owner=%00",
        "owner=" + "x" * 201,
        "view=all",
    ):
        refused = await api.http.get(f"/v1/jobs?{bad}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), bad[:40]


async def test_a_summary_is_the_whole_but_for_what_is_long(api: Api) -> None:
    at_work = {"index": 0, "state": "running"}
    await _reporting(api, "long", 10, [at_work, {"index": 1, "state": "ended"}, {"index": 2}], 7.0)
    await api.submit(name="short")
    whole = (await api.http.get("/v1/jobs")).json()["jobs"]
    brief = (await api.http.get("/v1/jobs?view=summary")).json()["jobs"]
    for one in whole:
        del one["spec"]
        one["status"]["workers_present"] = 1 if one["status"].pop("workers", None) else 0
        one["status"].pop("ps", None)
    assert brief == whole


async def test_labels_are_merged(api: Api) -> None:
    job_id = await api.submit(labels={"team": "a", "old": "1"})
    path = f"/v1/jobs/{job_id}"

    async def patch(labels: Any) -> Any:
        answer = await api.http.patch(path, json={"labels": labels})
        assert answer.status_code == 200, answer.text
        return answer.json()["spec"]["labels"]

    assert await patch({"old": None, "new": "2"}) == {"team": "a", "new": "2"}
    assert await patch({}) == {"team": "a", "new": "2"}
    assert await patch({"none": None}) == {"team": "a", "new": "2"}
    assert len((await api.http.get("/v1/jobs?label=new=2")).json()["jobs"]) == 1
    for wrong in ("x", {"a": 1}, {"a": ["b"]}, None, []):
        answer = await api.http.patch(path, json={"labels": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec"), wrong
    await api.http.post(f"{path}/cancel")
    assert await patch({"after": "the end"}) == {"team": "a", "new": "2", "after": "the end"}
    assert (await api.http.patch(path, json={"labels": {"x": "y"}, "priority": 3})).status_code == 409
    events = (await api.http.get(f"{path}/events")).json()["events"]
    assert [event["kind"] for event in events].count("settings") == 2


async def test_a_field_has_its_other_names_here_too(api: Api) -> None:
    job_id = await api.submit()
    changed = await api.http.patch(f"/v1/jobs/{job_id}", json={"num_workers": 7})
    assert (changed.status_code, changed.json()["max_workers"]) == (200, 7)
    both = await api.http.patch(f"/v1/jobs/{job_id}", json={"num_workers": 7, "max_workers": 8})
    assert (both.status_code, both.json()["code"]) == (422, "invalid_spec")
    spec = await api.spec(num_ps_pods=2, num_workers=4)
    spec.pop("max_workers")
    made = (await api.http.post("/v1/jobs", json=spec)).json()
    assert (made["max_workers"], made["spec"]["num_ps"]) == (4, 2)
