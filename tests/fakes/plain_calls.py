"""A connection to a server's socket of calls that sends bytes as they are."""

from __future__ import annotations

import asyncio
import json

from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.beside import connect_beside
from elasticdl_runtime.rpc.framing import Frame

_DEADLINE_S = 60.0


def greeting(method: str = "Steps", token: str = "good") -> bytes:
    """What a client says first."""
    return Frame(json.dumps({"method": method, "token": token}).encode()).encode()


class Plain:
    """A connection to the socket of calls, and no manners."""

    def __init__(self, address: str) -> None:
        connection = connect_beside(address)
        assert connection is not None
        self.connection = connection
        self.loop = asyncio.get_running_loop()

    async def send(self, *messages: bytes) -> None:
        """Sends messages, each behind its length."""
        for message in messages:
            await self.loop.sock_sendall(self.connection, len(message).to_bytes(8, "little") + message)

    async def receive(self) -> bytes:
        """The next message; nothing at the end."""
        return await within(self._next(), _DEADLINE_S)

    async def _next(self) -> bytes:
        head = await self._exactly(8)
        return await self._exactly(int.from_bytes(head, "little")) if head else b""

    async def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = await self.loop.sock_recv(self.connection, count - len(got))
            if not more:
                return b""
            got += more
        return got

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()
