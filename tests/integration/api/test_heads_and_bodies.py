"""Heads and bodies as bytes on a socket: refused before they are read, and without a traceback in the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from elasticdl_runtime.lifecycle import within
from tests.integration.api.conftest import ADMIN
from tests.integration.api.test_process import _address, _environment, _process

pytestmark = pytest.mark.integration
GOOD = f"Authorization: Bearer {ADMIN}\r\n"
JSON = "Content-Type: application/json\r\n"
ZIP = "/bundles/sha256:" + "0" * 64
LARGE = 200 << 20


@dataclass
class Served:
    """A running api.

    Attributes:
        address: of its socket.
        log: the lines that it has written.
    """

    address: str
    log: list[bytes] = field(default_factory=list)

    async def send(self, *pieces: str | bytes, hang_up: bool = False) -> bytes:
        """Sends bytes; returns all that comes back until the api closes the connection."""
        data = [piece if isinstance(piece, bytes) else piece.encode("latin-1") for piece in pieces]
        return await asyncio.to_thread(self._send, data, hang_up)

    def _send(self, pieces: list[bytes], hang_up: bool) -> bytes:
        place = urlsplit(self.address)
        answer = bytearray()
        with (
            socket.create_connection((place.hostname, place.port), timeout=60) as connection,
            contextlib.suppress(ConnectionError),  # closed by the api; what it sent before is still there to be read
        ):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    connection.sendall(piece)
            while not hang_up and (received := connection.recv(1 << 16)):
                answer += received
        return bytes(answer)


@asynccontextmanager
async def _served(database_url: str, folder: Path) -> AsyncIterator[Served]:
    async with _process(_environment(database_url, folder)) as process:
        served = Served(await within(_address(process), 60))
        errors = process.stderr
        assert errors is not None

        async def read() -> None:
            async for line in errors:
                served.log.append(line)

        reading = asyncio.create_task(read())
        try:
            yield served
        finally:
            process.terminate()
            await within(process.wait(), 60)
            await reading


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


async def test_heads_and_bodies(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with _served(database_url, folder) as api:
        head = "Host: localhost\r\n"
        put = f"PUT {ZIP} HTTP/1.1\r\n{head}"
        post = f"POST /jobs HTTP/1.1\r\n{head}"
        chunk = f"{1 << 16:x}\r\n{'x' * (1 << 16)}\r\n"
        cases: list[tuple[str, set[int], tuple[str | bytes, ...]]] = [
            ("no token, a large body to come", {401}, (f"{put}Content-Length: {LARGE}\r\n\r\n",)),
            ("a large upload to come", {413}, (f"{put}{GOOD}Content-Length: {LARGE}\r\n\r\n",)),
            ("a large specification to come", {413}, (f"{post}{GOOD}{JSON}Content-Length: {LARGE}\r\n\r\n",)),
            ("chunks without a token", {401}, (f"{put}Transfer-Encoding: chunked\r\n\r\n", chunk)),
            ("chunks without an end", {413}, (f"{post}{GOOD}{JSON}Transfer-Encoding: chunked\r\n\r\n", chunk * 17)),
            ("a length that is no number", {400}, (f"{post}{GOOD}Content-Length: ten\r\n\r\n",)),
            ("a negative length", {400}, (f"{post}{GOOD}Content-Length: -1\r\n\r\n",)),
            ("two lengths", {400}, (f"{post}{GOOD}Content-Length: 1\r\nContent-Length: 2\r\n\r\n",)),
            ("a length of many digits", {400, 413}, (f"{post}{GOOD}Content-Length: {'9' * 5000}\r\n\r\n",)),
            ("a chunk of no size", {400}, (f"{post}{GOOD}{JSON}Transfer-Encoding: chunked\r\n\r\nxyz\r\n",)),
            ("an unknown encoding", {400, 501}, (f"{post}{GOOD}Transfer-Encoding: zip\r\n\r\n",)),
            ("a very long header", {400, 431}, (f"GET /jobs HTTP/1.1\r\n{head}X: {'x' * 200_000}\r\n\r\n",)),
            ("many headers", {400, 431}, (f"GET /jobs HTTP/1.1\r\n{head}{'X: x' * 50_000}\r\n\r\n",)),
            ("a very long path", {400, 414, 431}, (f"GET /{'x' * 200_000} HTTP/1.1\r\n{head}\r\n",)),
            ("no HTTP", {400}, (b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n",)),
            ("a NUL in a header", {400}, (f"GET /jobs HTTP/1.1\r\n{head}X: \0\r\n\r\n",)),
            ("no host", {400}, ("GET /jobs HTTP/1.1\r\n\r\n",)),
            ("a body on a GET", {401}, (f"GET /jobs HTTP/1.1\r\n{head}Content-Length: {LARGE}\r\n\r\n",)),
            (
                "a token of bytes",
                {401},
                (f"GET /jobs HTTP/1.1\r\n{head}Authorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n",),
            ),
        ]
        answers = [(name, statuses, await api.send(*pieces)) for name, statuses, pieces in cases]
        assert [(name, answer[:300]) for name, statuses, answer in answers if _status(answer) not in statuses] == []
        for name, _, answer in answers:
            if b"application/problem+json" in answer:
                assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["fix"], name
        for half in (f"{put}{GOOD}Content-Length: 1000\r\n\r\nPK", f"{post}{GOOD}{JSON}Content-Length: 9\r\n\r\n{{"):
            await api.send(half, hang_up=True)
        async with httpx.AsyncClient(base_url=api.address, trust_env=False, timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {ADMIN}"
            assert (await http.get("/jobs")).json()["jobs"] == []
    log = b"".join(api.log).decode()
    assert "Traceback" not in log, log
    assert '"level": "error"' not in log, log
    assert not list((folder / "bundles").glob(".upload-*"))
