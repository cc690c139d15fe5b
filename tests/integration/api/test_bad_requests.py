"""A table of some hundred bad requests, each with its refusal; afterwards the api is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from elasticdl_runtime.database import tables as t
from tests.integration.api.bad_requests import bodies, credentials, masters, queries, specifications, zips
from tests.integration.api.bad_requests.case import Case
from tests.integration.api.conftest import Api, Master

pytestmark = pytest.mark.integration
_MODULES = (specifications, bodies, queries, zips, credentials, masters)
GROUPS = {one.__name__.rpartition(".")[2]: one.CASES for one in _MODULES}


@pytest.mark.parametrize("group", GROUPS)
async def test_bad_requests_are_refused_and_the_api_is_as_it_was(api: Api, group: str) -> None:
    over, done = await api.running()
    await done.post("/state", to="SUCCEEDED", reason="over")
    job, master = await api.running()
    before = (await api.http.get("/jobs")).json()
    wrong = []
    for case in GROUPS[group]:
        answer = await _send(api, case, job, over, master)
        problem = _wrong(case, answer)
        if problem:
            wrong.append(f"{case.name}: {problem}: {answer.text[:200]}")
    assert not wrong, f"{len(wrong)} of {len(GROUPS[group])}:\n" + "\n".join(wrong)
    after = (await api.http.get("/jobs")).json()
    assert [one["id"] for one in after["jobs"]] == [one["id"] for one in before["jobs"]]
    assert [one["state"] for one in after["jobs"]] == ["RUNNING", "SUCCEEDED"]
    assert (await api.http.get("/healthz")).status_code == 200


def test_the_table_is_as_large_as_is_said() -> None:
    cases: Sequence[Case] = [case for group in GROUPS.values() for case in group]
    assert len(cases) >= 800
    assert len({case.name for case in cases}) == len(cases)
    assert all(400 <= case.status < 500 for case in cases)


async def _send(api: Api, case: Case, job: str, over: str, master: Master) -> httpx.Response:
    headers = dict(case.headers)
    content = case.json
    if case.token == "master":
        headers |= master.headers
        if isinstance(content, dict) and not case.path.endswith("/lease"):
            content = {"epoch": master.epoch, **content}
    elif case.token not in ("admin", ""):
        headers["Authorization"] = f"Bearer {case.token}"
    path = case.path.replace("{job}", job).replace("{over}", over)
    if case.body is not None:
        headers["Content-Type"] = case.content_type
    encoded = {name: value.encode() for name, value in headers.items()}
    return await api.http.request(case.method, path, json=content, content=case.body, headers=encoded)


def _wrong(case: Case, answer: httpx.Response) -> str:
    if answer.status_code != case.status:
        return f"{answer.status_code} instead of {case.status}"
    if answer.headers["content-type"] != "application/problem+json":
        return "no problem"
    problem = answer.json()
    if problem["code"] != case.code:
        return f"{problem['code']} instead of {case.code}"
    if not problem["fix"]:
        return "no fix"
    if len(answer.content) > 50_000:
        return f"{len(answer.content)} bytes"
    fields = [one["field"] for one in problem.get("problems", ())]
    if case.field and not any(one.startswith(case.field) for one in fields):
        return f"{fields} instead of {case.field}"
    return ""


async def test_a_row_that_cannot_be_shown_does_not_break_a_list(api: Api) -> None:
    """Such rows came from before there were bounds, or from somebody's own SQL."""
    job_id, good = await api.submit(), await api.submit()
    deep: Any = 1
    for _ in range(400):
        deep = {"a": deep}
    for values in (
        {"spec": {"model_params": deep}},
        {"status": {"deep": deep}},
        {"error": {"message": deep}},
        {"error": {"message": 5, "fix": None}},
    ):
        async with api.services.database.transaction() as connection:
            await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(**values))
        for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{good}", "/scheduler/plan", "/cluster"):
            answer = await api.http.get(path)
            assert answer.status_code == 200, (values.keys(), path, answer.text[:300])
        listed = {one["id"]: one for one in (await api.http.get("/jobs")).json()["jobs"]}
        assert set(listed) == {job_id, good}
        assert listed[good]["spec"]["model_def"] == "model.custom_model"
        assert (await api.http.post(f"/jobs/{good}/cancel")).status_code == 202
