"""Live streams: read once for all who follow, resumed without loss, bounded in number and in what waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from elasticdl.client.sse import Message, SseDecoder
from elasticdl_api.feeds.feed import QUEUED_MOST, REMEMBERED
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web import credential_watch
from elasticdl_api.web.representations import wants_events
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from tests.integration.api.conftest import ADMIN, Api

pytestmark = pytest.mark.integration
PATIENCE_S = 50.0


class Stream:
    """A request whose response is read as it comes; the transport of httpx waits for the end of it."""

    def __init__(
        self, api: Api, path: str, *, token: str = f"Bearer {ADMIN}", last_event_id: str = "", slow: bool = False
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.allowed = asyncio.Event()
        if not slow:
            self.allowed.set()
        self._app = api.app
        self._decoder = SseDecoder()
        self._text = b""
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._started = asyncio.Event()
        self.comment = asyncio.Event()
        self._gone = asyncio.Event()
        headers = {"host": "api", "authorization": token, "accept": "text/event-stream"}
        if last_event_id:
            headers["last-event-id"] = last_event_id
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "server": ("api", 80),
            "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    async def __aenter__(self) -> Stream:
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        async with asyncio.timeout(PATIENCE_S):
            await self._started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        self.allowed.set()
        async with asyncio.timeout(PATIENCE_S):
            await self._task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._started.set()
            return
        await self.allowed.wait()
        self._text += message.get("body", b"")
        if b": alive\n\n" in self._text:
            self.comment.set()
        for one in self._decoder.feed(message.get("body", b"")):
            self._messages.put_nowait(one)
        if not message.get("more_body"):
            self.ended = True
            self._messages.put_nowait(None)

    @property
    def text(self) -> str:
        return self._text.decode()

    @property
    def retry_s(self) -> float | None:
        return self._decoder.retry_s

    async def next(self) -> Message | None:
        async with asyncio.timeout(PATIENCE_S):
            return await self._messages.get()

    async def until(self, kind: str) -> list[Message]:
        """The messages up to the first of that kind, with it."""
        found: list[Message] = []
        while not found or found[-1].type != kind:
            message = await self.next()
            assert message is not None, f"no {kind} in {self.text}"
            found.append(message)
        return found

    async def rest(self) -> list[Message]:
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        return found


def data(message: Message) -> Any:
    return json.loads(message.data)


@contextlib.asynccontextmanager
async def listening(api: Api) -> AsyncIterator[None]:
    task = asyncio.create_task(api.services.wakeups.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def limited(api: Api, **changes: Any) -> Api:
    settings = ApiSettings.model_validate({**api.services.settings.model_dump(), **changes})
    database = api.services.database
    return Api(Services(settings, database, api.launcher, Wakeups(database)), api.launcher)


class Queries:
    """Counts the uses of a database."""

    def __init__(self, database: Database, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("transaction", "reading"):
            patch.setattr(database, name, self._counted(getattr(database, name)))

    def _counted(self, begin: Any) -> Any:
        def counted() -> Any:
            self.count += 1
            return begin()

        return counted


async def test_idle_streams_cost_no_queries_of_their_own(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 idle streams took two queries a second each, and starved everybody else."""
    job_id, master = await api.running()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(listening(api))
        streams = [await stack.enter_async_context(Stream(api, f"/jobs/{job_id}/events")) for _ in range(60)]
        for stream in streams:
            await stream.until("status")
        queries = Queries(api.services.database, monkeypatch)
        for number in range(3):
            before = queries.count
            await master.heartbeat({"progress": {"records_done": number + 1}})
            for stream in streams:
                told = await stream.until("status")
                assert data(told[-1])["status"] == {"progress": {"records_done": number + 1}}
            # The heartbeat's own, and two for each of the looks that there was time for.
            assert queries.count - before < 20


async def test_a_stream_says_when_to_come_again_and_that_it_lives(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_api.feeds.streams.HEARTBEAT_S", 0.01)
    job_id = await api.submit()
    async with Stream(api, f"/jobs/{job_id}/events") as stream:
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        assert "content-length" not in stream.headers
        await stream.until("status")
        async with asyncio.timeout(PATIENCE_S):
            await stream.comment.wait()
        assert stream.retry_s == 2.0


async def test_a_stream_without_notifications_still_sees_everything(api: Api) -> None:
    job_id, master = await api.running()
    async with Stream(api, f"/jobs/{job_id}/events") as stream:
        await stream.until("status")
        await master.post("/events", events=[{"kind": "note", "message": "hello"}])
        assert data((await stream.until("event"))[-1])["message"] == "hello"
        await master.post("/state", to="SUCCEEDED", reason="done")
        rest = await stream.rest()
        assert [message.type for message in rest] == ["event", "status", "end"]
        assert stream.ended


@pytest.mark.parametrize("after", [0, 3, REMEMBERED, 2 * REMEMBERED])
async def test_a_stream_goes_on_from_wherever_it_was(api: Api, after: int) -> None:
    """Also where that is forgotten by the feed, and has to be read from the database."""
    job_id, master = await api.running()
    notes = [{"kind": "note", "message": f"note {number}"} for number in range(3 * REMEMBERED)]
    assert (await master.post("/events", events=notes)).status_code == 204
    listed = (await api.http.get(f"/jobs/{job_id}/events?limit=1000")).json()
    async with Stream(api, f"/jobs/{job_id}/events") as first:
        await first.until("status")
        last = str(listed[after]["id"])
        async with Stream(api, f"/jobs/{job_id}/events", last_event_id=last) as stream:
            await master.post("/events", events=[{"kind": "note", "message": "late"}])
            await master.post("/state", to="SUCCEEDED", reason="done")
            rest = await stream.rest()
    ids = [data(message)["id"] for message in rest if message.type == "event"]
    assert ids[: len(listed) - after - 1] == [event["id"] for event in listed[after + 1 :]]
    assert ids == sorted(set(ids))
    assert [data(message)["kind"] for message in rest if message.type == "event"][-2:] == ["note", "state"]


async def test_an_id_of_before_a_restore_skips_no_event(api: Api) -> None:
    job_id, _ = await api.running()
    listed = [one["id"] for one in (await api.http.get(f"/jobs/{job_id}/events")).json()]
    for last, expected in ((listed[-1], []), (listed[-1] + 1000, listed)):
        async with Stream(api, f"/jobs/{job_id}/events", last_event_id=str(last)) as stream:
            told = [int(one.id) for one in await stream.until("status") if one.type == "event" and one.id]
            assert told == expected


async def test_streams_end_with_the_token_that_opened_them(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_watch, "RECHECK_S", 0.05)
    monkeypatch.setattr(api.launcher, "logs", _endless_log)
    job_id, _ = await api.running()
    stays = await api.token("default", "read", name="stays")
    ends = await api.token("default", "read", name="ends")
    paths = (f"/jobs/{job_id}/events", "/events", f"/jobs/{job_id}/logs?follow=true&role=master")
    async with contextlib.AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(Stream(api, path, token=headers["Authorization"]))
            for headers in (stays, ends)
            for path in paths
        ]
        await api.http.delete("/tokens/ends")
        for stream in opened[len(paths) :]:
            await stream.rest()
            assert stream.ended
        assert not any(stream.ended for stream in opened[: len(paths)])


async def _endless_log(*_: object, **__: object) -> AsyncGenerator[bytes]:
    yield b"a line\n"
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("application/json;q=0.5, text/event-stream", True),
        ("application/json, text/event-stream;q=0.5", False),
        ("text/event-stream;q=0, */*", False),
        ("x-text/event-stream", False),
        ("*/*", False),
    ],
)
def test_who_asks_for_events(accept: str, streams: bool) -> None:
    assert wants_events(accept) is streams


async def test_who_is_too_slow_is_let_go_and_misses_nothing(api: Api) -> None:
    job_id, master = await api.running()
    seen: list[int] = []
    async with listening(api), Stream(api, f"/jobs/{job_id}/events") as quick:
        await quick.until("status")
        async with Stream(api, f"/jobs/{job_id}/events", slow=True) as slow:
            told = 0
            for block in range(3):
                many = [{"kind": "note", "message": f"{block} {number}"} for number in range(QUEUED_MOST // 2)]
                await master.post("/events", events=many)
                while told < (block + 1) * len(many):
                    told += data((await quick.until("event"))[-1])["kind"] == "note"
            slow.allowed.set()
            seen += [data(message)["id"] for message in await slow.rest() if message.type == "event"]
            assert ": too slow" in slow.text
        again = {"last_event_id": str(seen[-1])} if seen else {}
        async with Stream(api, f"/jobs/{job_id}/events", **again) as stream:  # type: ignore[arg-type]
            await master.post("/state", to="SUCCEEDED", reason="done")
            seen += [data(message)["id"] for message in await stream.rest() if message.type == "event"]
    listed: list[int] = []
    while page := (
        await api.http.get(f"/jobs/{job_id}/events?limit=1000&after={listed[-1] if listed else 0}")
    ).json():
        listed += [event["id"] for event in page]
    assert seen == listed


async def test_a_deleted_job_ends_its_streams(api: Api) -> None:
    job_id = await api.submit()
    async with listening(api), Stream(api, f"/jobs/{job_id}/events") as stream:
        await stream.until("status")
        async with api.services.database.transaction() as connection:
            await connection.execute(t.jobs.delete().where(t.jobs.c.id == job_id))
        assert data((await stream.until("end"))[-1])["state"] == "DELETED"


async def test_all_jobs_on_one_stream(api: Api) -> None:
    before = await api.submit()
    stranger = (await api.token("team-b", "read"))["Authorization"]
    async with listening(api), Stream(api, "/events") as stream, Stream(api, "/events", token=stranger) as other:
        begin = await stream.until("cluster")
        assert [message.type for message in begin] == ["reset", "cluster"]
        assert data(begin[-1])["jobs"] == {"QUEUED": 1}
        assert data((await other.until("cluster"))[-1])["jobs"] == {}
        job_id, master = await api.running()
        states = []
        while "RUNNING" not in states:
            message = (await stream.until("job"))[-1]
            assert data(message)["id"] == job_id
            assert "spec" not in data(message)
            states.append(data(message)["state"])
        await master.heartbeat({"progress": {"records_done": 7}})
        message = (await stream.until("job"))[-1]
        assert data(message)["status"] == {"progress": {"records_done": 7}}
        await api.http.post(f"/jobs/{before}/cancel")
        message = (await stream.until("job"))[-1]
        assert (data(message)["id"], data(message)["state"]) == (before, "CANCELLED")
        last = message.id
        assert (await api.http.delete(f"/jobs/{before}")).status_code == 204
        assert data((await stream.until("deleted"))[-1]) == {"id": before}
        async with Stream(api, "/events", last_event_id=last) as again:
            assert [message.type for message in await again.until("deleted")] == ["deleted"]
        async with Stream(api, "/events", last_event_id="0123456789ab-7") as unknown:
            assert (await unknown.until("cluster"))[0].type == "reset"
        foreign = [message.type for message in other._messages._queue]  # type: ignore[attr-defined]
        assert "job" not in foreign
        assert "deleted" not in foreign


async def test_the_list_as_a_stream_has_to_be_asked_for(api: Api) -> None:
    refused = await api.http.get("/events")
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert "text/event-stream" in refused.json()["fix"]


async def test_streams_of_a_token_are_limited(api: Api) -> None:
    token = (await api.token("team-b", "read"))["Authorization"]
    one = limited(api, max_streams_per_token=2, max_streams=4)
    async with Stream(one, "/events", token=token), Stream(one, "/events") as mine:
        async with Stream(one, "/events", token=token):
            async with Stream(one, "/events", token=token) as refused:
                assert (refused.status, refused.headers["retry-after"]) == (429, "2")
                assert json.loads(refused.text)["code"] == "too_many_requests"
            async with Stream(one, "/events"), Stream(one, "/events") as full:
                assert (full.status, full.headers["retry-after"]) == (503, "2")
        assert one.services.stream_slots.open == 2
        async with Stream(one, "/events", token=token) as stream:
            assert stream.status == 200
        assert mine.status == 200
    assert one.services.stream_slots.open == 0


async def test_streams_end_when_the_api_stops(api: Api) -> None:
    job_id = await api.submit()
    async with Stream(api, f"/jobs/{job_id}/events") as one, Stream(api, "/events") as all_jobs:
        await one.until("status")
        api.services.stop()
        assert "end" not in [message.type for message in await one.rest()]
        await all_jobs.rest()
        assert one.ended
        assert all_jobs.ended


async def test_a_job_that_cannot_be_told_ends_its_own_streams_only(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = await api.submit(name="good"), await api.submit(name="bad")
    tell = api.services.job_feeds._tell

    async def fail(feed: Any, *arguments: Any) -> None:
        if feed.job_id == bad and feed.begun.is_set():
            raise ValueError("a row that nobody can read")
        await tell(feed, *arguments)

    async with (
        listening(api),
        Stream(api, f"/jobs/{bad}/events") as one,
        Stream(api, f"/jobs/{good}/events") as other,
    ):
        await one.until("status")
        await other.until("status")
        monkeypatch.setattr(api.services.job_feeds, "_tell", fail)
        for job_id in (bad, good):
            await api.http.patch(f"/jobs/{job_id}", json={"priority": 3})
        assert "end" not in [message.type for message in await one.rest()]
        assert data((await other.until("status"))[-1])["priority"] == 3
