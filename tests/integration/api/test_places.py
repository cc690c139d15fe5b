"""Paths of jobs at the door: what a namespace's token may name, and what every job may not."""

from __future__ import annotations

import hashlib
import io
import itertools
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from elasticdl_api.settings import ApiSettings
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.object_store import ObjectStore
from tests.fakes.s3_server import serving_s3
from tests.integration.api.conftest import MODULE, Api

pytestmark = pytest.mark.integration
CANARY = "canary-51b0 is no Python ("


@pytest.fixture
def settings(settings: ApiSettings, tmp_path: Path) -> ApiSettings:
    roots = f"{tmp_path.resolve()}/disk/shared, s3://public/data"
    return settings.model_copy(update={"data_roots": roots})


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Folders of the cluster, of two teams, and of nobody."""
    root = tmp_path.resolve() / "disk"
    for name in ("shared", "a", "b", "nobody"):
        (root / name).mkdir(parents=True)
        (root / name / "model.py").write_text(MODULE)
    (root / "nobody" / "secret.py").write_text(CANARY)
    return root


async def give_roots(api: Api, namespace: str, *roots: Path | str) -> None:
    async with api.services.database.transaction() as connection:
        names = t.namespaces.c.name == namespace
        await connection.execute(update(t.namespaces).where(names).values(data_roots=[str(root) for root in roots]))


async def submit(api: Api, headers: dict[str, str], **changes: Any) -> tuple[int, Any]:
    spec = {"name": "digits", "model_def": "model.custom_model", "training_data": "/data", **changes}
    response = await api.http.post("/jobs", json=spec, headers=headers)
    return response.status_code, response.json()


async def test_a_namespace_reads_and_writes_its_own_roots_only(api: Api, places: Path) -> None:
    token = await api.token("team-a", "submit")
    await give_roots(api, "team-a", places / "a", "s3://team-a")
    good = {"model_zoo": str(places / "a"), "training_data": f"{places}/shared/x,{places}/a/*.csv,s3://public/data/x"}
    status, job = await submit(api, token, **good, output=f"{places}/a/out", checkpoint_dir=f"{places}/a/c")
    assert status == 201, job
    bad: list[tuple[str, str]] = [
        *((field, f"{places}/b/x") for field in ("model_zoo", "output", "checkpoint_dir", "checkpoint_dir_for_init")),
        *((field, f"{places}/b/*") for field in ("training_data", "validation_data", "prediction_data")),
        ("output", f"{places}/shared/out"),
        ("checkpoint_dir", f"{places}/shared"),
        ("model_zoo", "/"),
        ("model_zoo", "/etc"),
        ("training_data", "/"),
        ("training_data", str(api.services.settings.data_dir / "token")),
        ("training_data", f"{places}/a/x,{places}/b/x"),
        ("training_data", f"file://{places}/b/x"),
        ("training_data", f"simplecache::file://{places}/a/x"),
    ]
    for field, place in bad:
        status, problem = await submit(api, token, **{**good, field: place})
        assert (status, problem["code"]) == (422, "invalid_spec"), (field, place, problem)
        assert [one["field"] for one in problem["problems"]] == [field], (field, place)
    assert (await submit(api, {}, model_zoo=str(places / "b"), output=f"{places}/b/out"))[0] == 201


async def test_a_store_for_which_there_is_no_package_is_refused_at_submission(api: Api, places: Path) -> None:
    pytest.importorskip("fsspec")
    for field in ("output", "checkpoint_dir"):
        status, problem = await submit(api, {}, model_zoo=str(places / "a"), **{field: "abfs://container/x"})
        assert status == 422, problem
        assert "abfs://container/x cannot be opened" in problem["detail"], problem
        assert "adlfs" in problem["fix"]


async def test_a_store_that_cannot_be_written_is_refused_at_submission(api: Api, places: Path) -> None:
    pytest.importorskip("s3fs", reason="needs the extra s3-dev")
    pytest.importorskip("moto", reason="needs the extra s3-dev")
    with serving_s3("jobs") as server:
        status, problem = await submit(api, {}, model_zoo=str(places / "a"), output="s3://nobody/out")
        assert status == 422, problem
        assert "make the bucket" in problem["fix"]
        with server.spoiling(1.0, "PUT", kinds=("refused",)):
            status, problem = await submit(api, {}, model_zoo=str(places / "a"), output="s3://jobs/out")
        assert status == 422, problem
        status, _ = await submit(api, {}, model_zoo=str(places / "a"), output="s3://jobs/out")
        assert status == 201
        assert not ObjectStore("s3://jobs").sizes()


async def test_artifacts_in_a_store_are_fetched_and_compared(api: Api) -> None:
    pytest.importorskip("s3fs", reason="needs the extra s3-dev")
    pytest.importorskip("moto", reason="needs the extra s3-dev")
    with serving_s3("jobs"):
        job_id, master = await api.running(output="s3://jobs/out")
        store, content = ObjectStore("s3://jobs/out"), b"content" * 100_000
        report = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in ("model.keras", "saved/a", "saved/b"):
            store.put(name, content)
            given = {"name": name, "path": f"s3://jobs/out/{name}", **report}
            assert (await master.post("/artifacts", **given)).status_code == 204
        for path in ("s3://jobs/x", "s3://jobs/out/../x", "s3://jobs/outside/x"):
            assert (await master.post("/artifacts", name="x", path=path, **report)).status_code == 422, path
        found = await api.http.get(f"/jobs/{job_id}/artifacts/model.keras")
        assert (found.status_code, found.content) == (200, content)
        archive = await api.http.get(f"/jobs/{job_id}/artifacts/saved")
        with zipfile.ZipFile(io.BytesIO(archive.content)) as zipped:
            assert {name: zipped.read(name) for name in zipped.namelist()} == {"a": content, "b": content}
        assert (await api.job(job_id))["spec"]["output"] == "s3://jobs/out"
        store.put("model.keras", b"other")
        assert (await api.http.get(f"/jobs/{job_id}/artifacts/model.keras")).status_code == 409
        store.delete(["model.keras"])
        assert (await api.http.get(f"/jobs/{job_id}/artifacts/model.keras")).status_code == 404


async def test_links_are_followed_before_they_are_judged(api: Api, places: Path) -> None:
    token = await api.token("team-a", "submit")
    await give_roots(api, "team-a", places / "a")
    for name, target in (("zoo", "nobody"), ("out", "b"), ("secret.py", "nobody/secret.py")):
        (places / "a" / name).symlink_to(places / target)
    good = {"model_zoo": str(places / "a"), "training_data": str(places / "a")}
    for changes in ({"model_zoo": f"{places}/a/zoo"}, {"output": f"{places}/a/out/new"}):
        status, problem = await submit(api, token, **{**good, **changes})
        assert status == 422
        assert [one["field"] for one in problem["problems"]] == list(changes)
    status, problem = await submit(api, token, **good | {"model_def": "secret.custom_model"})
    assert status == 422
    assert "canary" not in str(problem)


async def test_own_jobs_may_be_read_and_others_not(api: Api, places: Path) -> None:
    token = await api.token("team-a", "submit")
    other = await api.token("team-b", "submit")
    await give_roots(api, "team-a", places / "a")
    await give_roots(api, "team-b", places / "b", "/")
    _, first = await submit(api, token, model_zoo=str(places / "a"), training_data=f"{places}/a/x")
    jobs = api.services.settings.data_dir / "jobs"
    asked = {"training_data": f"{places}/shared/x"}
    (places / "cluster").symlink_to(api.services.settings.data_dir)  # as whoever set it up calls it
    named = (jobs, places / "cluster" / "jobs")
    for folder, above in itertools.product(("checkpoints", "artifacts/model"), named):
        start = {"checkpoint_dir_for_init": str(above / first["id"] / folder)}
        assert (await submit(api, token, model_zoo=str(places / "a"), **asked, **start))[0] == 201
        assert (await submit(api, other, model_zoo=str(places / "b"), **asked, **start))[0] == 422
    for place in (jobs / first["id"], jobs / first["id"] / "logs", jobs, jobs / "none-abc123" / "checkpoints"):
        status, _ = await submit(api, token, model_zoo=str(places / "a"), **asked, checkpoint_dir_for_init=str(place))
        assert status == 422, place
    for place in (jobs / first["id"] / "artifacts", api.services.settings.data_dir / "x", "/etc/elasticdl-test"):
        status, _ = await submit(api, token, model_zoo=str(places / "a"), **asked, output=str(place))
        assert status == 422, place


async def test_an_output_that_is_no_absolute_path_is_refused_for_everybody(api: Api) -> None:
    for place in ("out", "~/out", "../out", "/a/../b", "s3://bucket/*", "file:///out", "weird://x", "//host/x"):
        for field in ("output", "checkpoint_dir"):
            response = await api.http.post("/jobs", json=await api.spec(**{field: place}))
            assert response.status_code == 422, (field, place)
            assert [one["field"] for one in response.json()["problems"]] == [field]


async def test_a_master_is_told_what_its_job_may_touch(api: Api, places: Path) -> None:
    token = await api.token("team-a", "submit")
    await give_roots(api, "team-a", places / "a")
    _, job = await submit(api, token, model_zoo=str(places / "a"), training_data=f"{places}/a/x")
    await api.admit(job["id"])
    reach = (await api.master(job["id"]).lease())["reach"]
    own = str(api.services.settings.data_dir.resolve() / "jobs" / job["id"])
    assert reach["write"] == [str(places / "a"), own]
    assert str(places / "shared") in reach["read"]
    free = await api.submit()
    await api.admit(free)
    assert (await api.master(free).lease())["reach"] is None


async def test_an_output_that_became_a_link_is_not_served(api: Api, places: Path) -> None:
    token = await api.token("team-a", "submit")
    await give_roots(api, "team-a", places / "a")
    (places / "a" / "out").mkdir()
    spec = {"model_zoo": str(places / "a"), "training_data": f"{places}/a/x", "output": f"{places}/a/out"}
    _, job = await submit(api, token, **spec)
    await api.admit(job["id"])
    master = api.master(job["id"])
    await master.lease()
    secret = (places / "nobody" / "secret.py").read_bytes()
    report = {"name": "secret.py", "path": f"{places}/a/out/secret.py", "size": len(secret)}
    digest = hashlib.sha256(secret).hexdigest()
    assert (await master.post("/artifacts", **report, sha256=digest)).status_code == 204
    (places / "a" / "out").rmdir()
    (places / "a" / "out").symlink_to(places / "nobody")
    assert (await api.http.get(f"/jobs/{job['id']}/artifacts/secret.py", headers=token)).status_code == 404


@pytest.mark.parametrize("roots", ["data", "~/data", "/data/*", "s3://", "/a/../b", "local:///x"])
def test_a_data_root_is_an_absolute_folder_or_a_store(settings: ApiSettings, roots: str) -> None:
    given = {"database_url": settings.database_url, "cluster_secret": settings.cluster_secret}
    with pytest.raises((InvalidInputError, ValueError), match="data root"):
        ApiSettings(**given, data_dir=settings.data_dir, data_roots=roots)
