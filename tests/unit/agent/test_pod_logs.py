"""The log of a pod where the way to its node breaks without a word."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest

from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.pod_logs import PodLog
from elasticdl_core.errors import UnavailableError


@contextlib.asynccontextmanager
async def silent_server(*answers: bytes, deadline_s: float = 30.0) -> AsyncIterator[KubernetesClient]:
    """Answers one request after the other with the beginning of a log, and after it nothing; the last one ends."""
    left = list(answers)
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        is_last = len(left) == 1
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + (left[0] if is_last else left.pop(0)))
        if is_last:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    no_tls: ssl.SSLContext | None = None
    access = KubernetesAccess(f"http://127.0.0.1:{port}", "default", lambda: "", no_tls)
    async with server, KubernetesClient(access, deadline_s=deadline_s) as client:
        yield client
        for writer in writers:
            writer.close()


async def test_a_log_that_stops_in_the_middle_has_a_deadline() -> None:
    async with silent_server(b"a\n", b"", deadline_s=0.3) as client:
        with pytest.raises(UnavailableError, match="does not answer"):
            _ = [piece async for piece in PodLog(client, "/pods/x", lambda: True).read()]


async def test_a_followed_log_is_asked_for_anew_after_a_silence_and_nothing_comes_twice() -> None:
    async with silent_server(b"a\n", b"a\nb\n", b"a\nb\nc\n") as client:
        heard = b""
        log = PodLog(client, "/pods/x", lambda: heard.endswith(b"c\n"), silence_s=0.3)
        async with asyncio.timeout(60), contextlib.aclosing(log.read(follow=True)) as pieces:
            async for piece in pieces:
                heard += piece
                if heard.endswith(b"c\n"):
                    break
    assert heard == b"a\nb\nc\n"


@pytest.mark.parametrize(
    "said",
    [
        b"unable to retrieve container logs for containerd://1f",
        b'failed to try resolving symlinks in path "/var/log/pods/x": no such file or directory',
    ],
)
async def test_what_a_node_says_in_the_place_of_a_log_is_no_log(said: bytes) -> None:
    async with silent_server(said) as client:
        (told,) = [piece async for piece in PodLog(client, "/pods/x", lambda: True).read()]
    assert told.startswith(b"its log is gone")
