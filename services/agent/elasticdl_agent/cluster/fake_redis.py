"""The Redis of last resort, in memory: ``python -m elasticdl_agent.cluster.fake_redis <socket>``.

``fakeredis`` knows the commands and the scripts, and this puts a server around it that speaks Redis' protocol on a
unix socket, which only its owner may open. (The server that comes with ``fakeredis`` closes a connection after each
error answer, but an error is an answer like any other: a queue that sends a script for the first time gets one.)

Each connection has a client of its own, so that transactions and the like belong to it; commands run one at a time on
the event loop, as they do in Redis. Commands that block are not for this.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from pathlib import Path
from typing import Any

from elasticdl_runtime.lifecycle import run_service

_VERSION = (6, 2)
_MOST_PARTS = 1_000_000
_MOST_BYTES = 512 * 1024 * 1024


class ProtocolError(Exception):
    """What came is not a command."""


class MemoryServer:
    """Serves one ``fakeredis`` on a unix socket.

    Args:
        path: of the socket; what lies there is replaced.
    """

    def __init__(self, path: Path) -> None:
        import fakeredis

        self._path = path
        self._make = functools.partial(
            fakeredis.FakeRedis, server=fakeredis.FakeServer(version=_VERSION), protocol=2, decode_responses=False
        )
        self._listening: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listens; the socket is its owner's only."""
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._listening = await asyncio.start_unix_server(self._serve, self._path)
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        """Closes the socket and all connections."""
        if self._listening is not None:
            self._listening.close()
            for writer in list(self._writers):
                writer.close()
            await self._listening.wait_closed()
            self._listening = None
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = self._make()
        # Answers go through as they are: the client at the other end makes of them what it wants.
        client.response_callbacks.clear()
        protocol = 2
        self._writers.add(writer)
        try:
            while command := await _read_command(reader):
                if command[0].upper() == b"HELLO":
                    protocol, answer = _hello(command, protocol)
                else:
                    answer = _execute(client, command)
                writer.write(encode(answer, protocol))
                await writer.drain()
        except ProtocolError as error:
            writer.write(encode(error, protocol))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            client.close()


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    """The parts of the next command; none at the end of the connection.

    Raises:
        ProtocolError: it is not an array of strings.
    """
    head = await reader.readline()
    if not head:
        return []
    parts = []
    for _ in range(_length(head, b"*", _MOST_PARTS)):
        size = _length(await reader.readline(), b"$", _MOST_BYTES)
        parts.append((await reader.readexactly(size + 2))[:-2])
    if not parts:
        raise ProtocolError("Protocol error: an empty command")
    return parts


def _length(line: bytes, kind: bytes, most: int) -> int:
    try:
        number = int(line[1:]) if line[:1] == kind else -1
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise ProtocolError(f"Protocol error: expected '{kind.decode()}' and a length")
    return number


def _hello(command: list[bytes], present: int) -> tuple[int, Any]:
    """The version of the protocol from now on, and the answer."""
    wanted = command[1] if len(command) > 1 else str(present).encode()
    if wanted not in (b"2", b"3"):
        return present, ProtocolError("NOPROTO unsupported protocol version")
    about = {b"server": b"redis", b"version": ".".join(map(str, _VERSION)).encode(), b"proto": int(wanted)}
    return int(wanted), {**about, b"mode": b"standalone", b"role": b"master", b"modules": []}


def _execute(client: Any, command: list[bytes]) -> Any:
    """The answer to a command, which may be an error."""
    from redis.exceptions import RedisError

    try:
        return client.execute_command(*command)
    except RedisError as error:
        return error


def encode(answer: Any, protocol: int) -> bytes:
    """An answer as bytes of the protocol, version 2 or 3.

    Raises:
        TypeError: it is nothing that a command answers.
    """
    match answer:
        case None:
            return b"_\r\n" if protocol == 3 else b"$-1\r\n"
        case BaseException():
            return b"-" + _error(answer).encode() + b"\r\n"
        case bool() | int():
            return b":%d\r\n" % answer
        case float():
            return encode(repr(answer).encode(), protocol)
        case str():
            return encode(answer.encode(), protocol)
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(answer), answer)
        case dict():
            flat = [encode(one, protocol) for pair in answer.items() for one in pair]
            head = b"%%%d\r\n" % len(answer) if protocol == 3 else b"*%d\r\n" % len(flat)
            return head + b"".join(flat)
        case list() | tuple() | set() | frozenset():
            return b"*%d\r\n" % len(answer) + b"".join(encode(one, protocol) for one in answer)
        case _:
            raise TypeError(f"no command answers {type(answer).__name__}")


def _error(error: BaseException) -> str:
    """The error's line. Clients tell errors by their first word, which redis-py's exceptions have lost."""
    from redis import exceptions

    words: dict[type[BaseException], str] = {
        exceptions.NoScriptError: "NOSCRIPT",
        exceptions.NoPermissionError: "NOPERM",
        exceptions.OutOfMemoryError: "OOM",
        exceptions.ReadOnlyError: "READONLY",
        exceptions.ExecAbortError: "EXECABORT",
    }
    first = words.get(type(error))
    text = " ".join(str(error).split()) or type(error).__name__
    if first is None:
        first = "" if text.split()[0].isupper() else "ERR"
    return text if not first or text.startswith(first) else f"{first} {text}"


def main() -> int:
    """Serves until told to stop."""

    async def serve(stop: asyncio.Event) -> int:
        server = MemoryServer(Path(sys.argv[1]))
        await server.start()
        try:
            await stop.wait()
        finally:
            await server.stop()
        return 0

    return run_service(serve)


if __name__ == "__main__":
    raise SystemExit(main())
