"""The components that are our own: agent, api, scheduler; how they are run and when they are ready."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl_agent.agent import MASTER_GRACE_S, STOP_GRACE_S
from elasticdl_agent.cluster.certificates import ApiCertificate
from elasticdl_agent.cluster.component import ComponentSpec, Probe, log_tail
from elasticdl_agent.cluster.options import DEFAULT_HOST
from elasticdl_agent.processes.child import Child, Command
from elasticdl_agent.processes.credentials import DEFAULT_HOURS
from elasticdl_agent.processes.devices import AUTO
from elasticdl_agent.processes.devices import VARIABLE as DEVICES_VARIABLE
from elasticdl_agent.processes.environment import base_environment
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.hosts import is_address
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address, node_credentials
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.lifecycle import READY_FILE_VARIABLE, within
from elasticdl_runtime.rpc.credentials import CREDENTIALS_VARIABLE, RpcCredentials
from elasticdl_runtime.tls import direct_opener

MIGRATE_S = 180.0
_HTTP_S = 4.0
_API_VARIABLES = (
    "ELASTICDL_ACCESS_LOG",
    "ELASTICDL_API_FAILED_TOKENS_",
    "ELASTICDL_API_HEAD_SECONDS",
    "ELASTICDL_API_MAX_",
    "ELASTICDL_API_REQUESTS_",
    "ELASTICDL_API_SESSION_HOURS",
    "ELASTICDL_API_TRUSTED_PROXIES",
    "ELASTICDL_DATA_ROOTS",
    "ELASTICDL_KEEP_",
    "ELASTICDL_MAX_PS",
    "ELASTICDL_NAMESPACE_DISK_MIB",
    "ELASTICDL_OIDC_",
)
"""Settings of the api that are taken from the environment of ``up``."""
HOSTS_VARIABLE = "ELASTICDL_API_ALLOWED_HOSTS"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The addresses of services, and the credentials that open them.

    Attributes:
        directory: the data directory.
        api_url: base URL of the API.
        port: its port.
        database_url: Postgres.
        redis_url: Redis.
        cluster_secret: the cluster's secret.
        node_token: opens the agent.
        slots: worker slots.
        policy: the scheduler's policy, or empty.
        host: what the API listens on.
        tls: what it shows; None for no TLS.
        devices: accelerators, as the agent's setting says them.
    """

    directory: DataDirectory
    api_url: str
    port: int
    database_url: str
    redis_url: str
    cluster_secret: str
    node_token: str
    slots: int
    policy: str = ""
    host: str = DEFAULT_HOST
    tls: ApiCertificate | None = None
    devices: str = AUTO

    @property
    def agent(self) -> str:
        """The agent's address."""
        return agent_address(self.directory.run, self._transport)

    @property
    def _transport(self) -> RpcTransport:
        """The transport of services, if it is valid; the agent says if it is not."""
        return RpcTransport.TLS if os.environ.get("ELASTICDL_RPC") == RpcTransport.TLS else RpcTransport.UNIX

    def _credentials(self) -> dict[str, str]:
        """The credentials that the api and the scheduler show to the agent."""
        if self._transport is RpcTransport.UNIX:
            return {}
        return {CREDENTIALS_VARIABLE: str(node_credentials(self.directory.run))}

    def api_environment(self) -> dict[str, str]:
        """Variables of the api and of its migrations."""
        given = {name: value for name, value in os.environ.items() if name.startswith(_API_VARIABLES)}
        return {
            **given,
            **base_environment(),
            "ELASTICDL_DATABASE_URL": self.database_url,
            "ELASTICDL_CLUSTER_SECRET": self.cluster_secret,
            "ELASTICDL_ADMIN_TOKEN_FILE": str(self.directory.token),
            "ELASTICDL_DATA_DIR": str(self.directory.root),
            "ELASTICDL_AGENT": self.agent,
            "ELASTICDL_NODE_TOKEN": self.node_token,
            **self._credentials(),
            "ELASTICDL_API_HOST": self.host,
            "ELASTICDL_API_PORT": str(self.port),
            **self._tls_environment(),
        }

    def _tls_environment(self) -> dict[str, str]:
        """The names that the api answers to are those that the user gave, and those of its certificate."""
        given = os.environ.get(HOSTS_VARIABLE, "").split(",")
        if self.tls is None:
            return {HOSTS_VARIABLE: ",".join(given)}
        own = [name for name in self.tls.names if not is_address(name) and not set("*_") & set(name)]
        return {
            HOSTS_VARIABLE: ",".join([*given, *own]),
            "ELASTICDL_API_TLS_CERT": str(self.tls.certificate),
            "ELASTICDL_API_TLS_KEY": str(self.tls.key),
        }

    def agent_spec(self) -> ComponentSpec:
        """The agent; it ends its processes before it leaves."""
        environment = {
            **base_environment(),
            "ELASTICDL_DATA_DIR": str(self.directory.root),
            "ELASTICDL_RUN_DIR": str(self.directory.run),
            "ELASTICDL_SLOTS": str(self.slots),
            DEVICES_VARIABLE: self.devices,
            "ELASTICDL_DEVICE_TURNS": os.environ.get("ELASTICDL_DEVICE_TURNS", "true"),
            "ELASTICDL_HEADROOM": os.environ.get("ELASTICDL_HEADROOM", "0"),
            "ELASTICDL_ISOLATION": os.environ.get("ELASTICDL_ISOLATION", "auto"),
            "ELASTICDL_UIDS": os.environ.get("ELASTICDL_UIDS", "200000-265535"),
            "ELASTICDL_JOB_DISK_MIB": os.environ.get("ELASTICDL_JOB_DISK_MIB", "0"),
            "ELASTICDL_JOB_SHARED_MEMORY_MIB": os.environ.get("ELASTICDL_JOB_SHARED_MEMORY_MIB", "0"),
            "ELASTICDL_ZYGOTE": os.environ.get("ELASTICDL_ZYGOTE", "auto"),
            "ELASTICDL_RPC": os.environ.get("ELASTICDL_RPC", "unix"),
            "ELASTICDL_CERTIFICATE_HOURS": os.environ.get("ELASTICDL_CERTIFICATE_HOURS", str(DEFAULT_HOURS)),
            "ELASTICDL_CLUSTER_SECRET": self.cluster_secret,
            "ELASTICDL_NODE_TOKEN": self.node_token,
            "ELASTICDL_API_URL": self.api_url,
            "ELASTICDL_CA_FILE": self.tls.ca_file if self.tls is not None else "",
            "ELASTICDL_REDIS_URL": self.redis_url,
        }
        return _service(
            "agent",
            "elasticdl_agent",
            environment,
            self.directory,
            self._agent_ready,
            MASTER_GRACE_S + STOP_GRACE_S + 20.0,
        )

    def api_spec(self) -> ComponentSpec:
        """The api."""
        return _service("api", "elasticdl_api", self.api_environment(), self.directory, self._api_ready, 15.0)

    def scheduler_spec(self) -> ComponentSpec:
        """The scheduler; it serves nobody, so a file says that its settings were understood and it works.

        It gets the settings of schedulers in our own environment, such as its quotas.
        """
        ready = self.directory.run / "scheduler.ready"

        async def probe() -> str:
            return await asyncio.to_thread(ready.read_text, encoding="utf-8")

        environment = {
            **base_environment(),
            "ELASTICDL_DATABASE_URL": self.database_url,
            "ELASTICDL_AGENT": self.agent,
            "ELASTICDL_NODE_TOKEN": self.node_token,
            **self._credentials(),
            READY_FILE_VARIABLE: str(ready),
        }
        given = {name: value for name, value in os.environ.items() if name.startswith("ELASTICDL_SCHEDULER_")}
        environment = {**given, **environment}
        if self.policy:
            environment["ELASTICDL_SCHEDULER_POLICY"] = self.policy
        spec = _service("scheduler", "elasticdl_scheduler", environment, self.directory, probe, 15.0)
        return dataclasses.replace(spec, before_start=lambda: ready.unlink(missing_ok=True))

    async def migrate(self) -> None:
        """Brings the database's schema up to date.

        Raises:
            UnavailableError: the migration failed or took too long; with the end of its log.
        """
        log = self.directory.log("migrate")
        argv = (sys.executable, "-P", "-m", "elasticdl_api", "migrate")
        child = await Child.start(Command(argv, self.api_environment(), self.directory.root, log))
        try:
            code = await within(child.wait(), MIGRATE_S)
        except TimeoutError:
            code = await child.stop(grace_s=1.0)
        if code != 0:
            raise UnavailableError(
                f"the migration of the database failed (code {code}); the end of its log:\n{log_tail(log)}",
                fix=f"see {log}; check --database-url if one was given",
            )

    async def _agent_ready(self) -> str:
        file = self._credentials().get(CREDENTIALS_VARIABLE)
        shown = RpcCredentials(Path(file)) if file else None
        launching = ProcessLauncher(self.agent, self.node_token, deadline_s=_HTTP_S, credentials=shown)
        async with launching as launcher:
            capacity = await launcher.capacity()
        users = "" if capacity.isolation.startswith("uid") else "; jobs of all namespaces run as this user"
        return f"{capacity.slots} slots{users}; isolation: {capacity.isolation}"

    async def _api_ready(self) -> str:
        ca_file = self.tls.ca_file if self.tls is not None else ""
        await asyncio.to_thread(_get, f"{self.api_url}/readyz", ca_file)
        return self.api_url


def _get(url: str, ca_file: str) -> None:
    opener = direct_opener(url, ca_file)
    with opener.open(url, timeout=_HTTP_S) as response:
        response.read()


def _service(
    name: str,
    module: str,
    environment: Mapping[str, str],
    directory: DataDirectory,
    probe: Probe | None,
    stop_grace_s: float,
) -> ComponentSpec:
    return ComponentSpec(
        name=name,
        argv=(sys.executable, "-P", "-m", module),
        environment={**environment, "PYTHONUNBUFFERED": "1"},
        log=directory.log(name),
        probe=probe,
        directory=directory.root,
        stop_grace_s=stop_grace_s,
    )
