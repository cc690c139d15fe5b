"""Heads that come slowly, and connections of strangers, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elasticdl_runtime.lifecycle import within
from tests.integration.api.conftest import ADMIN
from tests.integration.api.test_process import _address, _environment, _process

pytestmark = pytest.mark.integration
GOOD = f"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n"


@dataclass
class Served:
    """A running api, and what closes the connections to it."""

    host: str
    port: int
    stack: contextlib.AsyncExitStack

    async def line(self) -> Line:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self.stack.push_async_callback(_close, writer)
        return Line(reader, writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def _served(database_url: str, folder: Path, **settings: str) -> AsyncIterator[Served]:
    async with _process(_environment(database_url, folder, **settings)) as process:
        place = urlsplit(await within(_address(process), 60))
        assert place.hostname and place.port
        async with contextlib.AsyncExitStack() as stack:
            yield Served(place.hostname, place.port, stack)


class Line:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self) -> int:
        """Sends a whole request; returns its status."""
        self.writer.write(f"{GOOD}\r\n".encode())
        async with asyncio.timeout(60):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await self._reader.readexactly(length)
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """All that comes until the api closes, also if it resets the connection then."""
        found = b""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(1 << 16):
                    found += piece
        return found


async def test_a_head_that_comes_slowly_is_refused(database_url: str, tmp_path: Path) -> None:
    async with _served(database_url, tmp_path / "data", ELASTICDL_API_HEAD_SECONDS="0.5") as api:
        silent, slow, later = [await api.line() for _ in range(3)]
        slow.writer.write(GOOD.encode())
        assert await later.ask() == 200
        later.writer.write(b"GET /v1/ver")

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    slow.writer.write(b"X: y\r\n")
                    await slow.writer.drain()
                    await asyncio.sleep(0.05)

        # Read as it comes: whoever writes on is answered by a reset, after which a reader gives nothing out.
        answers = [asyncio.create_task(line.rest()) for line in (silent, slow, later)]
        dripping = asyncio.create_task(drip())
        nothing, *refusals = await asyncio.gather(*answers)
        assert nothing == b""
        for refusal in refusals:
            head, _, body = refusal.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert json.loads(body)["code"] == "too_slow"
            assert json.loads(body)["fix"]
        dripping.cancel()
        await asyncio.wait({dripping})


async def test_strangers_are_bounded_and_holders_of_tokens_are_none(database_url: str, tmp_path: Path) -> None:
    async with _served(database_url, tmp_path / "data", ELASTICDL_API_MAX_STRANGERS="3") as api:
        known = []
        for _ in range(5):
            line = await api.line()
            assert await line.ask() == 200
            known.append(line)
        strangers = [await api.line() for _ in range(3)]
        refused = await (await api.line()).rest()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "too_many_requests"
        assert [await line.ask() for line in known] == [200] * 5
        assert await strangers[0].ask() == 200  # room for another one
        assert await (await api.line()).ask() == 200


async def test_requests_in_one_piece_are_answered_in_turn(database_url: str, tmp_path: Path) -> None:
    async with _served(database_url, tmp_path / "data") as api:
        line = await api.line()
        line.writer.write(f"{GOOD}\r\n{GOOD}\r\n{GOOD}Connection: close\r\n\r\n".encode())
        assert (await line.rest()).count(b"HTTP/1.1 200 ") == 3
