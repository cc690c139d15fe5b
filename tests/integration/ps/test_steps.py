"""Steps over a stream mean what the single calls mean, whatever becomes of the stream."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError, PermissionDeniedError, UnauthenticatedError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_runtime.tokens import issue
from elasticdl_worker.parameters import Gradients, ParameterClient
from elasticdl_worker.parameters import connection as connection_module

pytestmark = pytest.mark.integration

SPECS = [DenseSpec("w", (4,))]
TABLES = [TableSpec("t", 2, InitializerSpec("zeros"))]
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
SECRET, JOB = "z" * 64, "job-1"
IDS = np.arange(30)


async def ensure(client: Any, mode: UpdateMode | None = None) -> bool:
    dense = {spec.name: np.zeros(spec.shape) for spec in SPECS}
    return bool(await client.ensure_model(dense, SPECS, TABLES, SGD, mode or UpdateMode()))


def step() -> Gradients:
    """Adds one to everything."""
    dense = {spec.name: -np.ones(spec.shape, np.float32) for spec in SPECS}
    return Gradients(dense, {"t": (IDS, -np.ones((len(IDS), 2), np.float32))})


def streams(client: Any, index: int = 0) -> list[Any]:
    return list(client._group.servers[index]._client._opened)


def push(sequence: int, worker: str = "worker-0.0", **fields: Any) -> tuple[Any, list[Any]]:
    message = ps_pb2.PushGradientsRequest(worker=worker, sequence=sequence, records=1, **fields)
    message.dense.add(name="w", stop=4, buffer=0)
    message.rows.add(table="t", ids=1, values=2)
    return message, [np.ones(4, np.float32), IDS, np.ones((len(IDS), 2), np.float32)]


def pull(**fields: Any) -> tuple[Any, list[Any]]:
    message = ps_pb2.PullRequest(dense_version=-1, **fields)
    message.rows.add(table="t", ids=0)
    return message, [np.arange(5, 45)]


def push_pull(sequence: int) -> tuple[Any, list[Any]]:
    (pushed, first), (pulled, second) = push(sequence), pull()
    return ps_pb2.PushPullRequest(push=pushed, pull=pulled, pull_from=len(first)), first + second


ANSWERS = {
    "Pull": (ps_pb2.STEP_PULL, ps_pb2.PullResponse),
    "PushGradients": (ps_pb2.STEP_PUSH, ps_pb2.PushGradientsResponse),
    "PushPull": (ps_pb2.STEP_PUSH_PULL, ps_pb2.PushPullResponse),
}


def read(method: str, answer: bytes) -> Any:
    """An answer, less what is drawn at random when a PS starts."""
    header, buffers = decode_frame(answer)
    message = ANSWERS[method][1].FromString(header)
    for part in (message, getattr(message, "pull", None)):
        if isinstance(part, ps_pb2.PullResponse):
            part.generation = ""
    return message, [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("mode", [UpdateMode(), UpdateMode(use_async=False)], ids=["asynchronous", "synchronous"])
async def test_a_stream_answers_as_single_calls_do(start_servers: Any, mode: UpdateMode) -> None:
    one, other = await start_servers(1), await start_servers(1)
    await ensure(one.client(), mode)
    await ensure(other.client(), mode)
    single, streamed = one.raw()[0], other.raw()[0]
    compared = 0
    for method, (message, buffers) in [
        ("Pull", pull()),
        ("PushGradients", push(1)),
        ("PushGradients", push(1)),
        ("PushGradients", push(2)),
        ("PushPull", push_pull(3)),
        ("PushPull", push_pull(3)),
        ("PushPull", push_pull(4)),
        ("Pull", pull(dtype="bfloat16")),
    ]:
        frame = encode_frame(message.SerializeToString(), buffers)
        expected = read(method, await single.call(method, frame, deadline_s=30))
        what = ANSWERS[method][0]
        assert read(method, await streamed.begin_in_stream("Steps", what, frame, deadline_s=30)) == expected
        compared += 1
    assert compared == 8


async def test_training_goes_over_one_stream_a_server_and_large_messages_do_not(start_servers: Any) -> None:
    servers = await start_servers(2)
    client = servers.client()
    await ensure(client)
    pulled = await client.pull({"t": IDS})
    for _ in range(3):
        _, pulled = await client.push_pull(step(), {"t": IDS}, version=pulled.version)
        assert (await client.push(step(), version=pulled.version)).accepted
    assert [len(streams(client, index)) for index in range(2)] == [1, 1]
    assert ((await client.pull({"t": IDS})).rows["t"] == 6).all()
    large = servers.client(1)
    await ensure(large)
    assert (await large.pull({"t": np.arange(2_000_000)})).rows["t"].sum() == 6 * 2 * len(IDS)
    assert streams(large) == []


async def test_refusals_leave_the_stream_usable(servers: Any) -> None:
    client, raw = servers.client(), servers.raw()
    await ensure(client)
    for index, connection in enumerate(raw):
        for (message, buffers), error in (
            (push(1, "worker-1.0"), PermissionDeniedError),
            (push(1), InvalidInputError),
        ):
            buffers[0] = buffers[0][:0]
            frame = encode_frame(message.SerializeToString(), buffers)
            with pytest.raises(error):
                await connection.begin_in_stream("Steps", ps_pb2.STEP_PUSH, frame, deadline_s=30)
        for what in (0, 4, 255):
            with pytest.raises(InvalidInputError, match=f"no step {what}"):
                await connection.begin_in_stream("Steps", what, encode_frame(b""), deadline_s=30)
        frame = encode_frame(ps_pb2.PullRequest().SerializeToString())
        answer = await connection.begin_in_stream("Steps", ps_pb2.STEP_PULL, frame, deadline_s=30)
        assert read("Pull", answer)[0].initialized, index
        assert len(connection._opened) == 1


async def test_what_waits_for_a_thread_holds_nothing_up(start_servers: Any) -> None:
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client)
    pulled = await client.pull({"t": IDS})
    go_on = threading.Event()
    servicer = servers._running[0][1]
    held = asyncio.ensure_future(servicer._threads.write(lambda: go_on.wait(60)))
    pushed = asyncio.ensure_future(client.push(step(), version=pulled.version))
    assert (await client.pull({"t": IDS})).version == 0
    assert not pushed.done()
    go_on.set()
    assert await held
    assert (await pushed).version == 1
    assert len(streams(client)) == 1


async def test_an_expired_token_ends_the_stream_and_a_fresh_one_goes_on(
    start_servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client)
    client._group.servers[0]._client._token = lambda: tokens[-1]
    now = time.time()
    monkeypatch.setattr("elasticdl_runtime.tokens.time.time", lambda: now)
    tokens = [issue("s" * 64, "digits-x7k2p9", Role.WORKER, 0, 0, lifetime_s=100)]
    assert (await client.push(step(), version=0)).version == 1
    now += 99
    assert (await client.push(step(), version=1)).version == 2
    now += 2
    with pytest.raises(UnauthenticatedError, match="expired"):
        await client.push(step(), version=2)
    tokens.append(issue("s" * 64, "digits-x7k2p9", Role.WORKER, 0, 0, lifetime_s=100))
    result, pulled = await client.push_pull(step(), {"t": IDS}, version=2)
    assert (result.version, pulled.version) == (3, 3)
    assert (pulled.rows["t"] == 3).all()


async def test_a_server_stops_at_once_though_workers_keep_streams(start_servers: Any) -> None:
    servers = await start_servers(1)
    client = servers.client(patience_s=60.0)
    await ensure(client)
    await client.pull({"t": IDS})
    server, servicer = servers._running[0]
    await server.stop(3600.0)
    servicer.close()
    await servers.start(0)
    waiting = asyncio.ensure_future(client.push(step(), version=0))
    await ensure(servers.client(1))
    assert (await waiting).reason == "generation"


class Process:
    """A parameter server as a process, and a way to say what happens to it."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/ps.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {
            "ELASTICDL_JOB_ID": JOB,
            "ELASTICDL_INDEX": "0",
            "ELASTICDL_NUM_PS": "1",
            "ELASTICDL_JOB_SECRET": SECRET,
            "ELASTICDL_LISTEN": self.address,
        }
        self.process = subprocess.Popen([sys.executable, "-m", "elasticdl_ps"], env={**os.environ, **settings})

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def client(self, index: int = 0) -> ParameterClient:
        token = issue(SECRET, JOB, Role.WORKER, index, 0)
        return ParameterClient([self.address], lambda: token, f"worker-{index}.0", patience_s=90)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    process.start()
    yield process
    process.kill()


def at_first_failure(client: ParameterClient, act: Callable[[], None]) -> list[str]:
    """Acts once, when a call to the server has failed and is about to be made again."""
    server, acted = client._group.servers[0], []
    pause = server.pause

    async def noticed(seconds: float) -> None:
        if not acted:
            acted.append("failed")
            act()
        await pause(seconds)

    server.pause = noticed  # type: ignore[method-assign]
    return acted


async def test_a_frozen_server_gets_the_push_again_and_counts_it_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = process.client()
    try:
        await ensure(client)
        pulled = await client.pull({"t": IDS})
        monkeypatch.setattr(connection_module, "_DEADLINE_S", 1.0)
        for done in (1, 2):
            process.signal(signal.SIGSTOP)
            failed = at_first_failure(client, lambda: process.signal(signal.SIGCONT))
            result, pulled = await client.push_pull(step(), {"t": IDS}, version=pulled.version)
            assert (result.accepted, result.version, pulled.version) == (True, done, done)
            assert (pulled.rows["t"] == done).all()
            assert failed
    finally:
        await client.close()


async def test_pushes_to_a_killed_server_and_the_next_count_once(process: Process) -> None:
    client, other = process.client(), process.client(1)
    try:
        await ensure(client)
        pulled = await client.pull({"t": IDS})
        result, pulled = await client.push_pull(step(), {"t": IDS}, version=pulled.version)
        assert (pulled.rows["t"] == 1).all()
        process.signal(signal.SIGSTOP)
        cut = asyncio.ensure_future(client.push_pull(step(), {"t": IDS}, version=pulled.version))
        lost = [asyncio.ensure_future(client.pull({"t": IDS})) for _ in range(3)]
        await asyncio.sleep(0)
        process.kill()
        process.start()
        await ensure(other)
        result, pulled = await cut
        assert (result.accepted, result.reason, pulled.version) == (False, "generation", 0)
        assert all((found.rows["t"] == 0).all() for found in await asyncio.gather(*lost))
        for done in (1, 2, 3):
            result, pulled = await client.push_pull(step(), {"t": IDS}, version=pulled.version)
            assert (result.accepted, pulled.version) == (True, done)
            assert (pulled.rows["t"] == done).all()
    finally:
        await client.close()
        await other.close()
