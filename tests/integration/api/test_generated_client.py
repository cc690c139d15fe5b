"""A client that a public generator makes from the API's description, at work."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from elasticdl_runtime.bundles import digest_of
from tests.fakes import public_tools
from tests.integration.api.conftest import ADMIN, MODULE, make_zip
from tests.integration.api.test_process import _environment, _serving

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]
SCRIPT = """
import io, json, sys
from made import AuthenticatedClient, models
from made.api.bundles import put_bundles_by_digest
from made.api.jobs import (
    delete_jobs_by_job_id, get_jobs, get_jobs_by_job_id, patch_jobs_by_job_id, post_jobs, post_jobs_by_job_id_cancel,
)
from made.api.scheduler import post_scheduler_what_if
from made.api.access import get_whoami, post_tokens
from made.types import File

address, token, digest = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
put = put_bundles_by_digest.sync_detailed(digest, client=client, body=File(io.BytesIO(open("code.zip", "rb").read())))
assert put.status_code in (200, 201), put
labels = models.JobSpecLabels.from_dict({"team": "ä"})
spec = models.JobSpec(
    name="made", model_def="model.custom_model", model_bundle=digest, training_data="/data", max_workers=5,
    priority=7, min_workers=2, labels=labels,
)
job = post_jobs.sync(client=client, body=spec, idempotency_key="once")
assert isinstance(job, models.JobResponse), job
assert post_jobs.sync(client=client, body=spec, idempotency_key="once").id == job.id
changed = patch_jobs_by_job_id.sync(job.id, client=client, body=models.JobChanges(max_workers=4))
assert (changed.max_workers, changed.min_workers, changed.priority) == (4, 2, 7), changed
wrong = patch_jobs_by_job_id.sync(job.id, client=client, body=models.JobChanges(max_workers=1))
assert isinstance(wrong, models.ProblemDetails) and wrong.problems[0].field == "max_workers", wrong
assert [one.id for one in get_jobs.sync(client=client, label=["team=ä"]).jobs] == [job.id]
shown = get_jobs_by_job_id.sync(job.id, client=client)
assert shown.spec.to_dict()["labels"] == {"team": "ä"}
asked = models.WhatIf(add=[models.HypotheticalJob(max_workers=2)])
assert isinstance(post_scheduler_what_if.sync(client=client, body=asked), models.WhatIfAnswer)
made = post_tokens.sync(client=client, body=models.TokenRequest(name="made", namespace="default"))
assert get_whoami.sync(client=AuthenticatedClient(base_url=address, token=made.token)).namespace == "default"
assert post_jobs_by_job_id_cancel.sync(job.id, client=client).desired == "cancel"
assert delete_jobs_by_job_id.sync_detailed(job.id, client=client).status_code == 204
assert isinstance(get_jobs_by_job_id.sync(job.id, client=client), models.ProblemDetails)
print(json.dumps(shown.spec.to_dict()))
"""


async def test_a_client_that_a_public_generator_makes_does_what_ours_does(database_url: str, tmp_path: Path) -> None:
    environment = await asyncio.to_thread(public_tools.install, tmp_path / "tools", "openapi-python-client>=0.29")
    (tmp_path / "code.zip").write_bytes(code := make_zip({"model.py": MODULE}))
    (tmp_path / "use.py").write_text(SCRIPT)
    async with _serving(_environment(database_url, tmp_path / "data")) as (_process, http):
        address = str(http.base_url).rstrip("/")
        options = ("--url", f"{address}/openapi.json", "--output-path", "made", "--meta", "none")
        generate = ("-m", "openapi_python_client", "generate", *options)
        said = await asyncio.to_thread(public_tools.run, environment, tmp_path, *generate)
        assert "Endpoint will not be generated" not in said
        described = (await http.get("/openapi.json")).json()
        made = [path for path in (tmp_path / "made/api").glob("*/*.py") if path.name != "__init__.py"]
        assert len(made) == sum(len(methods) for methods in described["paths"].values())
        use = ("use.py", address, ADMIN, digest := digest_of(code))
        spec = json.loads(await asyncio.to_thread(public_tools.run, environment, tmp_path, *use))
        by_hand = {
            "name": "made",
            "model_def": "model.custom_model",
            "model_bundle": digest,
            "training_data": "/data",
        }
        bounds = {"min_workers": 2, "max_workers": 4, "priority": 7, "labels": {"team": "ä"}}
        answer = await http.post("/jobs", json={**by_hand, **bounds}, headers={"Authorization": f"Bearer {ADMIN}"})
    assert spec == answer.json()["spec"]
