"""Series of jobs and of the cluster: what masters and the api's loop wrote, bounded and shown as asked for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from elasticdl_api.background.cluster_history import ClusterHistory
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from elasticdl_core.series import SeriesRecorder
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api, Master

pytestmark = pytest.mark.integration
BEGIN = 1_700_000_000 // 7200 * 7200


async def report(master: Master, begin: int, seconds: int, step: int = 1, **extra: float) -> None:
    """What a master sends that samples its job for so long."""
    recorder = SeriesRecorder()
    for now in range(begin, begin + seconds, step):
        recorder.record(now, {"samples_per_second": 100.0, "model_version": float(now - BEGIN), **extra})
    rows = [vars(row) for row in recorder.take(everything=True)]
    for place in range(0, len(rows), 500):
        response = await master.post("/heartbeat", status={}, losses=[], series=rows[place : place + 500])
        assert response.status_code == 200, response.text


async def read(api: Api, path: str, **params: Any) -> tuple[dict[str, Any], dict[str, list[list[float]]]]:
    response = await api.http.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json(), {one["name"]: one["points"] for one in response.json()["series"]}


async def test_a_job_that_has_none_has_no_series(api: Api) -> None:
    job_id = await api.submit()
    body, found = await read(api, f"/jobs/{job_id}/series")
    assert (found, body["by"]) == ({}, "time")
    assert (await api.http.get("/jobs/none-such/series")).status_code == 404


async def test_series_outlive_masters_and_add_up(api: Api) -> None:
    job_id, first = await api.running()
    await report(first, BEGIN, 33)
    second = api.master(job_id, 2)
    await second.lease()
    await report(second, BEGIN + 33, 27)
    body, found = await read(api, f"/jobs/{job_id}/series")
    assert set(found) == {"samples_per_second"}
    speeds = found["samples_per_second"]
    assert len(speeds) == 12
    assert {tuple(point[1:]) for point in speeds} == {(100.0, 100.0, 100.0)}
    assert (body["from"], body["to"], body["resolution_s"]) == (BEGIN, BEGIN + 60, 5)
    _, versions = await read(api, f"/jobs/{job_id}/series", by="version", names="samples_per_second")
    assert [point[0] for point in versions["samples_per_second"]][:2] == [2.0, 7.0]


async def test_losses_and_evaluations_by_version_and_by_time(api: Api) -> None:
    job_id, master = await api.running()
    await report(master, BEGIN, 100)
    losses = [{"model_version": v, "loss": 100.0 - v, "at": BEGIN + v} for v in range(100)]
    assert (await master.heartbeat(losses=losses)).status_code == 200
    await master.post("/evaluations", number=0, model_version=50, training_epoch=1, metrics={"auc": 0.75, "f": "NaN"})
    for by, begin in (("version", 0), ("time", BEGIN)):
        _, found = await read(api, f"/jobs/{job_id}/series", by=by, names="loss", points=10)
        assert 9 <= len(found["loss"]) <= 11
        x, mean, least, largest = found["loss"][0]
        assert (x - begin, mean, least, largest) == pytest.approx((4.5, 95.5, 91.0, 100.0), abs=0.6)
    _, found = await read(api, f"/jobs/{job_id}/series", by="version")
    assert found["evaluation.auc"] == [[50.0, 0.75, 0.75, 0.75]]
    assert found["evaluation.f"][0][1] == "NaN"
    _, zoomed = await read(api, f"/jobs/{job_id}/series", by="version", names="loss", since=20, until=29)
    assert [point[0] for point in zoomed["loss"]] == [float(v) for v in range(20, 30)]


async def test_rows_and_points_stay_few(api: Api) -> None:
    job_id, master = await api.running()
    await report(master, BEGIN, 5 * 86_400, step=60, extra=1.0)
    async with api.services.database.transaction() as connection:
        rows = (await connection.execute(select(func.count()).select_from(t.job_series))).scalar_one()
    assert rows <= 40 + 1441 + 5 * 144 + 5 * 12
    for points in (10, 300, 2000):
        _, found = await read(api, f"/jobs/{job_id}/series", points=points)
        assert len(found["extra"]) <= points + 2
    last_hour = {"since": BEGIN + 5 * 86_400 - 3600, "until": BEGIN + 5 * 86_400}
    body, found = await read(api, f"/jobs/{job_id}/series", **last_hour)
    assert len(found["extra"]) >= 59
    assert body["from"] == last_hour["since"]


async def test_series_go_with_their_job(api: Api) -> None:
    job_id, master = await api.running()
    await report(master, BEGIN, 10)
    await master.post("/state", to="FAILED", reason="boom")
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 204
    async with api.services.database.transaction() as connection:
        for table in (t.job_series, t.processes):
            assert (await connection.execute(select(func.count()).select_from(table))).scalar_one() == 0


@pytest.mark.parametrize(
    "params",
    [
        {"by": "epoch"},
        {"points": 0},
        {"points": 5000},
        {"since": "yesterday"},
        {"since": -1},
        {"since": "inf"},
        {"since": 20, "until": 10},
        {"names": ",".join(f"n{i}" for i in range(65))},
        {"name": "loss"},
    ],
)
async def test_what_cannot_be_shown_is_refused(api: Api, params: dict[str, Any]) -> None:
    job_id = await api.submit()
    response = await api.http.get(f"/jobs/{job_id}/series", params=params)
    assert response.status_code == 422, response.text
    assert response.json()["fix"]


async def test_the_api_writes_the_clusters_series_one_replica_at_a_time(api: Api) -> None:
    mine, other = await api.submit(), await api.submit()
    for job_id, workers in ((mine, 2), (other, 1)):
        for index in range(workers):
            await api.launcher.launch(ProcessSpec(ProcessId(job_id, Role.WORKER, index, 0), slots=1))
    clock = [float(BEGIN)]
    services = api.services
    replicas = [ClusterHistory(services.series, services.jobs, api.launcher, lambda: clock[0]) for _ in range(2)]
    for replica in replicas:
        await replica.step()
    clock[0] += 61.0
    async with services.database.transaction() as connection:
        await connection.execute(t.leadership.update().values(expires_at=func.to_timestamp(0)))
    await replicas[0].step()
    body, found = await read(api, "/cluster/series")
    assert found["queue"][0][1] == 2.0
    assert found["slots.used"][0][1] == 3.0
    assert found[f"job.{mine}"][0][1] == 2.0
    assert len(found["queue"]) == 1, "one replica sampled"
    assert {one["unit"] for one in body["series"]} == {"slots", "jobs"}


async def test_a_namespace_sees_other_jobs_only_in_sum(api: Api) -> None:
    theirs = await api.submit()
    await api.launcher.launch(ProcessSpec(ProcessId(theirs, Role.WORKER, 0, 0), slots=1))
    history = ClusterHistory(api.services.series, api.services.jobs, api.launcher, lambda: float(BEGIN))
    await history.step()
    await api.services.series.write_cluster(history._recorder.take(everything=True), 1)
    reader = await api.token("team", "read")
    response = await api.http.get("/cluster/series", headers=reader)
    names = {one["name"] for one in response.json()["series"]}
    assert "job.other" in names
    assert not [name for name in names if theirs in name]
