"""An agent whose launcher is Kubernetes: the one process that the cluster lets make pods, behind the agent's door."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from types import TracebackType

import structlog

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.launcher import KubernetesLauncher
from elasticdl_agent.kubernetes.manifests import MANAGED, PodTemplate
from elasticdl_agent.kubernetes.ownership import take_namespace
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_agent.processes.credentials import ProcessCertificates
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.servicer import AgentServicer, authenticator
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_runtime.launcher.addresses import AGENT_NAME, NODE_NAME, RpcTransport
from elasticdl_runtime.launcher.client import SERVICE
from elasticdl_runtime.retry import Attempts
from elasticdl_runtime.rpc.credentials import RpcCredentials, TlsAddress
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.telemetry import meters

NODE_SECRET = "elasticdl-node"
"""The Secret with what the api and the scheduler show to the agent."""
_BACKOFF = Backoff(0.5, 10.0)
_log = structlog.get_logger(__name__)


class KubernetesAgent:
    """Serves the Agent service for a cluster; an async context manager. Pods go on when it ends.

    Attributes:
        address: where it is reached.

    Raises:
        InvalidInputError: there is no way to an API server.
        ConflictError: another ElasticDL makes its pods in the namespace; when it is entered.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        access = KubernetesAccess.find(settings.kubeconfig, settings.context)
        self._certificates = ProcessCertificates(settings.cluster_secret, settings.certificate_hours)
        self._client = KubernetesClient(access)
        self._template = PodTemplate(settings, settings.namespace or access.namespace)
        endpoints = Endpoints(
            settings.cluster_secret, settings.api_url, settings.redis_url, settings.ca_file, RpcTransport.TLS
        )
        self._launcher = KubernetesLauncher(self._client, self._template, endpoints, self._certificates)
        self._stack = contextlib.AsyncExitStack()
        self.address = self._launcher.agent

    async def __aenter__(self) -> KubernetesAgent:
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            await self._take_namespace()
            await stack.enter_async_context(self._launcher)
            own = RpcCredentials(self._certificates.issue(AGENT_NAME))
            servicer = AgentServicer(self._launcher, AgentDirectories(settings.data_dir, settings.data_dir))
            server = make_server(SERVICE, servicer, authenticator(settings.node_token, settings.cluster_secret))
            listen(server, str(TlsAddress(AGENT_NAME, settings.listen)), own)
            meters.show_all("agent", self._launcher.numbers)
            await server.start()
            stack.push_async_callback(server.stop, 0.5)
            for work in (self._renew(own), self._hand_out()):
                stack.callback(asyncio.create_task(work, name="credentials").cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _take_namespace(self) -> None:
        async for _ in Attempts(_BACKOFF):
            try:
                await take_namespace(self._client, self._template.namespace, self._settings.cluster_secret)
                return
            except UnavailableError as error:
                _log.warning("the API server is away", error=error.message)

    async def _renew(self, own: RpcCredentials) -> None:
        """Keeps the agent's certificate fresh, whatever the API server says."""
        while True:
            await asyncio.sleep(self._certificates.renew_after_s)
            own.adopt(self._certificates.issue(AGENT_NAME))

    async def _hand_out(self) -> None:
        """Keeps the Secret of those who hold the node token fresh."""
        path = self._template.path("secrets", NODE_SECRET)
        metadata = {"name": NODE_SECRET, "labels": {MANAGED: "elasticdl"}}
        while True:
            async for _ in Attempts(_BACKOFF):
                shown = base64.b64encode(self._certificates.issue(NODE_NAME)).decode()
                secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"node.pem": shown}}
                try:
                    await self._client.apply(path, secret)
                    break
                except ElasticDLError as error:
                    _log.warning("cannot hand out the node's credentials", error=error.message)
            await asyncio.sleep(self._certificates.renew_after_s)
