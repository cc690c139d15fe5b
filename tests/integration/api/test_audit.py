"""The log of changes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


async def entries(api: Api) -> list[dict[str, Any]]:
    async with api.services.database.transaction() as connection:
        rows = (await connection.execute(select(t.audit_log).order_by(t.audit_log.c.id))).mappings()
        return [dict(row) for row in rows]


async def test_every_change_of_a_job_is_written_down(api: Api) -> None:
    assert (await api.http.put("/namespaces/default", json={"data_roots": ["/data"]})).status_code == 200
    headers = await api.token("default", "submit", name="ada")
    spec = await api.spec()
    job_id = (await api.http.post("/jobs", json=spec, headers=headers)).json()["id"]
    assert (await api.job(job_id))["owner"] == "ada-owner"
    url = f"/jobs/{job_id}"
    assert (await api.http.patch(url, json={"priority": 7}, headers=headers)).status_code == 200
    for what in ("suspend", "resume", "cancel"):
        assert (await api.http.post(f"{url}/{what}", headers=headers)).status_code == 202
    assert (await api.http.delete(url)).status_code == 204
    assert (await api.http.put("/cluster/reservations/shop", json={"slots": 1})).status_code == 200
    assert (await api.http.delete("/cluster/reservations/shop")).status_code == 204
    found = await entries(api)
    named = [(one["actor"], one["token_id"], one["action"], one["target"]) for one in found]
    assert named == [
        ("admin", "admin", "namespace.change", "default"),
        ("admin", "admin", "bundle.upload", spec["model_bundle"]),
        ("ada-owner", "ada", "job.submit", job_id),
        ("ada-owner", "ada", "job.change", job_id),
        ("ada-owner", "ada", "job.suspend", job_id),
        ("ada-owner", "ada", "job.resume", job_id),
        ("ada-owner", "ada", "job.cancel", job_id),
        ("admin", "admin", "job.delete", job_id),
        ("admin", "admin", "reservation.put", "shop"),
        ("admin", "admin", "reservation.delete", "shop"),
    ]
    assert found[3]["detail"] == {"priority": 7}
    assert [one["namespace"] for one in found] == ["default"] * 8 + [None] * 2


async def test_what_changes_nothing_is_not_written_down(api: Api) -> None:
    job_id, _ = await api.running()
    assert (await api.http.post(f"/jobs/{job_id}/cancel")).status_code == 202
    before = len(await entries(api))
    assert (await api.http.patch(f"/jobs/{job_id}", json={"priority": 0})).status_code == 200
    assert (await api.http.patch(f"/jobs/{job_id}", json={"priority": 10**6})).status_code == 422
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 409
    assert (await api.http.post(f"/jobs/{job_id}/cancel", headers={"If-Match": '"99"'})).status_code == 412
    assert (await api.http.post("/jobs", json=await api.spec(name="Bad Name"))).status_code == 422
    await api.upload()
    assert (await api.http.post(f"/jobs/{job_id}/cancel")).status_code == 202  # asking twice is asking once
    assert len(await entries(api)) == before
