"""A small HTTP client for load: many idle streams, and requests at a fixed rate whatever the server's pace is."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CONNECT_S = 30.0
ANSWER_S = 60.0


@dataclass(frozen=True)
class Ask:
    """A kind of request.

    Attributes:
        name: of the kind.
        data: the request as it travels.
        statuses: those that are right.
    """

    name: str
    data: bytes
    statuses: frozenset[int]


@dataclass
class Tally:
    """Outcomes of requests.

    Attributes:
        seconds: from when each was due until its answer was there, by kind.
        wrong: statuses that were not right, with their number.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)


def request_bytes(method: str, path: str, host: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A request as it travels."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def raise_file_limit(wanted: int) -> int:
    """Lets this process have that many files open, if it may; returns how many it has."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


class IdleStream(asyncio.Protocol):
    """A stream that is read and thrown away.

    Attributes:
        begun: done when its first event is there.
        received: bytes so far.
        ended: whether the server ended it.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._head = b""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = 0
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.begun.done():
            self._head += data
            if b"data: " in self._head:
                good = self._head.startswith(b"HTTP/1.1 200 ")
                if good:
                    self.begun.set_result(None)
                else:
                    self.begun.set_exception(RuntimeError(self._head[:500].decode()))
                self._head = b""

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended = True
        if not self.begun.done():
            self.begun.set_exception(RuntimeError(f"a stream ended early: {self._head[:500]!r}"))

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()


async def open_streams(
    host: str, port: int, asks: Sequence[bytes], together: int = 50, say: Callable[[int], None] | None = None
) -> list[IdleStream]:
    """Opens a stream for each request, so many at a time."""
    turns = asyncio.Semaphore(together)
    loop = asyncio.get_running_loop()
    opened = 0

    async def one(data: bytes) -> IdleStream:
        nonlocal opened
        async with turns, asyncio.timeout(CONNECT_S):
            _, stream = await loop.create_connection(lambda: IdleStream(data), host, port)
            await stream.begun
            opened += 1
            if say is not None and opened % 1000 == 0:
                say(opened)
            return stream

    return list(await asyncio.gather(*(one(data) for data in asks)))


class _Connection:
    """A connection that is kept, for one request after the other."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader | None = None

    async def ask(self, data: bytes, head_only: bool) -> int:
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        length = 0
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if length and not head_only and status != 304:
            await self._reader.readexactly(length)
        return status

    def close(self) -> None:
        if self._reader is not None:
            self._writer.close()


async def load(host: str, port: int, asks: Sequence[Ask], per_s: float, connections: int) -> Tally:
    """Sends requests at a fixed rate, each due at its own time; what one waits for its turn counts."""
    tally = Tally()
    due: asyncio.Queue[tuple[float, Ask]] = asyncio.Queue()
    began = time.perf_counter() + 0.1
    for number, ask in enumerate(asks):
        due.put_nowait((began + number / per_s, ask))

    async def work() -> None:
        connection = _Connection(host, port)
        try:
            while not due.empty():
                at, ask = due.get_nowait()
                await asyncio.sleep(max(at - time.perf_counter(), 0.0))
                async with asyncio.timeout(ANSWER_S):
                    status = await connection.ask(ask.data, ask.data.startswith(b"HEAD "))
                tally.seconds.setdefault(ask.name, []).append(time.perf_counter() - at)
                if status not in ask.statuses:
                    kind = f"{ask.name}: {status}"
                    tally.wrong[kind] = tally.wrong.get(kind, 0) + 1
        finally:
            connection.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    return tally
