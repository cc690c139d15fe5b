"""Backup and restore of a database with jobs in it, and what must not be restored."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from elasticdl_agent.cluster.backup import back_up, restore
from elasticdl_api.app import create_app
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.migrate import migrate, revisions
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_runtime.backup_files import BackupManifest, BackupWriter, read_manifest
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.cluster.state import DataLock
from elasticdl_runtime.database.engine import Database
from tests.integration.api.conftest import ADMIN, SECRET, Api

pytestmark = pytest.mark.integration


async def make_history(api: Api) -> dict[str, Any]:
    """Jobs in several states, with all that belongs to a job; returns what the API says of them."""
    suspended, master = await api.running(labels={"team": "ünï\\code"})
    await master.post("/events", events=[{"kind": "note", "message": "tab\tnew\nline \\N"}])
    await master.heartbeat({"progress": {"records_done": 5}}, [{"model_version": 1, "loss": "NaN"}])
    assert (await master.post("/done", tasks=["t:0:0:0:5"])).json() == {"new": 1}
    assert (await api.http.post(f"/jobs/{suspended}/suspend")).status_code == 202
    await master.post("/checkpoints", manifest={"version": 9, "files": []})
    assert (await master.post("/state", to="SUSPENDED", reason="saved")).status_code == 200
    await api.submit()
    ended = await api.submit()
    await api.http.post(f"/jobs/{ended}/cancel")
    await api.token("team-a", "submit", token="token-of-team-a-123")
    folder = api.services.settings.job_dir(suspended) / "checkpoints" / "version-9"
    folder.mkdir(parents=True)
    (folder / "ps-0").write_bytes(b"rows" * 1000)
    (folder.parent / "leak").symlink_to(api.services.settings.data_dir / "token")
    return await read_history(api.http)


async def read_history(http: httpx.AsyncClient) -> dict[str, Any]:
    jobs = (await http.get("/jobs")).json()["jobs"]
    found = {}
    for job in jobs:
        paths = ("", "/events", "/metrics", "/artifacts")
        found[job["id"]] = [(await http.get(f"/jobs/{job['id']}{path}")).json() for path in paths]
    return found


async def test_a_restored_cluster_is_the_one_that_was_saved(
    api: Api, empty_database_url: str, tmp_path: Path
) -> None:
    history = await make_history(api)
    settings, told = api.services.settings, list[str]()
    source, target = DataDirectory(settings.data_dir), DataDirectory(tmp_path / "restored")
    file = tmp_path / "saved.backup"
    await back_up(file, source, settings.database_url, files=True, tell=told.append)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    await restore(file, target, empty_database_url, force=False, tell=told.append)
    (target.root / "token").write_text(ADMIN)
    database = Database(empty_database_url)
    try:
        given = {"database_url": empty_database_url, "cluster_secret": SECRET, "data_dir": target.root}
        app = create_app(Services(ApiSettings(**given), database, None, Wakeups(database)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=30
        ) as http:
            assert await read_history(http) == history
            suspended = next(job for job, seen in history.items() if seen[0]["state"] == "SUSPENDED")
            resumed = await http.post(f"/jobs/{suspended}/resume")
            assert (resumed.status_code, resumed.json()["state"]) == (202, "QUEUED")
            ids = [event["id"] for event in (await http.get(f"/jobs/{suspended}/events")).json()]
            assert ids == sorted(set(ids))
            tenant = {"Authorization": "Bearer token-of-team-a-123"}
            assert (await http.get("/jobs", headers=tenant)).status_code == 200
    finally:
        await database.close()
    saved = target.root / "jobs" / suspended / "checkpoints" / "version-9" / "ps-0"
    assert saved.read_bytes() == b"rows" * 1000
    assert not (saved.parent.parent / "leak").exists()
    assert len(list((target.root / "bundles").iterdir())) == 1
    with pytest.raises(ConflictError, match="already"):
        await restore(file, target, empty_database_url, force=False, tell=told.append)


async def test_a_backup_is_one_moment_while_others_write(api: Api, tmp_path: Path) -> None:
    _, master = await api.running()
    stop = asyncio.Event()

    written = itertools.count()

    async def write() -> None:
        while not stop.is_set():
            done = await master.post("/done", tasks=[f"t:0:{next(written)}:0:5"])
            assert done.json() == {"new": 1}, done.text
            await master.post("/events", events=[{"kind": "note", "message": "done"}])

    writing = asyncio.create_task(write())
    directory = DataDirectory(api.services.settings.data_dir)
    for number in range(3):
        file = tmp_path / f"{number}.backup"
        await back_up(file, directory, api.services.settings.database_url, files=False, tell=str)
        rows = {one["name"]: one["rows"] for one in read_manifest(file).tables}
        with tarfile.open(file) as archive:
            events = archive.extractfile("tables/events")
            assert events is not None
            notes = events.read().count(b"\tnote\t")
        assert rows["done_marks"] - notes in (0, 1)
    stop.set()
    await writing
    assert next(written) > 0


async def saved(api: Api, tmp_path: Path) -> Path:
    file = tmp_path / "saved.backup"
    settings = api.services.settings
    await back_up(file, DataDirectory(settings.data_dir), settings.database_url, files=False, tell=str)
    return file


async def test_what_is_damaged_is_not_restored(api: Api, empty_database_url: str, tmp_path: Path) -> None:
    await api.submit()
    good = (await saved(api, tmp_path)).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(good)) as archive:
        places = {member.name: (member.offset_data, member.size) for member in archive}
    at, size = places["tables/jobs"]
    assert size
    broken = {
        "a bit": good[: at + 5] + bytes([good[at + 5] ^ 1]) + good[at + 6 :],
        "cut in a table": good[: at + 5],
        "cut before its manifest": good[: places["manifest.json"][0] - 512],
        "cut in its manifest": good[: places["manifest.json"][0] + 20],
        "empty": b"",
        "a picture": b"\x89PNG\r\n" * 1000,
    }
    target = DataDirectory(tmp_path / "restored")
    for what, content in broken.items():
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(InvalidInputError):
            await restore(tmp_path / "broken", target, empty_database_url, force=True, tell=str)
        assert not target.root.exists(), what
    with pytest.raises(InvalidInputError):
        await restore(tmp_path / "none", target, empty_database_url, force=True, tell=str)


def archive_with(path: Path, **changes: Any) -> Path:
    writer = BackupWriter(path)
    manifest = BackupManifest(revisions()[0], "0", 0.0, [], {})
    for name, value in changes.items():
        setattr(manifest, name, value)
    writer.finish(manifest)
    return path


async def test_a_newer_backup_is_refused_and_changes_nothing(api: Api, tmp_path: Path) -> None:
    job_id = await api.submit()
    url = api.services.settings.database_url
    target = DataDirectory(tmp_path / "restored")
    for changes in ({"revision": "9999"}, {"format": 2}):
        with pytest.raises(ConflictError, match=r"newer|format"):
            await restore(archive_with(tmp_path / "new", **changes), target, url, force=True, tell=str)
    assert (await api.http.get(f"/jobs/{job_id}")).status_code == 200


async def test_members_that_are_no_plain_files_are_refused(empty_database_url: str, tmp_path: Path) -> None:
    for name, kind in (("../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("jobs/x", tarfile.SYMTYPE)):
        with tarfile.open(tmp_path / "bad", "w") as archive:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
            text = json.dumps({"format": 1}).encode()
            manifest = tarfile.TarInfo("manifest.json")
            manifest.size = len(text)
            archive.addfile(manifest, io.BytesIO(text))
        with pytest.raises(InvalidInputError):
            await restore(tmp_path / "bad", DataDirectory(tmp_path / "r"), empty_database_url, force=True, tell=str)


async def test_a_running_cluster_is_not_restored_over(empty_database_url: str, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "cluster")
    directory.prepare()
    lock = DataLock(directory.lock)
    assert lock.acquire()
    try:
        with pytest.raises(ConflictError, match="runs"):
            await restore(archive_with(tmp_path / "b"), directory, empty_database_url, force=True, tell=str)
    finally:
        lock.release()


async def test_what_cannot_be_saved_says_so(empty_database_url: str, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "none")
    wrong: list[tuple[Path, str]] = [
        (tmp_path / "b", ""),
        (tmp_path / "b", empty_database_url),
        (tmp_path / "b", f"postgresql://elasticdl:x@/x?host={tmp_path}"),
        (tmp_path / "none" / "b", empty_database_url),
        (Path("/"), empty_database_url),
        (Path("/dev/null"), empty_database_url),
    ]
    for file, url in wrong:
        with pytest.raises((ConflictError, UnavailableError, InvalidInputError)) as refused:
            await back_up(file, directory, url, files=False, tell=str)
        assert isinstance(refused.value, ElasticDLError)
        assert refused.value.fix
        assert not file.is_file()
    assert not Path("/dev/null").is_file()
    assert list(tmp_path.iterdir()) == []


async def test_an_earlier_version_replaces_what_is_there_if_that_is_wanted(api: Api, tmp_path: Path) -> None:
    await api.submit()
    head = revisions()[-1]
    assert read_manifest(await saved(api, tmp_path)).revision == head
    old, url = archive_with(tmp_path / "old", revision=revisions()[0]), api.services.settings.database_url
    target = DataDirectory(tmp_path / "restored")
    with pytest.raises(ConflictError, match="already"):
        await restore(old, target, url, force=False, tell=str)
    await restore(old, target, url, force=True, tell=str)
    for expected in (revisions()[0], head):
        async with api.services.database.transaction() as connection:
            revision = await connection.execute(text("SELECT version_num FROM alembic_version"))
            assert revision.scalar_one() == expected
            assert (await connection.execute(text("SELECT count(*) FROM jobs"))).scalar_one() == 0
        await migrate(api.services.database)
