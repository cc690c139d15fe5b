"""How a program gets to the parameter servers of a job that runs on this machine, as the owner of its cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir
from elasticdl_runtime.cluster.secrets import read_secret_file
from elasticdl_runtime.launcher.addresses import agent_address, node_credentials, process_address
from elasticdl_runtime.tokens import derive_job_secret, issue

_FIRST_GUEST = 1_000_000
"""No worker of a job has such a number: a guest pushes under a name of its own, one for each process."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Where parameter servers are, and what opens them.

    Attributes:
        addresses: of PS 0, 1, ...
        token: a job token.
    """

    addresses: tuple[str, ...]
    token: str

    def __repr__(self) -> str:
        return f"ServerAccess(addresses={self.addresses!r}, token=...)"


def guest_token(job_secret: str, job_id: str) -> str:
    """A token for a program that is no worker of a job, and pushes as one."""
    return issue(job_secret, job_id, Role.WORKER, _FIRST_GUEST + os.getpid(), 0)


def access_of_job(job_id: str, data_dir: Path | None) -> ServerAccess:
    """The parameter servers of a job, for whoever may read the secret of its cluster.

    Args:
        job_id: the job.
        data_dir: the cluster's data directory; ``$ELASTICDL_DATA_DIR`` or ``~/.elasticdl`` by default.

    Raises:
        InvalidInputError: the cluster's secret cannot be read, or its processes speak TLS.
        NotFoundError: no parameter server of the job listens on this machine.
    """
    directory = DataDirectory(default_data_dir() if data_dir is None else data_dir)
    secret = derive_job_secret(read_secret_file(directory.secret), job_id)
    addresses: list[str] = []
    agent = agent_address(directory.run)
    while _listens(address := process_address(agent, job_id, Role.PS, len(addresses))):
        addresses.append(address)
    if not addresses and node_credentials(directory.run).exists():
        raise InvalidInputError(
            "the processes of this cluster speak TLS, for which a program needs a certificate of its own",
            fix="give the addresses and a token of the job, in a process that the cluster started",
        )
    if not addresses:
        raise NotFoundError(
            f"no parameter server of the job {job_id!r} listens on this machine",
            fix="look with `elasticdl status` whether it runs here, and with parameter servers; or give data_dir",
        )
    return ServerAccess(tuple(addresses), guest_token(secret, job_id))


def _listens(address: str) -> bool:
    return Path(address.removeprefix("unix:")).is_socket()
