"""The client and the command line against the real API, with its real Postgres; the test plays the master."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from elasticdl.client import AsyncClient, Client
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError, SpecError, UnauthenticatedError
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.series import SeriesRecorder
from elasticdl_runtime import tokens
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import transition

pytestmark = pytest.mark.integration

MODULE = """
def forward(): ...
def loss(labels, predictions): ...
def optimizer(lr=0.1): ...
def feed(dataset, mode, metadata): ...
"""
START_S = 60.0


@dataclass
class RealApi:
    """The API as a process of its own.

    Attributes:
        url: its address.
        token: its admin token.
        secret: the cluster's secret.
        data_dir: where it keeps files.
        database_url: its database.
    """

    url: str
    token: str
    secret: str
    data_dir: Path
    database_url: str

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
        return {**kept, "ELASTICDL_API_URL": self.url, "ELASTICDL_TOKEN": self.token, "COLUMNS": "150", "TZ": "UTC"}

    def cli(self, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "elasticdl", *args],
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


class FakeMaster:
    """Says to the API what a master of a job would say."""

    def __init__(self, api: RealApi, job_id: str) -> None:
        self._base = f"{api.url}/internal/jobs/{job_id}"
        secret = tokens.derive_job_secret(api.secret, job_id)
        token = tokens.issue(secret, job_id, Role.MASTER, 0, 1)
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=30)
        self._epoch = self.say("POST", "/lease", {"holder": "master-0.1@test"})["epoch"]

    def __enter__(self) -> FakeMaster:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def say(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/lease":
            body = {"epoch": self._epoch, **body}
        response = self._http.request(method, self._base + path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else {}

    def state(self, to: str, reason: str = "", detail: dict[str, Any] | None = None) -> None:
        self.say("POST", "/state", {"to": to, "reason": reason, "detail": detail or {}})

    def heartbeat(self, done: int, total: int) -> None:
        progress = {"records_done": done, "records_total": total, "epoch": 0, "num_epochs": 1}
        status = {"progress": progress, "samples_per_second": 50.0, "loss": 0.5, "metrics": {"accuracy": 0.75}}
        losses = [{"model_version": done, "loss": 0.5, "at": time.time()}]
        self.say("POST", "/heartbeat", {"status": status, "losses": losses})


@pytest.fixture(scope="module")
def real_api(postgres_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    name = f"cli_{secrets.token_hex(4)}"
    postgres_server.sql(f"CREATE DATABASE {name}")
    folder = tmp_path_factory.mktemp("real-api")
    data_dir = folder / "api"
    data_dir.mkdir()
    token, secret = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    (data_dir / "token").write_text(token)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")},
        "ELASTICDL_DATABASE_URL": postgres_server.url(name),
        "ELASTICDL_CLUSTER_SECRET": secret,
        "ELASTICDL_DATA_DIR": str(data_dir),
        "ELASTICDL_API_PORT": str(port),
    }
    log = (folder / "api.log").open("wb")
    process = subprocess.Popen([sys.executable, "-m", "elasticdl_api"], env=environment, stdout=log, stderr=log)
    api = RealApi(f"http://127.0.0.1:{port}", token, secret, data_dir, postgres_server.url(name))
    try:
        deadline = time.monotonic() + START_S
        with httpx.Client(transport=httpx.HTTPTransport(retries=20), timeout=20) as http:
            while not _ready(http, api.url):
                assert process.poll() is None and time.monotonic() < deadline, (folder / "api.log").read_text()
        yield api
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()
        postgres_server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def _ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "digits.py").write_text(MODULE)
    (tmp_path / "data").mkdir()
    return folder


def submit(client: Client, zoo: Path, **fields: Any) -> str:
    return client.submit(model_zoo=zoo, model_def="digits.forward", training_data="/data", **fields).id


async def admit(real_api: RealApi, job_id: str) -> None:
    """Does what the scheduler does when a job fits."""
    database = Database(real_api.database_url)
    try:
        async with database.transaction() as connection:
            assert await transition(connection, job_id, JobState.QUEUED, JobState.STARTING, "its workers fit")
    finally:
        await database.close()


def test_a_job_is_submitted_listed_scaled_suspended_resumed_cancelled_and_deleted(
    real_api: RealApi, zoo: Path
) -> None:
    with Client(real_api.url, real_api.token) as client:
        job_id = submit(client, zoo, name="digits", max_workers=3, labels={"team": "ads"}, optimizer_params={"lr": 1})
        job = client.get(job_id)
        assert (job.state, job.name, job.max_workers) == (JobState.QUEUED, "digits", 3)
        assert job.spec["optimizer_params"] == {"lr": 1}
        other = submit(client, zoo, name="other")
        assert [job.id for job in client.iterate(page_size=1)][:2] == [other, job_id]
        assert [job.id for job in client.iterate(label="team=ads")] == [job_id]
        assert [job.id for job in client.iterate(state=["RUNNING", "FAILED"])] == []
        assert client.scale(job_id, 2, 5, priority=7).priority == 7
        assert client.suspend(job_id).state is JobState.SUSPENDED
        assert client.resume(job_id).state is JobState.QUEUED
        with pytest.raises(ConflictError, match="cancel it first"):
            client.delete(job_id)
        assert client.cancel(job_id).state is JobState.CANCELLED
        assert client.wait(job_id, timeout_s=60).state is JobState.CANCELLED
        assert client.events(job_id)[0].kind == "state"
        assert client.label(job_id, {"stage": "old", "team": None}).spec["labels"] == {"stage": "old"}
        with pytest.raises(InvalidInputError):
            client.label(job_id, {})
        client.delete(job_id)
        with pytest.raises(NotFoundError):
            client.get(job_id)
        assert client.cluster()["jobs"]["QUEUED"] >= 1


def test_refusals_arrive_as_the_exceptions_that_they_are(real_api: RealApi, zoo: Path) -> None:
    with Client(real_api.url, real_api.token) as client:
        job_id = submit(client, zoo)
        with pytest.raises(SpecError) as caught:
            client.scale(job_id, min_workers=4)
        assert caught.value.problems[0].field == "max_workers"
        with pytest.raises(NotFoundError, match="elsewhere"):
            client.get("elsewhere")
        with pytest.raises(SpecError, match="there is no bundle"):
            client.submit(model_def="a.b", training_data="/data", model_bundle="sha256:" + "0" * 64)
        first = submit(client, zoo, idempotency_key="mine")
        assert submit(client, zoo, idempotency_key="mine") == first
        with pytest.raises(ConflictError):
            submit(client, zoo, idempotency_key="mine", seed=5)
    with Client(real_api.url, "x" * 30) as stranger, pytest.raises(UnauthenticatedError):
        stranger.cluster()


async def test_a_stream_shows_events_and_views_to_the_end(real_api: RealApi, zoo: Path) -> None:
    async with AsyncClient(real_api.url, real_api.token) as client:
        job = await client.submit(model_zoo=zoo, model_def="digits.forward", training_data="/data")
        await client.cancel(job.id)
        updates = [update async for update in client.updates(job.id)]
        assert updates[-1].ended and updates[-1].job is not None
        assert updates[-1].job.state is JobState.CANCELLED
        messages = [update.event.message for update in updates if update.event]
        assert "cancel was asked for" in messages
        first, *others = [update.event.id for update in updates if update.event]
        rest = [update.event.id async for update in client.updates(job.id, after=first) if update.event]
        assert rest == others


async def _told(real_api: RealApi, kind: str, method: str, *given: Any, **options: Any) -> Any:
    """What a method of the asyncio or of the blocking client gives."""
    if kind == "asyncio":
        async with AsyncClient(real_api.url, real_api.token) as client:
            return await getattr(client, method)(*given, **options)

    def ask() -> Any:
        with Client(real_api.url, real_api.token) as client:
            return getattr(client, method)(*given, **options)

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
async def test_lives_ledger_and_series_are_what_the_master_reported(real_api: RealApi, zoo: Path, kind: str) -> None:
    job = await _told(real_api, kind, "submit", model_zoo=zoo, model_def="digits.forward", training_data="/data")
    await admit(real_api, job.id)
    with FakeMaster(real_api, job.id) as master:
        master.state("RUNNING", "workers registered")
        lives = [
            {"role": "worker", "index": index, "incarnation": 1, "stage": "launched", "at": 1_700_000_000 + index}
            for index in range(3)
        ]
        lives.append({**lives[0], "stage": "ended", "at": 1_700_000_050, "cause": "killed", "exit_code": -9})
        master.say("POST", "/processes", {"lives": lives})
        ledger = {"epoch": 1, "epochs": 2, "planned": 100, "done": 30, "leased": 20, "skipped": {"0": 5}}
        recorder = SeriesRecorder()
        for second in range(60):
            recorder.record(1_700_000_000 + second, {"samples_per_second": 40.0, "model_version": float(second)})
        rows = [vars(row) for row in recorder.take(everything=True)]
        losses = [
            {"model_version": version, "loss": 9.0 - version, "at": 1_700_000_000 + version} for version in (1, 2)
        ]
        body = {"status": {"progress": {"records_done": 130}, "ledger": ledger}, "losses": losses, "series": rows}
        master.say("POST", "/heartbeat", body)

    found = await _told(real_api, kind, "processes", job.id, role="worker")
    assert [(one["index"], one["cause"], one["exit_code"]) for one in found] == [
        *((0, "killed", -9), (1, None, None), (2, None, None))
    ]
    told = await _told(real_api, kind, "ledger", job.id)
    assert told["total"] == {"planned": 200, "committed": 125, "leased": 20, "todo": 50, "skipped": 5}
    series = await _told(real_api, kind, "series", job.id, names=["samples_per_second", "loss"], points=100)
    points = {one["name"]: one["points"] for one in series["series"]}
    assert {point[1] for point in points["samples_per_second"]} == {40.0} and len(points["loss"]) == 2
    versions = await _told(real_api, kind, "series", job.id, names=["loss"], by="version")
    assert [point[:2] for point in versions["series"][0]["points"]] == [[1, 8.0], [2, 7.0]]
    middle = datetime.fromtimestamp(1_700_000_030, UTC)
    late = await _told(real_api, kind, "series", job.id, names=["samples_per_second"], since=middle)
    assert late["series"][0]["points"][0][0] >= 1_700_000_030
    cluster = await _told(real_api, kind, "cluster_series", since=middle, until=datetime.now(UTC), points=10)
    assert cluster["by"] == "time" and isinstance(cluster["series"], list)
    for method in ("processes", "ledger", "series"):
        with pytest.raises(NotFoundError):
            await _told(real_api, kind, method, "elsewhere")


async def test_a_running_job_is_followed_live_and_its_artifacts_fetched(
    real_api: RealApi, zoo: Path, tmp_path: Path
) -> None:
    made = b"weights"
    async with AsyncClient(real_api.url, real_api.token) as client:
        job = await client.submit(model_zoo=zoo, model_def="digits.forward", training_data="/data")
        await admit(real_api, job.id)
        with FakeMaster(real_api, job.id) as master:
            master.state("RUNNING", "its workers train")
            folder = real_api.data_dir / "jobs" / job.id / "artifacts"
            shown = []
            async for update in client.updates(job.id):
                if update.event is not None or update.job is None:
                    continue
                shown.append(update.job)
                if update.job.state == "RUNNING" and not update.job.status.progress.records_done:
                    master.heartbeat(40, 100)
                elif update.job.state == "RUNNING" and not folder.exists():
                    (folder / "saved_model" / "variables").mkdir(parents=True)
                    (folder / "model.keras").write_bytes(made)
                    (folder / "saved_model" / "variables" / "part").write_bytes(made)
                    digest = hashlib.sha256(made).hexdigest()
                    report = {"name": "model.keras", "path": "model.keras", "size": len(made), "sha256": digest}
                    master.say("POST", "/artifacts", report)
                    name = "saved_model/variables/part"
                    master.say("POST", "/artifacts", {**report, "name": name, "path": name})
                    master.state("SUCCEEDED", "all records were processed")
        running = next(job for job in shown if job.status.progress.records_done)
        assert (running.status.progress.fraction, running.status.metrics) == (0.4, {"accuracy": 0.75})
        assert shown[-1].state is JobState.SUCCEEDED
        assert [item.name for item in shown[-1].artifacts] == ["model.keras", "saved_model/variables/part"]
        places = await client.download(job.id, tmp_path / "fetched")
        assert [place.name for place in places] == ["model.keras", "part"]
        assert (tmp_path / "fetched" / "saved_model" / "variables" / "part").read_bytes() == made
        assert (await client.metrics(job.id))["losses"][0]["model_version"] == 40


async def test_a_failed_job_tells_its_reason_on_the_command_line(
    real_api: RealApi, zoo: Path, tmp_path: Path
) -> None:
    with Client(real_api.url, real_api.token) as client:
        job_id = submit(client, zoo)
    await admit(real_api, job_id)
    with FakeMaster(real_api, job_id) as master:
        detail = {"message": "loss() raised KeyError", "fix": "mend digits.py", "traceback": "digits.py, line 3"}
        master.state("FAILED", "user code raised", detail)
    watched = real_api.cli("jobs", "get", job_id, "--watch", cwd=tmp_path)
    assert watched.returncode == 1
    for part in ("digits.py, line 3", "fix: mend digits.py", f"job {job_id} failed: "):
        assert part in watched.stderr


def test_the_command_line_submits_follows_and_fetches(real_api: RealApi, zoo: Path, tmp_path: Path) -> None:
    flags = ("--model_zoo=zoo", "--model_def=digits.forward", "--training_data=data", "--job_name=shown")
    submitted = real_api.cli("train", *flags, "--detach", cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    listed = json.loads(real_api.cli("jobs", "list", "--json", "--name=shown", cwd=tmp_path).stdout)
    assert [job["id"] for job in listed] == [job_id]
    assert job_id in real_api.cli("jobs", "list", cwd=tmp_path).stdout
    assert "QUEUED" in real_api.cli("jobs", "get", job_id, cwd=tmp_path).stdout
    assert real_api.cli("jobs", "cancel", job_id, "--wait", cwd=tmp_path).stdout == f"{job_id}  CANCELLED\n"
    watched = real_api.cli("jobs", "get", job_id, "--watch", cwd=tmp_path)
    assert watched.returncode == 3
    assert f"job {job_id} cancelled" in watched.stdout
    assert "CANCELLED" in real_api.cli("jobs", "events", job_id, "--json", cwd=tmp_path).stdout
    assert real_api.cli("jobs", "delete", job_id, "--yes", cwd=tmp_path).returncode == 0
    assert real_api.cli("jobs", "get", job_id, cwd=tmp_path).returncode == 1
