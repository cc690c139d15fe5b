"""The api as a process, over real HTTP: start, stop with open streams, outages of the database, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.lifecycle import within
from tests.integration.api.conftest import ADMIN, MODULE, SECRET, make_zip
from tests.integration.conftest import PostgresServer

pytestmark = pytest.mark.integration


def _environment(database_url: str, data_dir: Path, **changes: str) -> dict[str, str]:
    data_dir.mkdir(exist_ok=True)
    (data_dir / "token").write_text(ADMIN + "\n")
    return {
        "PATH": os.environ.get("PATH", ""),
        "ELASTICDL_DATABASE_URL": database_url,
        "ELASTICDL_CLUSTER_SECRET": SECRET,
        "ELASTICDL_DATA_DIR": str(data_dir),
        "ELASTICDL_API_PORT": "0",
        "ELASTICDL_LOG_FORMAT": "json",
        **changes,
    }


@asynccontextmanager
async def _process(environment: dict[str, str], *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "elasticdl_api", *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Reads the log until the api listens."""
    assert process.stderr is not None
    seen = []
    async for line in process.stderr:
        seen.append(line)
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if entry.get("event") == "listening":
            return f"http://{entry['host']}:{entry['port']}"
    raise AssertionError(b"".join(seen).decode())


@asynccontextmanager
async def _serving(
    environment: dict[str, str],
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    async with _process(environment) as process:
        address = await within(_address(process), 60)
        assert process.stderr is not None
        draining = asyncio.create_task(process.stderr.read())
        try:
            async with httpx.AsyncClient(
                base_url=address, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30, trust_env=False
            ) as http:
                yield process, http
        finally:
            draining.cancel()
            await asyncio.wait({draining})


async def _submit(http: httpx.AsyncClient) -> str:
    data = make_zip({"model.py": MODULE})
    assert (await http.put(f"/bundles/{digest_of(data)}", content=data)).status_code == 201
    spec = {"model_def": "model.custom_model", "model_bundle": digest_of(data), "training_data": "/d"}
    response = await http.post("/jobs", json=spec)
    assert response.status_code == 201
    return str(response.json()["id"])


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def test_it_migrates_serves_and_stops_with_streams_open(empty_database_url: str, tmp_path: Path) -> None:
    async with _serving(_environment(empty_database_url, tmp_path / "data")) as (process, http):
        job_id = await _submit(http)
        async with http.stream("GET", f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("retry: ")
            process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines]
        assert any(line.startswith("data:") for line in rest)
        assert await within(process.wait(), 60) == 0


async def test_two_replicas_share_a_database(empty_database_url: str, tmp_path: Path) -> None:
    environment = _environment(empty_database_url, tmp_path / "data")
    async with _serving(environment) as (_, one), _serving(environment) as (_, two):
        job_id = await _submit(one)
        reading = asyncio.create_task(_read_to_end(two, job_id))
        assert (await one.post(f"/jobs/{job_id}/cancel")).json()["state"] == "CANCELLED"
        assert "event: end" in await within(reading, 60)


async def _read_to_end(http: httpx.AsyncClient, job_id: str) -> str:
    return (await http.get(f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})).text


async def test_an_outage_of_the_database_is_a_503_that_heals(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.sql("CREATE DATABASE elasticdl")
    async with _serving(_environment(own_server.url("elasticdl"), tmp_path / "data")) as (_, http):
        job_id = await _submit(http)
        own_server.stop()
        for _ in range(3):
            response = await http.get(f"/jobs/{job_id}")
            assert (response.status_code, response.json()["code"]) == (503, "unavailable")
            assert response.headers["retry-after"] == "2"
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        own_server.start()
        assert (await http.get(f"/jobs/{job_id}")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_a_database_that_hangs_does_not_hang_the_api(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.sql("CREATE DATABASE elasticdl")
    async with _serving(_environment(own_server.url("elasticdl"), tmp_path / "data")) as (_, http):
        job_id = await _submit(http)
        assert own_server._process is not None
        postmaster = psutil.Process(own_server._process.pid)
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            process.suspend()
        try:
            answers = await asyncio.gather(*(http.get(f"/jobs/{job_id}") for _ in range(30)))
            assert {answer.status_code for answer in answers} == {503}
            assert (await http.get("/healthz")).status_code == 200
        finally:
            for process in family:
                process.resume()
        async with asyncio.timeout(60):
            while (await http.get(f"/jobs/{job_id}")).status_code != 200:
                pass


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ELASTICDL_ADMIN_TOKEN_FILE": "/nowhere/token"}, "admin token cannot be read"),
        ({"ELASTICDL_ADMIN_TOKEN_FILE": "/dev/null"}, "is too short"),
        ({"ELASTICDL_CLUSTER_SECRET": "short"}, "ELASTICDL_CLUSTER_SECRET is too short"),
        ({"ELASTICDL_API_PORT": "http"}, "ELASTICDL_API_PORT='http' is not a whole number"),
        ({"ELASTICDL_DATABASE_URL": "mysql://x/y"}, "not one of Postgres"),
    ],
)
async def test_it_does_not_start_with_settings_that_are_wrong_or_unsafe(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    environment = _environment("postgresql://u:p@127.0.0.1:1/x", tmp_path / "data", **changes)
    async with _process(environment) as process:
        _, errors = await within(process.communicate(), 60)
        assert process.returncode == 64
        assert words in errors.decode()
        assert "fix: " in errors.decode()


async def test_the_migrate_command(empty_database_url: str, tmp_path: Path) -> None:
    environment = _environment(empty_database_url, tmp_path / "data")
    async with _process(environment, "migrate") as process:
        output, _ = await within(process.communicate(), 60)
        assert (process.returncode, output) == (0, b"the schema is up to date\n")
