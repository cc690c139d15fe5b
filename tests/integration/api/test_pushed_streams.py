"""Live streams on real connections: what is told goes straight to them, and nobody holds one for ever."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from elasticdl.client.sse import Message, SseDecoder
from elasticdl_api.main import ApiServer
from elasticdl_api.services import Services
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web.access_log import AccessLog
from elasticdl_api.web.wire import Wire, WireLimits
from tests.integration.api.conftest import ADMIN, Api

pytestmark = pytest.mark.integration
PATIENCE_S = 50.0
SMALL = 8 << 10
"""Bytes that lie between the two ends of a connection whose client is slow."""


@dataclass
class Client:
    """A connection, and what was read of the chunked answer on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    far_end: Callable[[], asyncio.Transport | None]

    def ask(self, path: str, method: str = "GET", **headers: str) -> None:
        given = {"Host": "localhost", "Authorization": f"Bearer {ADMIN}", "Accept": "text/event-stream", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """The next one; nothing at the end."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def rest(self) -> bytes:
        found = b""
        while piece := await self.chunk():
            found += piece
        return found

    async def until(self, text: bytes) -> bytes:
        found = b""
        while text not in found:
            found += await self.chunk()
        return found


@contextlib.asynccontextmanager
async def serving(api: Api) -> AsyncIterator[Callable[..., Any]]:
    """Serves an application, hears its notifications, and gives what connects to it."""
    config = uvicorn.Config(
        api.app,
        host="127.0.0.1",
        port=0,
        http=functools.partial(Wire, WireLimits(30.0, 100)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    server = ApiServer(config)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(api.services.wakeups.run())]
    async with asyncio.timeout(PATIENCE_S), contextlib.AsyncExitStack() as stack:
        await until_true(lambda: server.started and api.services.wakeups.listening)

        async def connect(*, slow: bool = False) -> Client:
            own = socket.socket()
            if slow:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            own.setblocking(False)
            await asyncio.get_running_loop().sock_connect(own, server.servers[0].sockets[0].getsockname())
            reader, writer = await asyncio.open_connection(sock=own, limit=SMALL if slow else 1 << 20)
            stack.callback(writer.close)
            far_end = functools.partial(_far_end, server, own.getsockname())
            if slow:
                far = await until_true(far_end)
                far.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
            return Client(reader, writer, far_end)

        try:
            yield connect
        finally:
            api.services.stop()
            server.should_exit = True
            tasks[1].cancel()
            await asyncio.wait(tasks)


def _far_end(server: ApiServer, address: Any) -> asyncio.Transport | None:
    found = (one.transport for one in server.server_state.connections if isinstance(one, Wire))
    return next((one for one in found if one.get_extra_info("peername") == address), None)


async def until_true(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := look()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return found


def messages(text: bytes) -> list[Message]:
    return list(SseDecoder().feed(text))


async def test_all_of_it_comes_in_order_and_the_connection_goes_on(api: Api) -> None:
    job_id, master = await api.running()
    async with serving(api) as connect:
        client = await connect()
        client.ask(f"/v1/jobs/{job_id}/events")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        text = await client.until(b"event: status")
        for number in range(20):
            await master.post("/events", events=[{"kind": "note", "message": f"note {number}"}])
        text += await client.until(b"note 19")
        await master.post("/state", to="SUCCEEDED", reason="done")
        text += await client.rest()
        found = messages(text)
        assert found[-1].type == "end"
        notes = [json.loads(one.data)["message"] for one in found if one.type == "event"]
        assert [note for note in notes if note.startswith("note ")] == [f"note {number}" for number in range(20)]
        client.ask("/v1/version", Accept="*/*", Connection="close")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")


async def test_silence_is_filled(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_api.feeds.push.HEARTBEAT_S", 0.01)
    async with serving(api) as connect:
        client = await connect()
        client.ask("/v1/events")
        await client.head()
        for _ in range(3):
            await client.until(b": alive\n\n")


@pytest.mark.parametrize("behind", ["", "/v1/version", "/v1/events"])
async def test_the_slot_of_one_who_left_comes_back(api: Api, behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another request waits behind the stream: the server is told of the end of that one only."""
    monkeypatch.setattr("elasticdl_api.feeds.push.HEARTBEAT_S", 0.05)
    async with serving(api) as connect:
        client = await connect()
        client.ask("/v1/events")
        await client.until(b"event: reset") if (await client.head()) else None
        assert api.services.stream_slots.open == 1
        if behind:
            client.ask(behind)
            await client.writer.drain()
        client.writer.close()
        await until_true(lambda: api.services.stream_slots.open == 0)


async def test_a_head_has_no_body(api: Api) -> None:
    async with serving(api) as connect:
        client = await connect()
        client.ask("/v1/events", "HEAD")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        await until_true(lambda: api.services.stream_slots.open == 0)
        await api.submit()
        client.ask("/v1/version", Accept="*/*")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")


async def _too_much(api: Api, master: Any, ended: Callable[[], bool]) -> int:
    """Tells more than any queue holds; returns the number of messages."""
    told = 0
    while not ended() and told < 1000:
        notes = [{"kind": "note", "message": f"{told + number} {'x' * 50_000}"} for number in range(10)]
        assert (await master.post("/events", events=notes)).status_code == 204
        told += len(notes)
        await asyncio.sleep(0.06)
    return told


async def test_who_is_too_slow_is_let_go_and_misses_nothing(api: Api) -> None:
    job_id, master = await api.running()
    async with serving(api) as connect:
        client = await connect(slow=True)
        client.ask(f"/v1/jobs/{job_id}/events")
        await client.head()
        feed = await until_true(lambda: next(iter(api.services.job_feeds._feeds.values()), None))
        (follower,) = await until_true(lambda: list(feed._followers))
        told = await _too_much(api, master, lambda: follower.overrun)
        text = await client.rest()
        assert b": too slow" in text
        seen = [one for one in messages(text) if one.type == "event"]
        again = await connect()
        again.ask(f"/v1/jobs/{job_id}/events", **{"Last-Event-ID": str(seen[-1].id)})
        await again.head()
        await master.post("/state", to="SUCCEEDED", reason="done")
        seen += [one for one in messages(await again.rest()) if one.type == "event"]
    ids = [json.loads(one.data)["id"] for one in seen]
    assert ids == sorted(set(ids))
    notes = [json.loads(one.data)["message"].split()[0] for one in seen if json.loads(one.data)["kind"] == "note"]
    assert notes == [str(number) for number in range(told)]


async def test_who_takes_nothing_is_cut_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_api.web.wire.STALL_S", 0.2)
    job_id, master = await api.running()
    async with serving(api) as connect:
        client = await connect(slow=True)
        client.ask(f"/v1/jobs/{job_id}/events")
        await client.head()
        await until_true(lambda: api.services.stream_slots.open == 1)
        await _too_much(api, master, lambda: api.services.stream_slots.open == 0)
        await until_true(lambda: api.services.stream_slots.open == 0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.rest()


async def test_an_answer_that_nobody_takes_is_cut_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: the connection would be held for ever."""
    monkeypatch.setattr("elasticdl_api.web.wire.STALL_S", 0.2)
    job_id, master = await api.running()
    notes = [{"kind": "note", "message": "x" * 100_000} for _ in range(30)]
    assert (await master.post("/events", events=notes)).status_code == 204
    async with serving(api) as connect:
        client = await connect(slow=True)
        client.ask(f"/v1/jobs/{job_id}/events?limit=100", Accept="application/json")
        head = await client.head()
        assert int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) > 2_000_000
        await until_true(lambda: client.far_end() is None)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.readexactly(3_000_000)


async def test_the_log_counts_what_was_pushed(api: Api, tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log")
    services = api.services
    logged = Api(
        Services(services.settings, services.database, api.launcher, Wakeups(services.database), access_log=log),
        api.launcher,
    )
    job_id, master = await api.running()
    async with serving(logged) as connect:
        client = await connect()
        client.ask(f"/v1/jobs/{job_id}/events")
        await client.head()
        text = await client.until(b"event: status")
        await master.post("/state", to="SUCCEEDED", reason="done")
        text += await client.rest()
    logged.services.examiners.close()
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert line["bytes"] == len(text)
