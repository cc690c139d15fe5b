"""The settings of the agent."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field, field_validator

from elasticdl_agent.processes.credentials import DEFAULT_HOURS
from elasticdl_agent.processes.devices import AUTO
from elasticdl_agent.table import KEEP_ENDED
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.launcher.addresses import RpcTransport
from elasticdl_runtime.settings import ProcessSettings

PROCESS, KUBERNETES = "process", "kubernetes"


class LauncherSettings(ProcessSettings):
    """Settings of an agent's launcher.

    Attributes:
        launcher: ``ELASTICDL_LAUNCHER``, ``process`` for this machine's own, ``kubernetes`` for pods.
    """

    launcher: str = PROCESS

    @field_validator("launcher")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in (PROCESS, KUBERNETES):
            raise InvalidInputError(f"there is no launcher {value!r}", fix=f"use {PROCESS} or {KUBERNETES}")
        return value


class AgentSettings(ProcessSettings):
    """The settings of an agent.

    Attributes:
        data_dir: ``ELASTICDL_DATA_DIR``, files of jobs and logs.
        run_dir: ``ELASTICDL_RUN_DIR``, sockets.
        cluster_secret: ``ELASTICDL_CLUSTER_SECRET``, derives the secrets that sign job tokens.
        api_url: ``ELASTICDL_API_URL``, told to masters.
        ca_file: ``ELASTICDL_CA_FILE``, certificates that the api is verified by, told to masters.
        redis_url: ``ELASTICDL_REDIS_URL``, told to masters.
        node_token: ``ELASTICDL_NODE_TOKEN``, what callers of the agent must show.
        slots: ``ELASTICDL_SLOTS``, how many workers the machine holds.
        headroom: ``ELASTICDL_HEADROOM``, slots that are kept free.
        devices: ``ELASTICDL_DEVICES``, accelerators: ``auto`` for those that are found, ``gpu=2`` to declare two of
            them, ``off`` to leave what workers see of accelerators as it is.
        device_turns: ``ELASTICDL_DEVICE_TURNS``, whether workers that share a device compute one at a time.
        zygote: ``ELASTICDL_ZYGOTE``, ``auto``, ``on`` or ``off``: whether workers are forked from one.
        isolation: ``ELASTICDL_ISOLATION``, ``auto``, ``uid``, ``landlock`` or ``off``: what keeps jobs apart.
        rpc: ``ELASTICDL_RPC``, ``unix`` or ``tls``: what the agent and the processes of jobs speak over.
        certificate_hours: ``ELASTICDL_CERTIFICATE_HOURS``, how long the certificates of processes are valid; they are
            replaced when a third of that has passed.
        job_disk_mib: ``ELASTICDL_JOB_DISK_MIB``, what a job may have on disk; 0 for a quarter of the disk.
        job_shared_memory_mib: ``ELASTICDL_JOB_SHARED_MEMORY_MIB``, what a job may have in ``/dev/shm``; 0 for a half.
        uids: ``ELASTICDL_UIDS``, the user ids that namespaces get where the agent may change users.
        keep_processes: ``ELASTICDL_KEEP_PROCESSES``, processes that have ended and are remembered.
    """

    data_dir: Path
    run_dir: Path
    cluster_secret: str
    api_url: str
    redis_url: str
    node_token: str
    slots: int
    headroom: int = 0
    devices: str = AUTO
    device_turns: bool = True
    zygote: str = "auto"
    isolation: str = "auto"
    uids: str = "200000-265535"
    ca_file: str = ""
    rpc: str = "unix"
    job_disk_mib: int = Field(default=0, ge=0, le=1 << 40)
    job_shared_memory_mib: int = Field(default=0, ge=0, le=1 << 40)
    keep_processes: int = Field(default=KEEP_ENDED, ge=100)
    certificate_hours: float = Field(default=DEFAULT_HOURS, gt=0.001, le=24 * 365)

    @property
    def transport(self) -> RpcTransport:
        """The transport to speak over.

        Raises:
            InvalidInputError: there is no such thing, or not here.
        """
        try:
            found = RpcTransport(self.rpc)
        except ValueError:
            raise InvalidInputError(f"ELASTICDL_RPC={self.rpc!r} is unknown", fix="set it to unix or tls") from None
        if found is RpcTransport.TLS and sys.platform != "linux":
            raise InvalidInputError(
                "ELASTICDL_RPC=tls needs all addresses of loopback (127.0.0.0/8), which this system lacks",
                fix="leave it out: unix sockets are used then",
            )
        return found
