from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import Role
from elasticdl_master.parameter_servers import ServerControl
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.round_waiter import RoundWaiter
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.checkpoint_files import CheckpointFile
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.tokens import Claims, issue, verify
from elasticdl_worker.parameters import ParameterClient

SECRET = "s" * 64
JOB = "digits-x7k2p9"


class Master:
    """What the master tells parameter servers, with checkpoints as lists of files."""

    def __init__(self, control: ServerControl) -> None:
        self.pin, self.unpin, self.close = control.pin, control.unpin, control.close
        self.tallies = control.tallies
        self._control = control

    async def save(self, directory: str) -> list[CheckpointFile]:
        parts = await self._control.save(directory)
        return [CheckpointFile(file["name"], file["size"], file["sha256"]) for file in parts.files]

    async def restore(self, directory: str, files: Sequence[CheckpointFile], *, other_job: bool = False) -> int:
        named = [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in files]
        manifest = {"directory": directory, "files": named}
        async with asyncio.timeout(60):
            while True:
                # A connection may end with the PS that died only now, and the master tries again.
                with contextlib.suppress(UnavailableError):
                    return await self._control.restore(manifest, other_job=other_job)


class Servers:
    """Real parameter servers on unix sockets in one process; each can be stopped and started afresh."""

    def __init__(self, directory: Path, count: int) -> None:
        self.addresses = [f"unix:{directory}/ps-{index}.sock" for index in range(count)]
        self._running: list[Any] = [None] * count
        self._clients: list[Any] = []

    async def start(self, index: int) -> None:
        def authenticate(token: str) -> Claims:
            return verify(SECRET, token, job_id=JOB)

        servicer = ParameterServer(Partition(load_kernels()), index, len(self.addresses))
        server = make_server(ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], servicer, authenticate)
        listen(server, self.addresses[index])
        await server.start()
        self._running[index] = (server, servicer)

    async def stop(self, index: int) -> None:
        if self._running[index] is not None:
            server, servicer = self._running[index]
            self._running[index] = None
            servicer.stop()
            await server.stop(None)
            servicer.close()

    def end_threads(self, index: int) -> None:
        """Lets a server go on with its event loop alone."""
        self._running[index][1].close()

    def let_go(self, index: int) -> None:
        """Lets nobody wait at a server any more."""
        self._running[index][1].stop()

    def master(self, *only: int, role: Role = Role.MASTER) -> Master:
        """Commands all servers, or only some; in another role, it may not."""
        token = issue(SECRET, JOB, role, 0, 0)
        addresses = [self.addresses[index] for index in only or range(len(self.addresses))]
        master = Master(ServerControl(addresses, lambda: token))
        self._clients.append(master)
        return master

    def client(self, worker: int = 0, *, incarnation: int = 0, **options: Any) -> ParameterClient:
        token = issue(SECRET, JOB, Role.WORKER, worker, incarnation)
        client = ParameterClient(self.addresses, lambda: token, f"worker-{worker}.{incarnation}", **options)
        self._clients.append(client)
        return client

    def raw(self, role: Role = Role.WORKER, index: int = 0, incarnation: int = 0) -> list[RpcClient]:
        """Bare connections, for messages that the client would not send."""
        service = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
        token = issue(SECRET, JOB, role, index, incarnation)
        clients = [RpcClient(address, service, token) for address in self.addresses]
        self._clients += clients
        return clients

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for index in range(len(self.addresses)):
            await self.stop(index)


StartServers = Callable[[int], Awaitable[Servers]]


@pytest.fixture(autouse=True)
def _patient_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers, workers and master share a slow machine; a master would try again what a test tries once."""
    monkeypatch.setattr("elasticdl_master.parameter_servers._STATUS_DEADLINE_S", 60.0)


@pytest.fixture
async def start_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StartServers]:
    started: list[Servers] = []
    numbers = itertools.count()

    async def start(count: int) -> Servers:
        servers = Servers(tmp_path_factory.mktemp(f"s{next(numbers)}"), count)
        started.append(servers)
        for index in range(count):
            await servers.start(index)
        return servers

    async with contextlib.AsyncExitStack() as stack:
        yield start
        for servers in started:
            stack.push_async_callback(servers.close)


@pytest.fixture(params=[1, 2, 3])
async def servers(request: pytest.FixtureRequest, start_servers: StartServers) -> Servers:
    return await start_servers(request.param)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are expected for longer than any test takes."""
    monkeypatch.setattr("elasticdl_ps.arrivals._SHORTEST_S", 1000.0)


@pytest.fixture
def somebody_waits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when somebody waits for the end of a round."""
    event, wait = asyncio.Event(), RoundWaiter._next_look

    async def waiting(self: RoundWaiter, timeout_s: float) -> None:
        event.set()
        await wait(self, timeout_s)

    monkeypatch.setattr(RoundWaiter, "_next_look", waiting)
    return event
