"""The log of requests: who asked for what and how it ended, and no secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from elasticdl_api.app import create_app
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web import access_log
from elasticdl_api.web.access_log import AccessLog, AccessLogMiddleware
from elasticdl_runtime.database.engine import Database
from tests.fakes.launcher import FakeLauncher
from tests.integration.api.conftest import ADMIN, Api

pytestmark = pytest.mark.integration


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AccessLog]:
    made = AccessLog(tmp_path / "logs" / "access.log")
    yield made
    made.close()


@pytest.fixture
async def api(database: Database, settings: ApiSettings, log: AccessLog) -> AsyncIterator[Api]:
    launcher = FakeLauncher()
    services = Services(settings, database, launcher, Wakeups(database), access_log=log)
    api = Api(services, launcher)
    async with api.http:
        yield api
    services.examiners.close()


def lines(log: AccessLog, tmp_path: Path) -> list[dict[str, Any]]:
    log.close()
    return [json.loads(line) for line in (tmp_path / "logs" / "access.log").read_text().splitlines()]


async def test_each_request_is_a_line(api: Api, log: AccessLog, tmp_path: Path) -> None:
    job_id = await api.submit()
    tenant = await api.token("team-a", "read")
    master = api.master(job_id)
    await api.admit(job_id)
    await api.http.get(f"/v1/jobs/{job_id}", headers={"X-Request-ID": "mine-1"})
    await api.http.get(f"/jobs/{job_id}", headers=tenant)
    await api.http.get("/jobs?name=hidden-name", headers=tenant)
    await api.http.get("/nowhere%1b[31m", headers={"Authorization": "Bearer not-a-token-at-all"})
    await master.lease()
    await api.http.head("/healthz")
    found = lines(log, tmp_path)[2:]
    keys = ("method", "path", "route", "status", "user", "namespace", "token")
    shown = [tuple(line[key] for key in keys) for line in found]
    assert shown[0] == ("GET", f"/v1/jobs/{job_id}", "/jobs/{job_id}", 200, "admin", None, "admin")
    assert found[0]["request_id"] == "mine-1"
    assert shown[1][3:] == (404, "team-a-read-owner", "team-a", "team-a-read")
    assert shown[2][:4] == ("GET", "/jobs", "/jobs", 200)
    assert shown[3][3:] == (401, "", None, "")
    assert shown[4][2:] == (
        "/internal/jobs/{job_id}/lease",
        200,
        "master-0.1",
        None,
        f"job:{job_id}",
    )
    assert shown[5][0] == "HEAD"
    assert all(line["bytes"] > 0 for line in found[:5])
    assert all(line["ms"] >= 0 and line["at"] and line["request_id"] for line in found)


async def test_no_token_and_no_query_is_in_it(api: Api, log: AccessLog, tmp_path: Path) -> None:
    tenant = await api.token("team-a", "submit", token="canary-token-4711-4711")
    for headers in ({"Authorization": "Bearer canary-unknown-4711"}, tenant, {"Cookie": "x=canary-4711"}):
        await api.http.get("/jobs?label=canary=4711", headers=headers)
        await api.http.post("/jobs", json={"envs": {"PASSWORD": "canary-4711"}}, headers=headers)
    text = json.dumps(lines(log, tmp_path))
    assert "canary" not in text
    assert ADMIN not in text


async def test_a_request_that_fails_is_logged_and_fails(log: AccessLog, tmp_path: Path) -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("broken")

    transport = httpx.ASGITransport(AccessLogMiddleware(broken, log))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        with pytest.raises(RuntimeError):
            await http.get("/x")
    assert [line["status"] for line in lines(log, tmp_path)] == [500]


def test_it_is_rotated_and_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FILE_BYTES", 2000)
    monkeypatch.setattr(access_log, "_WAITING", 50)
    log = AccessLog(tmp_path / "access.log")
    for number in range(2000):
        log.write({"number": number, "text": "%s" * 20})
    log.close()
    files = sorted(tmp_path.iterdir())
    assert 1 < len(files) <= access_log.FILES
    assert all(path.stat().st_size <= 2200 for path in files)
    for path in files:
        for line in path.read_text().splitlines():
            assert json.loads(line)["text"] == "%s" * 20
    assert files[0].stat().st_mode & 0o777 == 0o600


def test_where_it_is(settings: ApiSettings, tmp_path: Path) -> None:
    assert settings.access_log_file == settings.data_dir / "logs" / "access.log"
    assert settings.model_copy(update={"access_log": "off"}).access_log_file is None
    assert settings.model_copy(update={"access_log": str(tmp_path / "x")}).access_log_file == tmp_path / "x"


def test_without_a_log_nothing_is_written(settings: ApiSettings, database: Database) -> None:
    assert create_app(Services(settings, database, None, Wakeups(database))) is not None
    assert not (settings.data_dir / "logs").exists()
