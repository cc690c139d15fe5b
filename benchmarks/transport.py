"""Pulls and pushes through a real parameter server and through our RPCs, against raw asyncio TCP on loopback.

./dev bench transport [--quick] [--repeats 9]
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Report, Sample, parse
from benchmarks.harness.echo import HEAD, RAW_LIMIT
from benchmarks.harness.plots import bars
from benchmarks.harness.servers import parameter_servers
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_worker.parameters import ParameterClient
from elasticdl_worker.parameters.types import Gradients

SIZES = {"64kb": 64 << 10, "1mb": 1 << 20, "4mb": 4 << 20, "64mb": 64 << 20}
TARGETS = ("4mb", "64mb")
DIM = 64
GOAL = 0.6
LEAST_S = 0.05
DEADLINE_S = 60.0
ABOUT = """\
One client, one server, each a process of its own. *Raw* is asyncio's streams over loopback TCP moving the same number
of bytes. *RPC* is our RPC layer alone (frames over gRPC on a unix socket; the same over TCP for comparison): the
server copies values into a frame, the client reads them in place. *Door* is a real `python -m elasticdl_ps` with the
worker's `ParameterClient`, dense parameters with SGD: a pull copies the parameter out, a push checks that all numbers
are finite and updates the parameter. *Rows* is the same with embedding rows of dim 64: look up and gather, or check,
look up and update. A share is the median of the quotients of times taken side by side. The targets are those of the
RPC layer; the door does the parameter server's work besides."""
Call = Callable[[], Awaitable[object]]


@contextlib.contextmanager
def echo(kind: str, address: str) -> Iterator[str]:
    """Starts a server of ``benchmarks.harness.echo``; yields its address."""
    command = [sys.executable, "-m", "benchmarks.harness.echo", kind, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1])
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


class RawSide:
    """Raw asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def pull(self, size: int) -> None:
        self._writer.write(HEAD.pack(b"<", size))
        await self._reader.readexactly(size)

    async def push(self, data: bytes) -> None:
        self._writer.write(HEAD.pack(b">", len(data)))
        self._writer.write(data)
        await self._writer.drain()
        await self._reader.readexactly(1)


class RpcSide:
    """Our RPC layer alone."""

    def __init__(self, address: str) -> None:
        self.client = RpcClient(address, ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], "token")

    async def pull(self, size: int) -> None:
        request = ps_pb2.PullRequest(pin=size)
        answer = await self.client.call("Pull", encode_frame(request.SerializeToString()), deadline_s=DEADLINE_S)
        _, (values,) = decode_frame(answer)
        assert len(values) == size

    async def push(self, values: Any) -> None:
        await self.client.call("PushGradients", encode_frame(b"", [values]), deadline_s=DEADLINE_S)


async def ready_client(stack: contextlib.AsyncExitStack, size: int, *, rows: bool) -> ParameterClient:
    """A client of a fresh PS that holds one parameter, or a table, of a size in bytes."""
    client = stack.enter_context(parameter_servers(1)).client()
    stack.push_async_callback(client.close)
    specs = [] if rows else [DenseSpec("w", (size // 4,))]
    values = {spec.name: np.ones(spec.shape, np.float32) for spec in specs}
    tables = [TableSpec("t", DIM)] if rows else []
    await client.ensure_model(values, specs, tables, OptimizerSpec("sgd", {"learning_rate": 1e-6}), UpdateMode())
    return client


def door_calls(client: ParameterClient, size: int) -> tuple[Call, Call]:
    """A pull and a push of one dense parameter."""
    gradient = np.ones(size // 4, np.float32)

    async def push() -> None:
        await client.push(Gradients({"w": gradient}), version=0)

    async def pull() -> None:
        # What was pulled before is pulled again, as by a worker that has just started.
        for server in client._group.servers:
            server.dense_version = -1
        assert (await client.pull({})).dense["w"].nbytes == size

    return pull, push


def row_calls(client: ParameterClient, size: int) -> tuple[Call, Call]:
    """A pull and a push of embedding rows."""
    ids = np.random.default_rng(1).permutation(size // (4 * DIM)).astype(np.int64)
    gradient = np.ones((len(ids), DIM), np.float32)

    async def pull() -> None:
        assert (await client.pull({"t": ids}, dense=False)).rows["t"].nbytes == size

    async def push() -> None:
        await client.push(Gradients({}, {"t": (ids, gradient)}), version=0)

    return pull, push


async def measure(call: Call) -> float:
    """Seconds of one call."""
    calls, started = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - started < LEAST_S:
        await call()
        calls += 1
    return (time.perf_counter() - started) / calls


async def in_turns(sides: dict[str, Call], repeats: int) -> dict[str, Sample]:
    """Times asynchronous sides in turns, after one call of each."""
    for call in sides.values():
        await call()
        await call()
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            values[name].append(await measure(call))
    return {name: Sample(tuple(one)) for name, one in values.items()}


@contextlib.asynccontextmanager
async def transports() -> AsyncIterator[tuple[RawSide, RpcSide, RpcSide]]:
    """Raw streams, our RPCs on a unix socket, our RPCs on TCP."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp"))
        host, port = stack.enter_context(echo("raw", "127.0.0.1:0")).split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=RAW_LIMIT)
        stack.callback(writer.close)
        unix = RpcSide(stack.enter_context(echo("rpc", f"unix:{folder}/echo.sock")))
        stack.push_async_callback(unix.client.close)
        tcp = RpcSide(stack.enter_context(echo("rpc", "127.0.0.1:0")))
        stack.push_async_callback(tcp.client.close)
        yield RawSide(reader, writer), unix, tcp


async def run(report: Report, repeats: int) -> None:
    """Measures all sizes."""
    shares: dict[tuple[str, str, str], float] = {}
    table = []
    async with transports() as (raw, unix, tcp):
        for name, size in SIZES.items():
            values = np.ones(size, np.uint8)
            data = values.tobytes()
            async with contextlib.AsyncExitStack() as stack:
                door = door_calls(await ready_client(stack, size, rows=False), size)
                rows = row_calls(await ready_client(stack, size, rows=True), size)
                directions: dict[str, dict[str, Call]] = {
                    "pull": {
                        "raw": lambda size=size: raw.pull(size),
                        "RPC": lambda size=size: unix.pull(size),
                        "RPC over TCP": lambda size=size: tcp.pull(size),
                        "door": door[0],
                        "rows": rows[0],
                    },
                    "push": {
                        "raw": lambda data=data: raw.push(data),
                        "RPC": lambda values=values: unix.push(values),
                        "RPC over TCP": lambda values=values: tcp.push(values),
                        "door": door[1],
                        "rows": rows[1],
                    },
                }
                for direction, sides in directions.items():
                    report.say(f"{direction} {name}")
                    timed = await in_turns(sides, repeats)
                    for side, sample in timed.items():
                        share = timed["raw"].over(sample)
                        shares[direction, name, side] = share
                        table.append([direction, name, side, sample.median * 1e3, size / 1e9 / sample.median, share])
    report.table(["direction", "size", "side", "ms", "GB/s", "share of raw"], table)
    for direction in ("pull", "push"):
        for name in TARGETS:
            report.target(f"transport_{direction}_{name}", shares[direction, name, "RPC"], GOAL)
    groups = [f"{direction} {name}" for direction in ("pull", "push") for name in SIZES]
    series = {
        side: [shares[direction, name, side] for direction in ("pull", "push") for name in SIZES]
        for side in ("RPC", "RPC over TCP", "door", "rows")
    }
    figure = bars(groups, series, "share of raw asyncio TCP", goal=GOAL)
    figure.axes[0].tick_params(axis="x", labelsize=7)
    report.plot("shares", figure, "Speed of each side as a share of raw asyncio TCP")


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, repeats=9)
    keep_large_blocks()
    report = Report("transport", "Transport", ABOUT)
    asyncio.run(run(report, 3 if options.quick else options.repeats))
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
