"""The api's application over an in-process transport, on a database of its own, with a fake launcher."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as upsert

from elasticdl_api.app import create_app
from elasticdl_api.background.known_files import look
from elasticdl_api.examination.examiners import Examiners
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.migrate import migrate
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web.auth import token_digest
from elasticdl_core.access import make_token
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.cluster.paths import KNOWN_FILES
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import transition
from elasticdl_runtime.tokens import derive_job_secret, issue
from tests.fakes.launcher import FakeLauncher

ADMIN = "admin-token-for-tests"
SECRET = "cluster-secret-for-tests"
MODULE = """
import keras

def custom_model(): return keras.Sequential()
def loss(labels, predictions): return 0.0
def optimizer(lr=0.1): return keras.optimizers.SGD(lr)
def feed(dataset, mode, metadata): return dataset
"""


def make_zip(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


class Api:
    """A running application and shortcuts for tests."""

    def __init__(self, services: Services, launcher: FakeLauncher) -> None:
        self.services = services
        self.launcher = launcher
        self.app = create_app(services)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(
            transport=transport, base_url="http://api", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30
        )

    async def upload(self, files: dict[str, str | bytes] | None = None) -> str:
        data = make_zip(files or {"model.py": MODULE})
        digest = digest_of(data)
        response = await self.http.put(f"/bundles/{digest}", content=data)
        assert response.status_code in (200, 201), response.text
        return digest

    async def spec(self, **changes: Any) -> dict[str, Any]:
        spec = {
            "name": "digits",
            "model_def": "model.custom_model",
            "model_bundle": await self.upload(),
            "training_data": "/data",
            "max_workers": 3,
        }
        return {**spec, **changes}

    async def submit(self, **changes: Any) -> str:
        response = await self.http.post("/jobs", json=await self.spec(**changes))
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        response = await self.http.get(f"/jobs/{job_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def admit(self, job_id: str, workers: int = 1) -> None:
        """What the scheduler does when the job fits."""
        async with self.services.database.transaction() as connection:
            assert await transition(
                connection, job_id, JobState.QUEUED, JobState.STARTING, "fits", {"workers": workers}
            )

    async def token(
        self, namespace: str | None, scope: str = "submit", *, name: str = "", token: str = "", **values: Any
    ) -> dict[str, str]:
        """Makes a token of a namespace, and the namespace too; returns the headers of its holder's requests."""
        token = token or make_token()
        name = name or f"{namespace}-{scope}"
        row = {"id": name, "name": name, "owner": f"{name}-owner", "namespace": namespace, "scope": scope, **values}
        async with self.services.database.transaction() as connection:
            if namespace is not None:
                await connection.execute(upsert(t.namespaces).values(name=namespace).on_conflict_do_nothing())
            await connection.execute(insert(t.tokens).values(**row, sha256=token_digest(token)))
        return {"Authorization": f"Bearer {token}"}

    def master(self, job_id: str, incarnation: int = 1, *, role: Role = Role.MASTER) -> Master:
        return Master(self, job_id, incarnation, role)

    async def running(self, **changes: Any) -> tuple[str, Master]:
        job_id = await self.submit(**changes)
        await self.admit(job_id)
        master = self.master(job_id)
        await master.lease()
        assert (await master.post("/state", to="RUNNING", reason="workers registered")).status_code == 200
        return job_id, master


class Master:
    """Speaks to the internal routes as a job's master."""

    def __init__(self, api: Api, job_id: str, incarnation: int, role: Role) -> None:
        self.api = api
        self.base = f"/internal/jobs/{job_id}"
        token = issue(derive_job_secret(SECRET, job_id), job_id, role, 0, incarnation)
        self.headers = {"Authorization": f"Bearer {token}"}
        self.incarnation = incarnation
        self.epoch = 0

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.api.http.request(method, f"{self.base}{path}", headers=self.headers, **options)

    async def lease(self, holder: str | None = None) -> dict[str, Any]:
        response = await self.request("POST", "/lease", json={"holder": holder or f"master-0.{self.incarnation}"})
        assert response.status_code == 200, response.text
        self.epoch = response.json()["epoch"]
        return dict(response.json())

    async def post(self, path: str, /, **body: Any) -> httpx.Response:
        return await self.request("POST", path, json={"epoch": self.epoch, **body})

    async def heartbeat(self, status: dict[str, Any] | None = None, losses: Any = ()) -> httpx.Response:
        return await self.post("/heartbeat", status=status or {}, losses=list(losses))


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Any) -> str:
    name = "template_api"
    postgres_server.sql(f"CREATE DATABASE {name}")

    async def fill() -> None:
        database = Database(postgres_server.url(name))
        try:
            await migrate(database)
        finally:
            await database.close()

    asyncio.run(fill())
    return name


@pytest.fixture
def database_url(
    migrated_template: str, lend_database: Callable[[str], AbstractContextManager[str]]
) -> Iterator[str]:
    with lend_database(migrated_template) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> ApiSettings:
    data_dir = tmp_path / "cluster"
    data_dir.mkdir()
    (data_dir / "token").write_text(ADMIN)
    # Tests send more bad tokens from one address than anybody may.
    return ApiSettings(
        database_url=database_url,
        cluster_secret=SECRET,
        data_dir=data_dir,
        failed_tokens_at_once=10**6,
        allowed_hosts="api",
    )


@pytest.fixture(scope="session")
def examiners() -> Iterator[Examiners]:
    """Shared: to start their processes costs more than most tests."""
    examiners = Examiners()
    yield examiners
    examiners.close()


@pytest.fixture
async def api(database: Database, settings: ApiSettings, examiners: Examiners) -> AsyncIterator[Api]:
    launcher = FakeLauncher()
    api = Api(Services(settings, database, launcher, Wakeups(database), examiners), launcher)
    async with api.http:
        yield api


async def known_for_ever(api: Api) -> None:
    """Has the database know the data directory since files of tests are said to have been made."""
    await look(api.services.settings.data_dir, api.services.retention)
    file = api.services.settings.data_dir / KNOWN_FILES
    file.write_text(json.dumps({**json.loads(file.read_text()), "since": 0}))
