"""Access to the parameter servers of a job that runs on this machine, as the owner of its cluster."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.installation import install_command
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir
from elasticdl_runtime.cluster.secrets import read_secret_file
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address, node_credentials, process_address
from elasticdl_runtime.rpc.credentials import RpcCredentials, TlsAddress
from elasticdl_runtime.tokens import FIRST_GUEST, LIFETIME_S, certificate_name, derive_job_secret, issue

_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Addresses of parameter servers, and the credentials that open them.

    Attributes:
        addresses: of PS 0, 1, ...
        token: a job token.
        credentials: what to show under TLS; None where that is not spoken.
    """

    addresses: tuple[str, ...]
    token: str
    credentials: RpcCredentials | None = None

    def __repr__(self) -> str:
        return f"ServerAccess(addresses={self.addresses!r}, token=...)"


def guest_token(job_secret: str, job_id: str) -> str:
    """A token for a program that is no worker of a job, and pushes as one."""
    return issue(job_secret, job_id, Role.WORKER, _guest(), 0)


def access_of_job(job_id: str, data_dir: Path | None) -> ServerAccess:
    """The parameter servers of a job, for whoever may read the secret of its cluster.

    Args:
        job_id: the job.
        data_dir: the cluster's data directory; ``$ELASTICDL_DATA_DIR`` or ``~/.elasticdl`` by default.

    Raises:
        InvalidInputError: the cluster's secret cannot be read, or what signs certificates is not installed.
        NotFoundError: no parameter server of the job listens on this machine.
    """
    directory = DataDirectory(default_data_dir() if data_dir is None else data_dir)
    cluster_secret = read_secret_file(directory.secret)
    secured = node_credentials(directory.run).exists()
    agent = agent_address(directory.run, RpcTransport.TLS if secured else RpcTransport.UNIX)
    addresses: list[str] = []
    while _listens(address := process_address(agent, job_id, Role.PS, len(addresses))):
        addresses.append(address)
    if not addresses:
        raise NotFoundError(
            f"no parameter server of the job {job_id!r} listens on this machine",
            fix="look with `elasticdl status` whether it runs here, and with parameter servers; or give data_dir",
        )
    token = guest_token(derive_job_secret(cluster_secret, job_id), job_id)
    return ServerAccess(tuple(addresses), token, _guest_credentials(cluster_secret, job_id) if secured else None)


def _guest() -> int:
    """A guest pushes under a name of its own, one for each process."""
    return FIRST_GUEST + os.getpid()


def _guest_credentials(cluster_secret: str, job_id: str) -> RpcCredentials:
    """A certificate for whom the guest's token names: the cluster's authority follows from its secret."""
    try:
        from elasticdl_runtime.authority import CertificateAuthority
    except ImportError:
        raise InvalidInputError(
            "the processes of this cluster speak TLS, and the package that signs certificates is missing",
            fix=install_command("agent"),
        ) from None
    authority = CertificateAuthority.of_secret(cluster_secret)
    issued = authority.issue([certificate_name(job_id, Role.WORKER, _guest())], timedelta(seconds=LIFETIME_S))
    return RpcCredentials(issued.key + issued.pem + authority.pem)


def _listens(address: str) -> bool:
    secured = TlsAddress.parse(address)
    if secured is None:
        return Path(address.removeprefix("unix:")).is_socket()
    host, _, port = secured.place.rpartition(":")
    try:
        # Who it is shows the certificate, with the first call.
        socket.create_connection((host, int(port)), _LOOK_S).close()
    except OSError:
        return False
    return True
