"""What processes of a job do, over the api: stacks, and who asked for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl_core.ports.launcher import INSPECTOR, Inquiry, ProcessId, ProcessSpec, Role
from tests.integration.api.conftest import Api
from tests.integration.api.test_audit import entries

pytestmark = pytest.mark.integration


async def launched(api: Api, job_id: str, role: Role, index: int) -> ProcessId:
    process = ProcessId(job_id, role, index, 0)
    await api.launcher.launch(ProcessSpec(process))
    return process


async def test_stacks_of_all_processes_are_shown_and_the_question_is_written_down(api: Api) -> None:
    job_id, _ = await api.running()
    assert (await api.http.get(f"/jobs/{job_id}/stacks")).json()["processes"] == []
    worker = await launched(api, job_id, Role.WORKER, 0)
    await launched(api, job_id, Role.MASTER, 0)
    thread = {"name": "MainThread", "thread": 1, "frames": [["/a.py", 3, "work"]]}
    answer: dict[str, Any] = {"answers": 1, "threads": [thread], "tasks": [], "spans": [], "loop": 2}
    api.launcher.answers[worker, Inquiry.STACKS] = json.dumps(answer).encode()

    response = await api.http.get(f"/v1/jobs/{job_id}/stacks")

    assert response.status_code == 200
    master, shown = response.json()["processes"]
    assert (master["role"], bool(master["error"]), master["threads"]) == ("master", True, [])
    assert (shown["role"], shown["index"], shown["incarnation"], shown["error"]) == ("worker", 0, 0, "")
    assert shown["threads"] == [
        {
            "name": "MainThread",
            "waits_for": "running work",
            "frames": [{"file": "/a.py", "line": 3, "function": "work"}],
        }
    ]
    assert [(one["action"], one["target"]) for one in await entries(api)][-1] == ("job.stacks", job_id)


async def test_who_may_not_see_a_job_learns_nothing_of_its_processes(api: Api) -> None:
    job_id, _ = await api.running()
    await launched(api, job_id, Role.MASTER, 0)
    others = await api.token("others", "admin")
    assert (await api.http.get(f"/jobs/{job_id}/stacks", headers=others)).status_code == 404
    assert (await api.http.get("/jobs/nothing/stacks")).status_code == 404
    assert [one for one in await entries(api) if one["action"] == "job.stacks"] == []


async def test_the_records_of_a_job_are_audited_from_its_marks_and_its_workers_traces(api: Api) -> None:
    job_id, master = await api.running()
    plan = {"shards": [["a", 0, 100]], "records_per_task": 50, "seed": 0, "shuffle": False, "block": 0, "rounds": 1}
    assert (await master.request("PUT", "/plan", json={"epoch": master.epoch, "plan": plan})).status_code == 204
    assert (await master.post("/done", tasks=["t:0:0:0:50", "t:0:1:50:100"])).status_code == 200
    folder = api.services.settings.job_dir(job_id) / "traces"
    folder.mkdir(parents=True)
    line = {"task": "t:0:0:0:50", "token": "1.1.1", "start": 0, "end": 50, "epoch": 0, "version": 4}
    (folder / "worker-0.0.jsonl").write_text(json.dumps(line) + '\n{"task": "t:0')

    found = (await api.http.get(f"/v1/jobs/{job_id}/audit")).json()

    assert found["verdict"] == "broken"
    assert found["findings"] == ["marked as done, and in no worker's trace: 50 records of task 1 of epoch 1"]
    assert found["total"] == {"planned": 100, "committed": 100, "leased": 0, "todo": 0, "skipped": 0}
    other = {**line, "task": "t:0:1:50:100", "start": 50, "end": 100}
    (folder / "worker-1.0.jsonl").write_text(json.dumps(other) + "\n")
    assert (await api.http.get(f"/jobs/{job_id}/audit")).json()["verdict"] == "running"
    others = await api.token("others", "admin")
    assert (await api.http.get(f"/jobs/{job_id}/audit", headers=others)).status_code == 404


async def test_what_lies_in_the_place_of_a_trace_is_not_followed(api: Api) -> None:
    job_id, _ = await api.running()
    folder = api.services.settings.job_dir(job_id) / "traces"
    folder.mkdir(parents=True)
    (folder / "worker-0.0.jsonl").symlink_to("/etc/passwd")
    (folder / "worker-1.0.jsonl").write_text("[" * 100_000 + "\n")
    found = (await api.http.get(f"/jobs/{job_id}/audit")).json()
    assert found["verdict"] == "running"
    assert any("no plain file" in finding for finding in found["findings"])


async def test_what_processes_do_is_recorded_on_request(api: Api) -> None:
    job_id, _ = await api.running()
    worker = await launched(api, job_id, Role.WORKER, 0)
    answer = {"spans": [["compute", "step", True, 5, 7, 1, {}]], "threads": {"1": "training"}, "lost": 0}
    api.launcher.answers[worker, Inquiry.RECORDED] = json.dumps(answer).encode()

    response = await api.http.post(f"/v1/jobs/{job_id}/trace", json={"seconds": 0.01})

    assert response.status_code == 200, response.text
    names = [event["name"] for event in response.json()["traceEvents"]]
    assert names == ["process_name", "process_sort_index", "compute", "thread_name"]
    assert [(one["action"], one["target"]) for one in await entries(api)][-1] == ("job.trace", job_id)
    for wrong in ({"seconds": 0}, {"seconds": 31}, {"seconds": "x"}, []):
        assert (await api.http.post(f"/jobs/{job_id}/trace", json=wrong)).status_code == 422
    others = await api.token("others", "admin")
    assert (await api.http.post(f"/jobs/{job_id}/trace", json={}, headers=others)).status_code == 404


async def test_logs_are_listed_and_kept_as_files_and_read_from_a_place_on(api: Api) -> None:
    job_id, _ = await api.running()
    worker = await launched(api, job_id, Role.WORKER, 0)
    api.launcher.print(worker, b"first\nsecond\n")
    folder = api.services.settings.job_dir(job_id) / "logs"
    folder.mkdir(parents=True)
    (folder / "worker-0.1.log").write_text("abc")
    (folder / "worker-0.1.log.1").write_text("before")
    (folder / "master-0.0.log").write_text("")
    (folder / "ps-0.0.log").symlink_to("/etc/passwd")
    (folder / "worker-0.1.log.times").write_text("1")
    (folder / f"worker-{INSPECTOR}.1.log").write_text("it looked at the model")

    files = (await api.http.get(f"/v1/jobs/{job_id}/logs/files")).json()["files"]

    assert [(one["role"], one["index"], one["incarnation"], one["size"]) for one in files] == [
        ("master", 0, 0, 0),
        ("worker", 0, 1, 9),
    ]
    url = f"/jobs/{job_id}/logs"
    assert (await api.http.get(url, params={"offset": 6})).text == "second\n"
    assert (await api.http.get(url, params={"offset": 99})).text == ""
    kept = await api.http.get(url, params={"download": "true"})
    assert kept.headers["Content-Disposition"] == f'attachment; filename="{job_id}-worker-0.log"'
    assert kept.text == "first\nsecond\n"
    for wrong in ("offset=1&tail=1", "offset=-1", "download=true&follow=true"):
        assert (await api.http.get(f"{url}?{wrong}")).status_code == 422
