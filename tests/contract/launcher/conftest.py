"""The launchers under test, each with a way to make its processes do things."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.launcher import KubernetesLauncher
from elasticdl_agent.kubernetes.manifests import PodTemplate
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_agent.processes.credentials import ProcessCertificates
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.zygote.client import wanted
from elasticdl_core.ports.launcher import Launcher, ProcessId, ProcessSpec, ProcessState, ProcessStatus, Role
from elasticdl_runtime.launcher.addresses import RpcTransport, node_credentials
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.rpc.credentials import RpcCredentials
from tests.contract.launcher.real_cluster import KUBECONFIG, OwningLauncher, RealCluster
from tests.fakes.kubernetes.cluster import FakeKubernetes
from tests.fakes.kubernetes.node import can_run
from tests.fakes.launcher import FakeLauncher

STUB = Path(__file__).with_name("stub_process.py")
STUB_COMMANDS = {role: (sys.executable, "-S", str(STUB)) for role in Role}
FORKED_COMMANDS = {role: (sys.executable, "-P", str(STUB)) for role in Role}
FORKED_PRELOADS = dict.fromkeys(Role, "json")
NODE_TOKEN = "node-token-of-the-tests"
ENDPOINTS = Endpoints("cluster-secret-of-the-tests", "http://127.0.0.1:1", "unix:///nowhere/redis.sock")
SLOTS = 2
HARNESSES = [f"{name}_harness" for name in ("fake", "exec", "zygote", "tls", "pod", "real_pod")]


class Harness(Protocol):
    """A launcher, and what its processes shall do."""

    launcher: Launcher

    def spec(self, process: ProcessId, behaviour: str = "wait", *, slots: int = 0) -> ProcessSpec:
        """A specification of a process that behaves like that (see stub_process.py)."""
        ...

    async def ready(self, process: ProcessId) -> ProcessStatus:
        """Waits until the process runs and handles signals."""
        ...


class FakeHarness:
    """The in-memory launcher; it acts out the behaviours that the suite uses."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher(SLOTS)
        self._behaviours: dict[ProcessId, str] = {}

    def spec(self, process: ProcessId, behaviour: str = "wait", *, slots: int = 0) -> ProcessSpec:
        self._behaviours[process] = behaviour
        asyncio.get_running_loop().create_task(self._act(process, behaviour))
        return ProcessSpec(process, {"STUB": behaviour}, slots=slots)

    async def ready(self, process: ProcessId) -> ProcessStatus:
        return await until(self.launcher, process, ProcessState.RUNNING)

    async def _act(self, process: ProcessId, behaviour: str) -> None:
        async for status in self.launcher.watch(process.job_id):
            if status.id == process and status.state is ProcessState.RUNNING:
                break
        command, _, argument = behaviour.partition(":")
        if command == "print":
            self.launcher.print(process, argument.encode() + b"\n")
            self.launcher.finish(process)
        elif command == "exit":
            self.launcher.finish(process, int(argument))
        elif command == "signal":
            self.launcher.finish(process, -int(argument))


class RealProcesses:
    """A launcher whose processes are real ones, each of which does as its variable ``STUB`` says."""

    launcher: Launcher

    def spec(
        self, process: ProcessId, behaviour: str = "wait", *, slots: int = 0, memory_mib: int = 0
    ) -> ProcessSpec:
        return ProcessSpec(process, {"STUB": behaviour}, memory_mib=memory_mib, slots=slots)

    async def ready(self, process: ProcessId) -> ProcessStatus:
        status = await until(self.launcher, process, ProcessState.RUNNING)
        await printed(self.launcher, process, b"ready\n")
        return status


class AgentHarness(RealProcesses):
    """The process launcher, its agent in this process, its children real processes."""

    launcher: ProcessLauncher

    def __init__(self, launcher: ProcessLauncher, directories: AgentDirectories, agent: Agent) -> None:
        self.launcher = launcher
        self.directories = directories
        self.agent = agent


async def until(launcher: Launcher, process: ProcessId, state: ProcessState) -> ProcessStatus:
    """Watches until the process is in that state."""
    async with asyncio.timeout(90):
        async for status in launcher.watch(process.job_id):
            if status.id == process and status.state is state:
                return status
    raise AssertionError("the watch ended")


async def printed(launcher: Launcher, process: ProcessId, text: bytes) -> bytes:
    """Follows the log until the text is in it."""
    seen = b""
    async with asyncio.timeout(90):
        async for piece in launcher.logs(process.job_id, process.role, process.index, tail=None, follow=True):
            seen += piece
            if text in seen:
                return seen
    raise AssertionError(f"the log ended without {text!r}: {seen!r}")


@pytest.fixture
def directories() -> Iterator[AgentDirectories]:
    """Directories with a short path: a unix socket's path has little room."""
    folder = Path(tempfile.mkdtemp(prefix="edl-"))
    yield AgentDirectories(folder / "data", folder / "run")
    shutil.rmtree(folder)


@pytest.fixture
async def exec_harness(directories: AgentDirectories) -> AsyncIterator[AgentHarness]:
    """Each process has an interpreter of its own."""
    async with (
        Agent(
            directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.0, master_grace_s=0.0
        ) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        yield AgentHarness(launcher, directories, agent)


@contextlib.asynccontextmanager
async def forking_harness(directories: AgentDirectories, preloads: Mapping[Role, str]) -> AsyncIterator[AgentHarness]:
    """An agent with zygotes that import these modules; without any, each process has an interpreter of its own."""
    agent = Agent(
        directories,
        ENDPOINTS,
        NODE_TOKEN,
        SLOTS,
        FORKED_COMMANDS,
        stop_grace_s=0.0,
        master_grace_s=0.0,
        preloads=preloads,
    )
    async with agent, ProcessLauncher(agent.address, NODE_TOKEN) as launcher:
        yield AgentHarness(launcher, directories, agent)


@pytest.fixture
async def zygote_harness(directories: AgentDirectories) -> AsyncIterator[AgentHarness]:
    """Each process is forked from a zygote."""
    if not wanted("auto"):
        pytest.skip("no zygotes on this system, or too little memory")
    async with forking_harness(directories, FORKED_PRELOADS) as harness:
        yield harness


@pytest.fixture
async def tls_harness(directories: AgentDirectories) -> AsyncIterator[AgentHarness]:
    """Each process has an interpreter of its own; the agent is reached under TLS."""
    if sys.platform != "linux":
        pytest.skip("other systems answer to 127.0.0.1 alone")
    endpoints = replace(ENDPOINTS, transport=RpcTransport.TLS)
    async with Agent(
        directories, endpoints, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.0, master_grace_s=0.0
    ) as agent:
        shown = RpcCredentials(node_credentials(directories.run))
        async with ProcessLauncher(agent.address, NODE_TOKEN, credentials=shown) as launcher:
            yield AgentHarness(launcher, directories, agent)


class PodHarness(RealProcesses):
    """The Kubernetes launcher on a fake cluster, whose pods are real processes, or on a real one.

    Attributes:
        cluster: the cluster.
    """

    def __init__(self, launcher: KubernetesLauncher, cluster: Any) -> None:
        self.launcher = launcher
        self.cluster = cluster


@contextlib.contextmanager
def pod_cluster(directories: AgentDirectories, *cpus: str) -> Iterator[FakeKubernetes]:
    """A cluster of one node with room for two workers, or of these; the data directory is a volume."""
    if not can_run():
        pytest.skip("pods of the fake cluster take mount namespaces, which this machine does not let us make")
    directories.data.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"]}
    nodes = {f"node-{number}": {"cpu": cpu, "memory": "64Gi"} for number, cpu in enumerate(cpus or ("2.9",))}
    with FakeKubernetes(nodes, {"elasticdl:test": environment}, {"data": directories.data}) as cluster:
        yield cluster


def pod_settings(directories: AgentDirectories, **changed: object) -> KubernetesSettings:
    """Settings of an agent on that cluster."""
    return KubernetesSettings(
        **{
            "image": "elasticdl:test",
            "claim": "data",
            "worker_memory": "64Mi",
            "server_cpu": "100m",
            "server_memory": "64Mi",
            "data_dir": directories.data,
            "cluster_secret": ENDPOINTS.cluster_secret,
            "node_token": NODE_TOKEN,
            "api_url": ENDPOINTS.api_url,
            "redis_url": ENDPOINTS.redis_url,
            **changed,
        }
    )


@contextlib.asynccontextmanager
async def pod_launcher(
    cluster: FakeKubernetes | RealCluster,
    directories: AgentDirectories,
    token: str = "",
    kind: type[KubernetesLauncher] = KubernetesLauncher,
    **changed: object,
) -> AsyncIterator[KubernetesLauncher]:
    """A launcher on that cluster."""
    settings = pod_settings(directories, **changed)
    access = KubernetesAccess.of_kubeconfig(cluster.kubeconfig(token=token))
    template = PodTemplate(settings, access.namespace, STUB_COMMANDS)
    certificates = ProcessCertificates(ENDPOINTS.cluster_secret)
    async with (
        KubernetesClient(access) as client,
        kind(client, template, ENDPOINTS, certificates) as launcher,
    ):
        yield launcher


@pytest.fixture
async def pod_harness(directories: AgentDirectories) -> AsyncIterator[PodHarness]:
    """Each process is a pod."""
    with pod_cluster(directories) as cluster:
        async with pod_launcher(cluster, directories) as launcher:
            yield PodHarness(launcher, cluster)


@pytest.fixture
async def real_pod_harness(directories: AgentDirectories) -> AsyncIterator[PodHarness]:
    """Each process is a pod of a real cluster on this machine."""
    if not KUBECONFIG:
        pytest.skip("no real cluster: see real_cluster.py for what ELASTICDL_TEST_KUBECONFIG is")
    with RealCluster(directories, cpu="2.9") as cluster:
        async with pod_launcher(cluster, directories, kind=OwningLauncher, **cluster.settings()) as launcher:
            yield PodHarness(launcher, cluster)


@pytest.fixture(params=["pod_harness", "real_pod_harness"])
def each_pod_harness(request: pytest.FixtureRequest) -> PodHarness:
    """The Kubernetes launcher on both clusters."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["exec_harness", "zygote_harness"])
def agent_harness(request: pytest.FixtureRequest) -> AgentHarness:
    """The process launcher in both ways."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def fake_harness() -> FakeHarness:
    return FakeHarness()


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest) -> Harness:
    return request.getfixturevalue(request.param)
