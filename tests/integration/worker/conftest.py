"""Real parameter servers and workers as processes, before a fake master over real gRPC."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.tokens import issue
from tests.fakes.master import FakeMaster
from tests.integration.ps.conftest import start_servers as start_servers

SECRET, JOB = "5" * 64, "clicks-x7k2p9"


class Cluster:
    """Starts processes the way a launcher does; their logs are in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sockets = Path(tempfile.mkdtemp(prefix="edl-"))
        self.ps_addresses: list[str] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self._masters: list[FakeMaster] = []
        self._clients: list[RpcClient] = []

    async def start_ps(self, count: int) -> None:
        self.ps_addresses = [f"unix:{self.sockets}/ps-{index}.sock" for index in range(count)]
        for index, address in enumerate(self.ps_addresses):
            variables = {"ELASTICDL_NUM_PS": str(count), "ELASTICDL_JOB_SECRET": SECRET}
            await self._launch(Role.PS, index, address, variables)
        await asyncio.gather(*(self._ready(index) for index in range(count)))

    def ps(self, index: int) -> RpcClient:
        token = issue(SECRET, JOB, Role.MASTER, 0, 0)
        client = RpcClient(self.ps_addresses[index], ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], token)
        self._clients.append(client)
        return client

    async def start_master(self, spec: JobSpec, **options: Any) -> FakeMaster:
        job_dir = self.directory / "job"
        job_dir.mkdir(exist_ok=True)
        master = FakeMaster(spec, job_dir, self.ps_addresses, **options)
        await master.start(f"unix:{self.sockets}/master.sock")
        self._masters.append(master)
        return master

    async def start_worker(self, master: FakeMaster, index: int = 0) -> asyncio.subprocess.Process:
        variables = {
            "ELASTICDL_MASTER": master.address,
            "ELASTICDL_JOB_TOKEN": issue(SECRET, JOB, Role.WORKER, index, 0),
        }
        return await self._launch(Role.WORKER, index, f"unix:{self.sockets}/worker-{index}.sock", variables)

    def log(self, role: Role, index: int = 0) -> str:
        return (self.directory / f"{role}-{index}.log").read_text()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        for client in self._clients:
            await client.close()
        for master in self._masters:
            await master.stop()
        shutil.rmtree(self.sockets)

    async def _ready(self, index: int) -> None:
        client = self.ps(index)
        while True:
            try:
                await client.call("Status", ps_pb2.StatusRequest(), deadline_s=20)
                return
            except Exception:
                await asyncio.sleep(0.05)  # the process is starting; the test's timeout bounds this

    async def _launch(
        self, role: Role, index: int, address: str, variables: dict[str, str]
    ) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
        environment |= {
            "ELASTICDL_JOB_ID": JOB,
            "ELASTICDL_ROLE": str(role),
            "ELASTICDL_INDEX": str(index),
            "ELASTICDL_INCARNATION": "0",
            "ELASTICDL_LISTEN": address,
            "ELASTICDL_JOB_DIR": str(self.directory / "job"),
            **variables,
        }
        with (self.directory / f"{role}-{index}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"elasticdl_{role}", env=environment, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
def stop() -> Callable[[asyncio.subprocess.Process], None]:
    return lambda process: process.send_signal(signal.SIGTERM)
