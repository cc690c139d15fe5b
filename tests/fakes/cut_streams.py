"""Streams of a gRPC service that are cut by their caller, and what that leaves in the process that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil

from elasticdl_proto.v1 import agent_pb2, master_pb2, ps_pb2
from tests.fakes.cuts import settled

MORE_BYTES = 16 << 20
"""What later rounds of as many cuts may take of memory together, once allocators have what they keep."""
ROUNDS = 3


def streaming(name: str) -> set[str]:
    """The methods of a service in which something is sent piece by piece."""
    found = [file.DESCRIPTOR.services_by_name.get(name) for file in _FILES]
    (service,) = [one for one in found if one is not None]
    return {m.name for m in service.methods if m.client_streaming or m.server_streaming}


_FILES: Sequence[Any] = (agent_pb2, master_pb2, ps_pb2)


class CutStreams:
    """Opens streams of a service in this process and cuts them.

    Args:
        address: of the service.
        package: its full name.
        token: that opens it.
        calls: by method, the messages that are sent, and whether the call answers with a stream.
    """

    def __init__(self, address: str, package: str, token: str, calls: Mapping[str, tuple[list[bytes], bool]]) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._package = package
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._calls = calls

    async def __aenter__(self) -> CutStreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def cut(self, method: str, moment: int) -> None:
        """Cuts a call at once (0), after all was sent (1), or after the first byte of the answer (2)."""
        sent, answers = self._calls[method]
        path = f"/{self._package}/{method}"
        if answers and len(sent) == 1 and method != "Steps":
            call = self._channel.unary_stream(path)(sent[0], metadata=self._metadata, timeout=60)
        else:
            make = self._channel.stream_stream if answers else self._channel.stream_unary
            call = make(path)(metadata=self._metadata, timeout=60)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for piece in sent if moment else sent[:1]:
                    await call.write(piece)
        if moment == 2 and answers:
            assert await call.read() is not grpc.aio.EOF
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await (call.read() if answers else call)


def held() -> tuple[int, int]:
    """Descriptors and tasks of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), len(asyncio.all_tasks())


def has_no_more(before: tuple[int, int]) -> bool:
    """Whether there are no more descriptors and tasks than before."""
    return all(now <= then for now, then in zip(held(), before, strict=True))


async def leaves_nothing(streams: CutStreams, methods: Sequence[str], times: int, memory: bool) -> None:
    """Cuts each method at each moment so often; looks at descriptors, tasks and, in later rounds, memory."""

    async def round_(method: str, moment: int) -> None:
        for _ in range(times):
            await streams.cut(method, moment)

    async def comes_back(method: str, moment: int) -> bool:
        before = held()
        await round_(method, moment)
        with contextlib.suppress(AssertionError):
            await settled(functools.partial(has_no_more, before), True, "")
            return True
        return False

    for method in methods:
        for moment in range(3):
            await round_(method, moment)  # what is opened once for all is open, what allocators keep is kept
            sizes = []
            for _ in range(ROUNDS if memory else 1):
                # gRPC opens things once for all at any time; what a cut leaves behind, each further round does, too.
                back = await comes_back(method, moment) or await comes_back(method, moment)
                assert back, f"{method} cut at {moment} leaves descriptors or tasks: {held()}"
                sizes.append(psutil.Process().memory_info().rss)
            assert sizes[-1] - sizes[0] < MORE_BYTES, (method, moment, sizes)
