"""Servers and clients over real sockets: tokens, deadlines, errors, frames and streams."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_proto.v1 import agent_pb2, ps_pb2
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.client import PendingCall, RpcClient
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_runtime.rpc.service import Server, listen, make_server
from tests.integration.rpc.conftest import Kinds

pytestmark = pytest.mark.integration
AGENT = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
PS = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


class _Base:
    """Answers every RPC of a service with 'not found', so that each test fills in only what it is about."""

    def __init__(self, service: object) -> None:
        for method in service.methods:
            if not hasattr(type(self), method.name):
                setattr(self, method.name, self._missing)

    async def _missing(self, request: object, caller: object) -> None:
        raise NotFoundError("not in this test")


class _Agent(_Base):
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.callers: list[str] = []
        self.launched = asyncio.Event()
        self.release = asyncio.Event()
        super().__init__(AGENT)

    async def Capacity(self, request: object, caller: str) -> object:
        self.callers.append(caller)
        if self.error is not None:
            raise self.error
        return agent_pb2.CapacityResponse(slots=7, used={"a": 2})

    async def Launch(self, request: object, caller: str) -> object:
        self.launched.set()
        await self.release.wait()
        return agent_pb2.LaunchResponse()

    async def Watch(self, request: object, caller: str) -> AsyncIterator[object]:
        for index in range(3):
            yield agent_pb2.ProcessStatus(id=agent_pb2.ProcessId(index=index))
        raise ConflictError("enough", fix="stop")

    async def Logs(self, request: object, caller: str) -> AsyncIterator[object]:
        yield agent_pb2.LogsChunk(data=b"x")


class _Ps(_Base):
    def __init__(self) -> None:
        super().__init__(PS)

    async def Pull(self, request: bytes, caller: str) -> bytes:
        header, buffers = decode_frame(request)
        doubled = [np.frombuffer(buffer, np.float32) * 2 for buffer in buffers]
        return encode_frame(header, doubled)

    async def PushModel(self, request: AsyncIterator[bytes], caller: str) -> bytes:
        sizes = [len(piece) async for piece in request]
        return encode_frame(b"", [np.array(sizes, np.int64)])

    async def PullDenseParameters(self, request: bytes, caller: str) -> AsyncIterator[bytes]:
        for number in range(3):
            yield encode_frame(bytes([number]))


def _authenticate(token: str) -> str:
    if token == "forbidden":
        raise PermissionDeniedError("not you")
    if token != "good":
        raise UnauthenticatedError("who are you", fix="log in")
    return "somebody"


@pytest.fixture
def address() -> str:
    with tempfile.TemporaryDirectory(prefix="rpc-") as directory:
        yield f"unix:{directory}/s.sock"


async def _serve(service: object, servicer: object, address: str) -> Server:
    server = make_server(service, servicer, _authenticate)
    listen(server, address)
    await server.start()
    return server


async def test_a_call_carries_its_token_and_its_answer(address: str) -> None:
    servicer = _Agent()
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, "good")
    try:
        answer = await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        assert (answer.slots, dict(answer.used), servicer.callers) == (7, {"a": 2}, ["somebody"])
    finally:
        await client.close()
        await server.stop(None)


async def test_a_server_that_is_slow_to_greet_is_connected_to(address: str) -> None:
    """A connection attempt that gave up after 0.1 s failed calls to loaded servers, and TLS beyond some distance."""
    server = await _serve(AGENT, _Agent(), address)
    path = Path(address.removeprefix("unix:"))

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # of whoever closes first
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()
        with contextlib.suppress(ConnectionError):
            await target.wait_closed()

    relays: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.current_task())
        first = await reader.readexactly(24)  # HTTP/2's preface
        await asyncio.sleep(0.5)  # the latency of the server's first frame
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(str(path))
        upstream_writer.write(first)
        await asyncio.gather(pump(reader, upstream_writer), pump(upstream_reader, writer))

    slow = await asyncio.start_unix_server(relay, path.with_name("slow.sock"))
    client = RpcClient(f"unix:{path.with_name('slow.sock')}", AGENT, "good")
    try:
        answer = await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        assert answer.slots == 7
    finally:
        await client.close()
        await asyncio.gather(*relays)
        await server.stop(None)
        slow.close()


@pytest.mark.parametrize(("token", "expected"), [("bad", UnauthenticatedError), ("forbidden", PermissionDeniedError)])
async def test_a_bad_token_is_refused_before_the_servicer_sees_the_call(
    address: str, token: str, expected: type[Exception]
) -> None:
    servicer = _Agent()
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, token)
    try:
        with pytest.raises(expected):
            await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        assert servicer.callers == []
    finally:
        await client.close()
        await server.stop(None)


@pytest.mark.parametrize("letter", ["x", "%", "\n", "ü", "\U0001f600"])
async def test_an_error_with_a_long_text_is_still_that_error(address: str, letter: str) -> None:
    server = await _serve(
        AGENT, _Agent(InvalidInputError(f"it says {100_000 * letter}", fix=1_000 * letter)), address
    )
    client = RpcClient(address, AGENT, "good")
    try:
        with pytest.raises(InvalidInputError, match="it says ") as caught:
            await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        assert caught.value.message.endswith("...") and letter in caught.value.message
    finally:
        await client.close()
        await server.stop(None)


async def test_a_call_without_a_token_is_refused(address: str) -> None:
    server = await _serve(AGENT, _Agent(), address)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{AGENT.full_name}/Capacity")(b"", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await server.stop(None)


async def test_errors_cross_the_wire_with_their_fix(address: str, crossing: Kinds) -> None:
    raised, expected = crossing
    server = await _serve(AGENT, _Agent(raised("m", fix="f")), address)
    client = RpcClient(address, AGENT, "good")
    try:
        with pytest.raises(expected) as caught:
            await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        assert (type(caught.value), caught.value.message, caught.value.fix) == (expected, "m", "f")
    finally:
        await client.close()
        await server.stop(None)


async def test_an_unexpected_exception_is_an_internal_error_and_the_server_lives(address: str) -> None:
    servicer = _Agent(ZeroDivisionError("oops"))
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, "good")
    try:
        with pytest.raises(ElasticDLError, match="ZeroDivisionError"):
            await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        servicer.error = None
        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
    finally:
        await client.close()
        await server.stop(None)


async def test_a_deadline_passes_as_unavailable(address: str) -> None:
    servicer = _Agent()
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, "good")
    try:
        with pytest.raises(UnavailableError):
            await client.call("Launch", agent_pb2.LaunchRequest(), deadline_s=0.2)
    finally:
        servicer.release.set()
        await client.close()
        await server.stop(None)


async def test_nobody_there_is_unavailable(address: str) -> None:
    client = RpcClient(address, AGENT, "good")
    try:
        with pytest.raises(UnavailableError):
            await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=2)
    finally:
        await client.close()


async def test_garbage_is_refused_and_the_server_lives(address: str) -> None:
    server = await _serve(AGENT, _Agent(), address)
    client = RpcClient(address, AGENT, "good")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{AGENT.full_name}/Launch")(
                    b"\xff\xff\xff", timeout=20, metadata=(("authorization", "Bearer good"),)
                )
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
    finally:
        await client.close()
        await server.stop(None)


async def test_a_stream_gives_its_items_and_then_its_error(address: str) -> None:
    server = await _serve(AGENT, _Agent(), address)
    client = RpcClient(address, AGENT, "good")
    seen = []
    try:
        with pytest.raises(ConflictError, match="enough"):
            async for status in client.stream("Watch", agent_pb2.WatchRequest(), deadline_s=20):
                seen.append(status.id.index)
        assert seen == [0, 1, 2]
    finally:
        await client.close()
        await server.stop(None)


async def test_frames_go_both_ways_without_protobuf(address: str) -> None:
    server = await _serve(PS, _Ps(), address)
    client = RpcClient(address, PS, "good")
    values = np.arange(1_000_000, dtype=np.float32)
    try:
        header, buffers = decode_frame(await client.call("Pull", encode_frame(b"head", [values]), deadline_s=20))
        assert header == b"head"
        np.testing.assert_array_equal(np.frombuffer(buffers[0], np.float32), values * 2)

        async def pieces() -> AsyncIterator[bytes]:
            for size in (1, 2, 3):
                yield b"x" * size

        _, (sizes,) = decode_frame(await client.call("PushModel", pieces(), deadline_s=20))
        assert np.frombuffer(sizes, np.int64).tolist() == [1, 2, 3]
        streamed = [piece async for piece in client.stream("PullDenseParameters", encode_frame(b""), deadline_s=20)]
        assert [decode_frame(piece)[0] for piece in streamed] == [b"\0", b"\1", b"\2"]
    finally:
        await client.close()
        await server.stop(None)


async def test_a_server_started_anew_at_the_same_address_is_found(address: str) -> None:
    first = await _serve(AGENT, _Agent(), address)
    client = RpcClient(address, AGENT, "good")
    try:
        await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)
        await first.stop(None)
        second = await _serve(AGENT, _Agent(), address)
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
                        break
                    except UnavailableError:
                        continue
        finally:
            await second.stop(None)
    finally:
        await client.close()


def test_listening_beyond_loopback_is_refused() -> None:
    async def attempt() -> None:
        listen(make_server(AGENT, _Agent(), _authenticate), "0.0.0.0:0")

    with pytest.raises(InvalidInputError, match="without TLS"):
        asyncio.run(attempt())


def test_a_servicer_that_lacks_a_method_is_refused_at_start() -> None:
    async def attempt() -> None:
        make_server(AGENT, object(), _authenticate)

    with pytest.raises(TypeError, match="has no method"):
        asyncio.run(attempt())


def test_sockets_lie_in_a_private_directory(address: str) -> None:
    directory = Path(address.removeprefix("unix:")).parent
    assert directory.stat().st_mode & 0o077 == 0


async def test_a_call_whose_channel_is_closed_fails_as_unavailable(address: str) -> None:
    servicer = _Agent()
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, "good")
    try:
        pending = client.begin("Launch", agent_pb2.LaunchRequest(), deadline_s=30)
        waiting = asyncio.ensure_future(_of(pending))
        await within(servicer.launched.wait(), 60)
        await client.close()
        with pytest.raises(UnavailableError, match="was closed"):
            await waiting
    finally:
        servicer.release.set()
        await client.close()
        await server.stop(None)


async def test_a_caller_that_is_cancelled_stays_so_even_if_its_channel_closes(address: str) -> None:
    servicer = _Agent()
    server = await _serve(AGENT, servicer, address)
    client = RpcClient(address, AGENT, "good")
    try:
        waiting = asyncio.ensure_future(_of(client.begin("Launch", agent_pb2.LaunchRequest(), deadline_s=30)))
        await within(servicer.launched.wait(), 60)
        waiting.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    finally:
        servicer.release.set()
        await server.stop(None)


async def _of(pending: PendingCall) -> object:
    return await pending
