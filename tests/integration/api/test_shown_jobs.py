"""Answers that Postgres writes are those that the schemas describe, to the last field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import insert, update

from elasticdl_api.schemas import jobs as schemas
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


async def _full_job(api: Api) -> str:
    """A job of which every shown field has something to show."""
    job_id = await api.submit(labels={"team": 'a "quoted" one', "b": "ü\u2028"})
    status = {"progress": {"records_done": 3}, "rate": 1e-7, "text": 'back\\slash "and" ü'}
    async with api.services.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(status=status))
        for table, rows in (
            (t.checkpoints, [{"version": number, "manifest": {"files": [number]}} for number in (20, 3)]),
            (
                t.evaluations,
                [
                    {"number": number, "model_version": 4, "training_epoch": 1, "metrics": {"a": 0.25}}
                    for number in (2, 1)
                ],
            ),
            (
                t.artifacts,
                [{"name": name, "path": name, "size": 7, "sha256": "ab"} for name in ("b", "B/ü", "a")],
            ),
            (
                t.losses,
                [
                    {"model_version": number, "loss": loss}
                    for number, loss in enumerate((0.1, 1e-300, float("nan"), float("inf"), float("-inf"), 12.5))
                ],
            ),
        ):
            await connection.execute(insert(table), [{"job_id": job_id, **row} for row in rows])
    return job_id


def _same(model: type[Any], body: bytes) -> Any:
    """What a model makes of an answer, which must be the answer."""
    given = json.loads(body)
    assert json.loads(model.model_validate_json(body).model_dump_json()) == given
    return given


async def test_a_job_is_shown_as_its_schema_says(api: Api) -> None:
    job_id = await _full_job(api)
    job = _same(schemas.JobResponse, (await api.http.get(f"/jobs/{job_id}")).content)
    assert job["spec"]["labels"] == {"team": 'a "quoted" one', "b": "ü\u2028"}
    assert [one["version"] for one in job["checkpoints"]] == [3, 20]
    assert [one["number"] for one in job["evaluations"]] == [1, 2]
    assert [one["url"] for one in job["artifacts"]] == [f"/jobs/{job_id}/artifacts/{n}" for n in ("B/ü", "a", "b")]
    listed = _same(schemas.JobPageResponse, (await api.http.get("/jobs?total=true")).content)
    assert listed["total"] == 1
    outputs = ("checkpoints", "evaluations", "artifacts")
    assert listed["jobs"] == [{name: value for name, value in job.items() if name not in outputs}]
    for name, model in zip(
        outputs,
        (schemas.CheckpointPageResponse, schemas.EvaluationPageResponse, schemas.ArtifactPageResponse),
        strict=True,
    ):
        page = _same(model, (await api.http.get(f"/v1/jobs/{job_id}/{name}?limit=2")).content)
        shown = page[name]
        while page["next_page_token"]:
            following = f"/v1/jobs/{job_id}/{name}?limit=2&page_token={page['next_page_token']}"
            page = _same(model, (await api.http.get(following)).content)
            shown += page[name]
        assert shown == job[name]


async def test_losses_that_are_no_numbers_are_spelled(api: Api) -> None:
    job_id = await _full_job(api)
    found = _same(schemas.MetricsResponse, (await api.http.get(f"/jobs/{job_id}/metrics?limit=5")).content)
    assert [one["loss"] for one in found["losses"]] == [1e-300, "NaN", "Infinity", "-Infinity", 12.5]
    assert len(found["evaluations"]) == 2


async def test_events_are_shown_as_their_schema_says(api: Api) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    page = _same(schemas.EventPageResponse, (await api.http.get(f"/v1/jobs/{job_id}/events")).content)
    assert [one["kind"] for one in page["events"]] == ["state", "state"]
    assert (await api.http.get("/v1/jobs/nobody-aaaaaa/events")).status_code == 404


@pytest.mark.parametrize("error", [{"message": "it broke", "fix": 7, "more": "x"}, {}, ["no object"], "text"])
async def test_any_error_of_a_row_can_be_shown(api: Api, error: Any) -> None:
    job_id = await api.submit()
    async with api.services.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(error=error))
    job = _same(schemas.JobResponse, (await api.http.get(f"/jobs/{job_id}")).content)
    if isinstance(error, dict):
        assert job["error"] == {"message": error.get("message", ""), "fix": "", "traceback": ""}
    else:
        assert job["error"] is None


async def test_the_ledger_of_a_job_is_what_its_master_reported(api: Api) -> None:
    job_id, master = await api.running()
    told = {"epoch": 1, "epochs": 2, "planned": 100, "done": 40, "leased": 30, "skipped": {"0": 7}}
    told |= {"tasks": 10, "tasks_done": 4, "tasks_leased": 3}
    empty = (await api.http.get(f"/jobs/{job_id}/ledger")).json()
    assert (empty["epochs"], empty["total"]["planned"], empty["audit"]) == ([], 0, None)
    await master.heartbeat({"progress": {}, "ledger": told})
    found = (await api.http.get(f"/jobs/{job_id}/ledger")).json()
    assert [one["committed"] for one in found["epochs"]] == [93, 40]
    assert found["total"] == {"planned": 200, "committed": 133, "leased": 30, "todo": 30, "skipped": 7}
    await master.post("/state", to="FAILED", reason="boom")
    over = (await api.http.get(f"/jobs/{job_id}/ledger")).json()
    assert (over["total"]["leased"], over["total"]["todo"]) == (0, 60)
    assert (await api.http.get("/jobs/none-such/ledger")).status_code == 404
