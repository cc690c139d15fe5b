"""The asyncio client against an API on loopback; the blocking one is made from it."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elasticdl.client import AsyncClient, Client
from elasticdl_core.errors import ConflictError, NotFoundError
from tests.fakes.api import TOKEN, FakeApi, Fault, make_job, sse
from tests.unit.client.conftest import EAGER

pytestmark = pytest.mark.unit


@pytest.fixture
async def aio(api: FakeApi) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(api.url, TOKEN, retry=EAGER) as client:
        yield client


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(method).parameters) for name, method in methods if name[0] != "_"}

    assert surface(AsyncClient) == surface(Client)


def test_the_blocking_client_is_what_the_asyncio_client_makes() -> None:
    tool = Path(__file__).resolve().parents[3] / "tools" / "gen_blocking_client.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_job_is_submitted_changed_and_deleted(api: FakeApi, aio: AsyncClient) -> None:
    api.faults.append(Fault("POST", "/jobs", 0))
    job = await aio.submit(model_def="m.f", training_data="/d", model_bundle="sha256:" + "0" * 64)
    assert (await aio.scale(job.id, max_workers=2)).max_workers == 2
    assert (await aio.suspend(job.id)).state == "SUSPENDED"
    assert (await aio.resume(job.id)).state == "QUEUED"
    assert (await aio.cancel(job.id)).state == "CANCELLED"
    assert (await aio.wait(job.id)).state == "CANCELLED"
    assert [job.id async for job in aio.iterate(page_size=1)] == [job.id]
    assert (await aio.cluster())["slots"]["total"] == 4
    await aio.delete(job.id)
    with pytest.raises(NotFoundError):
        await aio.get(job.id)


async def test_the_scheduler_is_asked(api: FakeApi, aio: AsyncClient) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.explanations["a-1"] = {"reason": {"code": "at_max"}}
    api.plans, api.comparison = [{"policy": "fair"}], {"jobs": []}
    api.decisions = [{"sequence": 3}, {"sequence": 2}, {"sequence": 1}]
    assert (await aio.explain("a-1"))["reason"]["code"] == "at_max"
    assert (await aio.plan())["policy"] == "fair"
    assert (await aio.what_if(cancel=["a-1"], slots=3)) == {"jobs": []}
    assert api.requests("POST", "/scheduler/what-if")[0].json() == {"cancel": ["a-1"], "slots": 3}
    page = await aio.decisions(job="a-1", since=datetime(2026, 1, 2, tzinfo=UTC), full=True, limit=2)
    assert [one["sequence"] for one in page["decisions"]] == [3, 2]
    asked = api.requests("GET", "/scheduler/decisions")[0].query
    assert {name: asked[name] for name in ("job", "full", "limit")} == {"job": "a-1", "full": "true", "limit": "2"}
    assert datetime.fromisoformat(asked["since"]) == datetime(2026, 1, 2, tzinfo=UTC)
    assert (await aio.decisions(limit=2, cursor=page["next_cursor"]))["decisions"] == [{"sequence": 1}]
    with pytest.raises(NotFoundError):
        await aio.explain("nobody")


async def test_a_broken_stream_is_resumed(api: FakeApi, aio: AsyncClient) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.streams["a-1"] = [
        [sse("event", {"kind": "k", "message": "one"}, 1), None],
        [sse("event", {"kind": "k", "message": "two"}, 2), sse("end", {})],
    ]
    messages = [update.event.message async for update in aio.updates("a-1") if update.event]
    assert [job.id async for job in aio.follow("a-1")] == ["a-1", "a-1"]
    assert messages == ["one", "two"]
    assert api.requests("GET", "/jobs/a-1/events")[1].headers["last-event-id"] == "1"


async def test_logs_are_followed_by_line(api: FakeApi, aio: AsyncClient) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "one line\nanother\n"
    assert [line async for line in aio.follow_logs("a-1", tail=5)] == ["one line", "another"]


@pytest.mark.parametrize("cut", [[6], [6, None]])
async def test_a_log_is_followed_until_the_job_is_over(api: FakeApi, aio: AsyncClient, cut: list[int | None]) -> None:
    """It ended with 0 when the API went (``down``), and as broken when the connection did."""
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "grün\nsecond"
    api.log_cuts = [[3], cut]
    assert [line async for line in aio.follow_logs("a-1")] == ["grün", "second"]
    asked = [seen.query.get("offset") for seen in api.requests("GET", "/jobs/a-1/logs")]
    assert asked == [None, "3", "9"]


async def test_the_end_of_a_log_is_followed_until_the_job_is_over(api: FakeApi, aio: AsyncClient) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "first\nsecond\n"
    api.log_cuts = [[9]]
    assert [line async for line in aio.follow_logs("a-1", tail=5)] == ["first", "first", "second"]
    again = api.requests("GET", "/jobs/a-1/logs")[1].query
    assert "tail" not in again and again["since"].endswith("+00:00")


async def test_a_damaged_download_is_refused_and_leaves_nothing(
    api: FakeApi, aio: AsyncClient, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    api.jobs["a-1"] = make_job("a-1", artifacts=[{"name": "model.keras", "path": "p", "size": 5, "sha256": digest}])
    api.files["a-1", "model.keras"] = (b"wrong", "application/octet-stream")
    with pytest.raises(ConflictError, match="SHA-256"):
        await aio.download("a-1", tmp_path)
    assert list(tmp_path.iterdir()) == []
    api.files["a-1", "model.keras"] = (b"right", "application/octet-stream")
    assert await aio.download("a-1", tmp_path / "new" / "folder", ["model.keras"]) == [
        tmp_path / "new" / "folder" / "model.keras"
    ]
    assert (tmp_path / "new" / "folder" / "model.keras").read_bytes() == b"right"
    with pytest.raises(NotFoundError, match=r"it has: model\.keras"):
        await aio.download("a-1", tmp_path, ["model.h5"])


async def test_an_artifact_cannot_leave_its_directory(api: FakeApi, aio: AsyncClient, tmp_path: Path) -> None:
    for name in ("../evil", "/etc/evil", "a/../../evil"):
        api.jobs["a-1"] = make_job("a-1", artifacts=[{"name": name, "size": 1, "sha256": ""}])
        with pytest.raises(ConflictError, match="leads out of"):
            await aio.download("a-1", tmp_path / "here")
