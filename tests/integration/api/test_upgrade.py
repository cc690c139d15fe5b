"""Databases of earlier releases, with what they held: after the upgrade the API serves all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from elasticdl_api.app import create_app
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.migrate import migrate, revisions
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web.auth import token_digest
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_runtime.database.engine import Database
from tests.integration.api.conftest import ADMIN, SECRET

pytestmark = pytest.mark.integration
STATES = ("QUEUED", "RUNNING", "SUSPENDED", "SUCCEEDED", "FAILED", "CANCELLED")
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
SHA = "ab" * 32
EARLIER = revisions()


def rows() -> dict[str, list[dict[str, Any]]]:
    """What a cluster of any version held; columns that a version did not have are left out when they are written."""
    spec = {"model_def": "m.f", "model_bundle": f"sha256:{SHA}", "training_data": "/data"}
    jobs = [
        {
            "id": f"{state.lower()}-aaaaaa",
            "namespace": "team-a" if state == "SUSPENDED" else "default",
            "name": state.lower(),
            "type": "training",
            "spec": JobSpec.from_mapping({**spec, "name": state.lower()}).to_mapping(),
            "state": state,
            "reason": f"it is {state}",
            "status": {"progress": {"records_done": 7, "records_total": 10}},
            "error": {"message": "x", "fix": "", "traceback": ""} if state == "FAILED" else None,
            "master_incarnation": 0 if state == "QUEUED" else 1,
        }
        for state in STATES
    ]
    ids = [job["id"] for job in jobs]
    job = "succeeded-aaaaaa"
    return {
        "jobs": jobs,
        "events": [{"job_id": one, "kind": "state", "message": "x", "detail": {"to": "?"}} for one in ids],
        "job_plans": [{"job_id": one, "plan": {"shards": []}} for one in ids],
        "done_marks": [{"job_id": one, "task": "t:0:0:0:5"} for one in ids],
        "checkpoints": [{"job_id": one, "version": 5, "manifest": {"version": 5, "files": []}} for one in ids],
        "evaluations": [
            {"job_id": job, "number": 1, "model_version": 5, "training_epoch": 0, "metrics": {"accuracy": 0.5}}
        ],
        "losses": [{"job_id": job, "model_version": 5, "loss": 0.25}],
        "artifacts": [{"job_id": job, "name": "model.keras", "path": "model.keras", "size": 3, "sha256": SHA}],
        "bundles": [{"namespace": "team-a", "digest": f"sha256:{SHA}", "size": 3}],
        "idempotency_keys": [{"namespace": "default", "key": "k", "body_hash": "h", "job_id": job}],
        "plans": [{"epoch": 1, "policy": "marginal", "input_hash": "h", "snapshot": {}, "plan": {}}],
    }


async def fill(database: Database) -> None:
    async with database.transaction() as connection:
        for name, found in rows().items():
            columns = "SELECT column_name FROM information_schema.columns WHERE table_name = :name"
            known = set((await connection.execute(text(columns), {"name": name})).scalars())
            await connection.execute(text(f"ALTER TABLE {name} DISABLE TRIGGER USER"))
            for row in found:
                given = {key: value for key, value in row.items() if key in known}
                values = {key: json.dumps(v) if isinstance(v, dict | list) else v for key, v in given.items()}
                places = ", ".join(
                    f"CAST(:{key} AS jsonb)" if isinstance(given[key], dict | list) else f":{key}" for key in given
                )
                await connection.execute(text(f"INSERT INTO {name} ({', '.join(given)}) VALUES ({places})"), values)
            await connection.execute(text(f"ALTER TABLE {name} ENABLE TRIGGER USER"))
        await connection.execute(text("ALTER TABLE jobs DISABLE TRIGGER USER"))
        await connection.execute(text("UPDATE jobs SET finished_at = now() WHERE state = ANY(:s)"), {"s": [*ENDED]})
        await connection.execute(text("ALTER TABLE jobs ENABLE TRIGGER USER"))
        await connection.execute(text("INSERT INTO namespaces (name) VALUES ('team-a')"))
        insert = "INSERT INTO tokens (id, namespace, scope, sha256) VALUES ('t1', 'team-a', 'submit', :sha)"
        await connection.execute(text(insert), {"sha": token_digest("old-token-of-team-a")})


@pytest.mark.parametrize("revision", EARLIER)
async def test_what_an_earlier_version_held_is_served(revision: str, empty_database_url: str, tmp_path: Path) -> None:
    database = Database(empty_database_url)
    try:
        await migrate(database, revision)
        await fill(database)
        await migrate(database)
        await migrate(database)
        (tmp_path / "token").write_text(ADMIN)
        settings = ApiSettings(database_url=empty_database_url, cluster_secret=SECRET, data_dir=tmp_path)
        app = create_app(Services(settings, database, None, Wakeups(database)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
            await look(http)
    finally:
        await database.close()


async def look(http: httpx.AsyncClient) -> None:
    admin = {"Authorization": f"Bearer {ADMIN}"}
    tenant = {"Authorization": "Bearer old-token-of-team-a"}
    listed = (await http.get("/jobs", headers=admin)).json()["jobs"]
    assert {job["id"]: job["state"] for job in listed} == {f"{state.lower()}-aaaaaa": state for state in STATES}
    for job in listed:
        seen = (await http.get(f"/jobs/{job['id']}", headers=admin)).json()
        assert (seen["status"]["progress"]["records_done"], seen["reason"]) == (7, f"it is {job['state']}")
        assert [one["version"] for one in seen["checkpoints"]] == [5]
        assert [one["kind"] for one in (await http.get(f"/jobs/{job['id']}/events", headers=admin)).json()] == [
            "state"
        ]
        for path in ("/explain", "/metrics", "/artifacts"):
            assert (await http.get(f"/jobs/{job['id']}{path}", headers=admin)).status_code == 200, (job["id"], path)
    for path in ("/cluster", "/scheduler/decisions", "/namespaces", "/tokens"):
        assert (await http.get(path, headers=admin)).status_code == 200, path
    mine = (await http.get("/jobs", headers=tenant)).json()["jobs"]
    assert [job["id"] for job in mine] == ["suspended-aaaaaa"]
    resumed = await http.post("/jobs/suspended-aaaaaa/resume", headers=tenant)
    assert (resumed.status_code, resumed.json()["state"]) == (202, "QUEUED")
    assert (await http.post("/jobs/queued-aaaaaa/cancel", headers=admin)).json()["state"] == "CANCELLED"
    assert (await http.delete("/jobs/succeeded-aaaaaa", headers=admin)).status_code == 204


@pytest.mark.parametrize(
    ("revision", "message", "fix"),
    [
        ("9999", r"a later version's .* it is at 9999", "elasticdl restore"),
        ("0012", "at 0012, of before the first release", "another database"),
    ],
)
async def test_a_database_of_an_unknown_version_is_refused_with_the_way_out(
    database: Database, revision: str, message: str, fix: str
) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    with pytest.raises(InvalidInputError, match=message) as refused:
        await migrate(database)
    assert fix in refused.value.fix
