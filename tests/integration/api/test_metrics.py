"""One target for Prometheus: every process, told apart, whatever some of them do, and each reader's own only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, update

from elasticdl_api.scrape import collection
from elasticdl_api.scrape.families import FAMILIES
from elasticdl_core.errors import UnavailableError
from elasticdl_core.meters import METERS
from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, ProcessId, ProcessSpec, Role
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert isinstance(family, Metric)
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for one in family.samples:
            key = (one.name, frozenset(one.labels.items()))
            assert key not in found, f"{one} is there twice"
            found[key] = one.value
    return found


def of(found: Samples, name: str, **labels: str) -> list[float]:
    return [value for (known, its), value in found.items() if known == name and labels.items() <= dict(its).items()]


async def launched(api: Api, process: ProcessId, *values: Sequence[object]) -> None:
    await api.launcher.launch(ProcessSpec(process))
    if values:
        answer = {"answers": 1, "values": [list(one) for one in values]}
        api.launcher.answers[process, Inquiry.METRICS] = json.dumps(answer).encode()


async def test_every_process_answers_with_labels_that_say_which_it_is(api: Api) -> None:
    job_id, _ = await api.running(ps_memory_mib=512)
    await launched(api, ProcessId(job_id, Role.MASTER, 0, 1), ("elasticdl_job_records_done", "", 40))
    await launched(api, ProcessId(job_id, Role.PS, 1, 0), ("elasticdl_process_resident_memory_bytes", "", 1 << 20))
    await launched(api, ProcessId(job_id, Role.WORKER, 0, 0), ("elasticdl_worker_records_total", "", 1))
    await launched(
        api,
        ProcessId(job_id, Role.WORKER, 2, 1),
        ("elasticdl_worker_step_seconds", "pull", 0.25),
        ("made_up", "", 1),
    )
    await launched(api, ProcessId(job_id, Role.WORKER, 3, 0))  # it hangs

    response = await api.http.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=")
    found = samples(response.text)
    where = {"job": job_id, "namespace": "default"}
    assert of(found, "elasticdl_job_records_done", **where, role="master", index="0") == [40]
    assert of(found, "elasticdl_process_memory_limit_bytes", **where, role="ps", index="1") == [512 << 20]
    assert of(found, "elasticdl_worker_step_seconds", **where, role="worker", index="2", part="pull") == [0.25]
    assert sorted(of(found, "elasticdl_process_up", **where)) == [0, 1, 1, 1, 1]
    assert of(found, "elasticdl_process_up", **where, role="worker", index="3") == [0]
    assert of(found, "elasticdl_scrape_processes", outcome="answered") == [4]
    assert of(found, "elasticdl_scrape_processes", outcome="silent") == [1]
    assert of(found, "elasticdl_job_state", **where) == [1]
    assert of(found, "elasticdl_process_cpu_seconds_total", role="api", job="")[0] > 0
    assert of(found, "elasticdl_agent_launches_total", role="agent") == [5]
    assert of(found, "elasticdl_agent_up") == [1]
    names = {name for name, _ in found}
    assert "made_up" not in response.text
    ours = {name for name in names if not name.startswith("elasticdl_api_")}
    assert ours <= {*FAMILIES, *METERS}
    assert {name for name in names if name.startswith("elasticdl_api_")}


async def test_openmetrics_is_given_to_who_asks_for_it(api: Api) -> None:
    await api.running()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = await api.http.get("/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(response.text)} >= {"elasticdl_jobs", "elasticdl_job_state"}


async def test_a_namespace_sees_its_own_jobs_and_no_component_of_the_cluster(api: Api) -> None:
    others, _ = await api.running()
    await launched(api, ProcessId(others, Role.WORKER, 0, 0), ("elasticdl_worker_records_total", "", 1))
    reader = await api.token("team-b", "read")

    response = await api.http.get("/metrics", headers=reader)

    assert response.status_code == 200
    found = samples(response.text)
    assert others not in response.text
    assert of(found, "elasticdl_jobs", state="RUNNING") == [0]
    assert of(found, "elasticdl_process_up") == []
    assert of(found, "elasticdl_scrape_processes") == [0, 0]
    assert of(found, "elasticdl_process_cpu_seconds_total") == []
    assert not any(name.startswith("elasticdl_api_") for name, _ in found)
    assert (await api.http.get("/metrics", headers={"Authorization": "Bearer nothing"})).status_code == 401


async def test_an_agent_that_hangs_or_is_down_costs_its_numbers_only(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = await api.running()
    monkeypatch.setattr(collection, "ASK_S", 0.05)
    monkeypatch.setattr(collection, "FRESH_S", -1.0)

    async def hang(*_: object, **__: object) -> list[InspectedProcess]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(api.launcher, "inspect", hang)
    found = samples((await api.http.get("/metrics")).text)
    assert of(found, "elasticdl_job_state", job=job_id, state="RUNNING") == [1]
    assert of(found, "elasticdl_process_up") == []

    async def refuse(*_: object, **__: object) -> object:
        raise UnavailableError("the agent is down", fix="start it")

    monkeypatch.setattr(api.launcher, "meters", refuse)
    monkeypatch.setattr(api.launcher, "capacity", refuse)
    found = samples((await api.http.get("/metrics")).text)
    assert of(found, "elasticdl_agent_up") == [0]
    assert of(found, "elasticdl_slots") == []


async def test_those_who_scrape_at_once_share_one_look_and_its_size_is_bounded(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = await api.running()
    for index in range(4):
        await launched(api, ProcessId(job_id, Role.WORKER, index, 0), ("elasticdl_worker_tasks", "", 1))
    monkeypatch.setattr(collection, "MOST_PROCESSES", 3)
    monkeypatch.setattr(collection, "FRESH_S", 3600.0)
    asked: list[object] = []
    inspect = api.launcher.inspect

    async def count(job: str | None, inquiry: Inquiry, *, seconds: float = 0.0) -> Sequence[InspectedProcess]:
        asked.append(job)
        return await inspect(job, inquiry, seconds=seconds)

    monkeypatch.setattr(api.launcher, "inspect", count)
    texts = await asyncio.gather(*(api.http.get("/metrics") for _ in range(4)))
    assert asked == [None]
    found = samples(texts[-1].text)
    assert len(of(found, "elasticdl_worker_tasks")) == 3
    assert of(found, "elasticdl_scrape_processes", outcome="left_out") == [1]


async def test_ends_audits_and_losses_of_jobs_are_told_by_name(api: Api) -> None:
    job_id, master = await api.running()
    waiting = await api.submit()
    status = {"audit": {"state": "failed"}}
    assert (await master.post("/state", to="FAILED", reason="x", detail={})).status_code == 200
    async with api.services.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(status=status))
        rows = [
            {"job_id": job_id, "role": "worker", "index": index, "incarnation": 0, "cause": cause}
            for index, cause in enumerate(("crashed", "crashed", "lost", "drained"))
        ]
        await connection.execute(insert(t.processes), rows)

    found = samples((await api.http.get("/metrics")).text)

    assert of(found, "elasticdl_job_ended_timestamp_seconds", job=job_id, state="FAILED")[0] > 1e9
    assert of(found, "elasticdl_job_audit_passed", job=job_id) == [0]
    lost = {
        cause: of(found, "elasticdl_job_processes_lost_total", job=job_id, cause=cause)
        for cause in ("crashed", "lost", "drained")
    }
    assert lost == {"crashed": [2], "lost": [1], "drained": []}
    assert of(found, "elasticdl_job_state", job=waiting, state="QUEUED") == [1]
    assert of(found, "elasticdl_queue_oldest_seconds")[0] >= 0
